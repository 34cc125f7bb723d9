"""What this room tells the rooms below it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory

from secrets_vault.encryption import encrypted_columns, unregistered_models
from secrets_vault.services import usages_of
from servers.models import Server
from servers.wiring import first_step, search_servers, servers_using_secrets
from tests.fakes.server_rows import http_server, stdio_server
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db


def test_a_secret_knows_the_servers_that_refer_to_it() -> None:
    http_server(headers={"Authorization": "Bearer {{secret:KEY}}"})
    stdio_server(env={"A": "{{secret:KEY_2}}", "B": "{{secret:key}}"})
    assert [usage.name for usage in usages_of("KEY")] == ["github"]
    assert [usage.kind for usage in usages_of("KEY_2")] == ["server"]
    assert usages_of("OTHER") == []


def test_a_secret_knows_the_servers_whose_token_it_is() -> None:
    """U24."""
    http_server(options={"token_ref": "@KEY"})
    http_server("both", headers={"X": "{{secret:KEY}}"}, options={"token_ref": "@KEY"})
    http_server("another", options={"token_ref": "@KEY_2"})
    assert sorted(usage.name for usage in usages_of("KEY")) == ["both", "github"]


def test_a_page_of_secrets_is_answered_by_one_query(django_assert_num_queries: Any) -> None:
    http_server(headers={"Authorization": "Bearer {{secret:A}}", "X": "{{secret:B}}"})
    with django_assert_num_queries(1):
        found = servers_using_secrets(["A", "B", "C"])
    assert {name: len(usages) for name, usages in found.items()} == {"A": 1, "B": 1, "C": 0}
    with django_assert_num_queries(0):
        assert servers_using_secrets([]) == {}


def test_rotation_knows_the_encrypted_column() -> None:
    assert Server in [column.model for column in encrypted_columns()]
    assert not [name for name in unregistered_models() if name.startswith("servers.")]


def test_the_search_finds_servers_and_the_action(administrator: User, member: User) -> None:
    http_server(description="Issues and pull requests")
    assert [hit.title for hit in search_servers(member, "pull git")] == ["github"]
    assert list(search_servers(member, " ")) == []
    assert [hit.title for hit in search_servers(administrator, "add server")] == ["Add MCP server"]
    assert list(search_servers(member, "add server")) == []


def test_the_first_step_ticks_itself_off(administrator: User, rf: RequestFactory) -> None:
    request: Any = rf.get("/")
    request.user = administrator
    assert not first_step(request)["done"]
    http_server()
    assert first_step(request)["done"]
