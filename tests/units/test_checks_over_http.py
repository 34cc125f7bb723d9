"""Tests of servers over HTTP, whole: what the wire shows, and what is stored of it."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import serializers
from django.test import Client
from django.urls import reverse

from secrets_vault.models import Secret
from secrets_vault.services import set_secret
from servers import checks
from servers.models import Check, Server
from tests.fakes.mcp_http import FakeHttp, running
from tests.fakes.mcp_server import TOOLS, Behaviour, object_schema
from tests.fakes.server_rows import after_test, http_server
from tests.units.forms_of_pages import fields_of

pytestmark = pytest.mark.django_db

CANARY = "sk-canary-4711"


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


@pytest.fixture
def fake() -> Iterator[FakeHttp]:
    with running(FakeHttp()) as server:
        yield server


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("behaviour", "asked", "note"),
    [
        ({"capabilities": {}}, False, "The server declares that it has no tools."),
        ({"capabilities": {"resources": {}}}, False, "The server declares that it has no tools."),
        ({"list_error": -32601}, True, "The server does not know the request for its tools."),
        ({"tools": []}, True, ""),
    ],
    ids=["no capability", "resources only", "declared and unknown", "an empty list"],
)
def test_a_server_without_tools_is_connected_and_has_none(
    era: str, behaviour: dict[str, Any], asked: bool, note: str, member_client: Client
) -> None:
    """D17: with a note, and asked only for what it declares."""
    sessions = era == "legacy"
    with running(FakeHttp(Behaviour(era=era, **behaviour), sessions=sessions)) as fake:
        server = http_server(url=fake.url)
        check = after_test(server)
        assert fake.rpcs().count("tools/list") == int(asked)
    assert (check.outcome, check.tool_count, server.state) == ("connected", 0, "connected")
    assert check.warnings == ([note] if note else [])
    if note:
        sheet = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
        assert note in sheet


def test_one_bad_tool_and_a_list_without_end_cost_a_warning_each(
    member_client: Client,
) -> None:
    """D01, D08, D11: the server works, and its page says what is missing and why."""
    tools: list[Any] = [
        {"name": "good", "inputSchema": object_schema()},
        {"name": "bad", "inputSchema": {"type": "string"}},
        {"name": "odd", "description": None, "annotations": {"readOnlyHint": None}, "icons": "x"},
    ]
    with running(FakeHttp(Behaviour(tools=tools, page_size=3, cursor="repeat"))) as fake:
        server = http_server(url=fake.url)
        check = after_test(server)
        assert fake.rpcs().count("tools/list") == 2
    assert (check.outcome, server.state) == ("connected", "connected")
    assert list(server.tools.values_list("name", flat=True)) == ["good", "odd"]
    assert "“bad” is left out" in check.warnings[0]
    assert "read before" in check.warnings[1]
    sheet = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    assert all(warning in html.unescape(sheet) for warning in check.warnings)


@pytest.mark.parametrize("lost", ["its own values", "a secret"])
def test_a_server_whose_key_is_lost_is_listed_opened_and_tested_in_words(
    fake: FakeHttp, lost: str, member_client: Client
) -> None:
    """E09: list and sheet work, the state says what to do, and no ciphertext leaves."""
    set_secret(actor=None, name="KEY", value=CANARY)
    headers = {"X-Api-Key": "{{secret:KEY}}" if lost == "a secret" else CANARY}
    server = http_server(url=fake.url, headers=headers)
    (Secret if lost == "a secret" else Server).objects.update(key_id="gone")
    server.refresh_from_db()
    assert after_test(server).outcome == "failed"
    assert server.state == "failed"
    assert "cannot be decrypted" in server.last_error
    assert "again" in server.last_error
    assert fake.requests == []
    for address in (reverse("servers:list"), reverse("servers:detail", args=[server.pk])):
        response = member_client.get(address)
        assert response.status_code == 200
        assert "cannot be decrypted" in response.content.decode()


def test_tools_of_any_name_are_shown_by_it(member_client: Client) -> None:
    """D04: a model's aliases are no business of the page."""
    names = ["catalog.get", "a/b", "New Tool", "überprüfen", "n" * 65]
    tools = [{"name": name, "inputSchema": object_schema()} for name in names]
    with running(FakeHttp(Behaviour(tools=tools))) as fake:
        server = http_server(url=fake.url)
        after_test(server)
    sheet = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    for name in names:
        assert f'<code class="tool-name">{name}</code>' in sheet


