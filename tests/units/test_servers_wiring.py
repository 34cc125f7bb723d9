"""What this room tells the rooms below it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from secrets_vault.encryption import encrypted_columns, unregistered_models
from secrets_vault.services import usages_of
from servers.models import Server
from servers.oauth.shown import shown_login
from servers.queries import listed_servers
from servers.wiring import first_step, search_logins, search_servers, servers_using_secrets
from tests.fakes.login_rows import logged_in, oauth_server
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


def test_the_search_finds_where_to_log_in(administrator: User, member: User) -> None:
    """Servers that want a person to do so, and nobody who may not."""
    works, hour = Server.State.CONNECTED, timedelta(hours=1)
    waiting = [oauth_server(name, state=works) for name in ("none", "over")]
    waiting.append(oauth_server("refused"))
    logged_in(waiting[1], lasts=-hour, refresh=False)
    for server in (waiting[2], oauth_server("fine", state=works)):
        logged_in(server)
    oauth_server("off", enabled=False)
    oauth_server("machine", oauth_kind="machine")
    oauth_server("key", has_authorization=True)
    http_server("plain")

    def found(words: str, user: User = administrator) -> list[str]:
        return [hit.title for hit in search_logins(user, words)]

    everything = [f"Log in to {server.name}" for server in waiting]
    for words in ("log", "login", "Log in", "log in to", "logi"):
        assert found(words) == everything
    assert found("log in over") == found("over login") == ["Log in to over"]
    assert found("over") == found("in to") == found("") == found("log", member) == []
    [hit] = search_logins(administrator, "login none")
    assert hit.url == reverse("servers:detail", args=[waiting[0].pk])
    now = timezone.now()
    shown = [shown_login(server, now) for server in listed_servers().filter(enabled=True)]
    assert [login.server for login in shown if login.wants_login] == waiting


def test_the_palette_asks_for_logins(administrator_client: Client) -> None:
    oauth_server("notes")
    response = administrator_client.get(reverse("accounts:search"), {"q": "login"})
    assert "Log in to notes" in response.content.decode()


def test_the_first_step_ticks_itself_off(administrator: User, rf: RequestFactory) -> None:
    request: Any = rf.get("/")
    request.user = administrator
    assert not first_step(request)["done"]
    http_server()
    assert first_step(request)["done"]