def test_an_edit_of_the_name_keeps_what_a_test_sends(
    fake: FakeHttp, administrator_client: Client
) -> None:
    """E07: the form shows a stand-in for values; it is stored by nobody and sent to nobody."""
    set_secret(actor=None, name="KEY", value=CANARY)
    headers = {"X-Api-Key": "{{secret:KEY}}", "X-Two": "literal-two", "Authorization": "Basic YTpi"}
    server = http_server(url=f"{fake.url}?key=literal-query", headers=headers)
    address = reverse("servers:edit", args=[server.pk])
    form = fields_of(administrator_client.get(address).content.decode(), "server-form")
    response = administrator_client.post(address, {**form, "name": "renamed"})
    assert response.status_code == 303
    server.refresh_from_db()
    assert (server.name, after_test(server).outcome) == ("renamed", "connected")
    for request in fake.requests:
        assert request.path == "/mcp?key=literal-query"
        sent = [request.headers[name] for name in ("x-api-key", "x-two", "authorization")]
        assert sent == [CANARY, "literal-two", "Basic YTpi"]


def test_a_secret_that_its_own_server_repeats_is_stored_nowhere() -> None:
    """E11: in titles, descriptions, schemas, instructions and the server's own name."""
    set_secret(actor=None, name="KEY", value=CANARY)
    schema = object_schema(a={"type": "string", "default": CANARY, "description": CANARY})
    tool = {"name": "good", "title": CANARY, "description": CANARY, "inputSchema": schema}
    behaviour = Behaviour(
        tools=[tool], instructions=f"Use {CANARY}", server_info={"name": CANARY, "version": CANARY}
    )
    with running(FakeHttp(behaviour)) as fake:
        server = http_server(url=fake.url, headers={"X-Api-Key": "{{secret:KEY}}"})
        assert after_test(server).outcome == "connected"
    rows = [*Server.objects.all(), *Check.objects.all(), *server.tools.all()]
    stored = serializers.serialize("json", rows)
    assert server.tools.count() == 1
    assert "[secret KEY]" in stored
    assert CANARY not in stored
    assert CANARY not in json.dumps(server.instructions)


def test_a_tool_whose_name_holds_a_secret_is_left_out_and_named_without_it() -> None:
    """E11, D08: the masked name could not be called; check and server count alike."""
    set_secret(actor=None, name="KEY", value=CANARY)
    tools = [{"name": name, "inputSchema": object_schema()} for name in ("good", f"t-{CANARY}")]
    with running(FakeHttp(Behaviour(tools=tools))) as fake:
        server = http_server(url=fake.url, headers={"X-Api-Key": "{{secret:KEY}}"})
        check = after_test(server)
    assert check.warnings == ["Tool “t-[secret KEY]” is left out: its name holds a secret."]
    assert check.tool_count == server.tool_count == server.tools.count() == 1


def test_both_shapes_of_answers_find_the_same_tools() -> None:
    """B17: a test and a run read by the same parser, whatever ends a line."""
    for options in ({}, {"answer": "sse", "event_end": "\r\n"}, {"transport": "sse"}):
        with running(FakeHttp(**options)) as fake:  # type: ignore[arg-type]
            server = http_server(f"s{fake.port}", url=fake.url)
            assert after_test(server).tool_count == server.tools.count() == len(TOOLS)
