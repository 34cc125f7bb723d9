"""The list, the sheet, the switch, duplicate and delete."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from secrets_vault.services import set_secret
from servers.forms.lists import ToolForm
from servers.mcp.types import ServerUnavailable, Tool, ToolList
from servers.models import Check, Server
from servers.services import set_enabled, store_failure, store_success
from servers.usage import Usage, usages
from tests.fakes.server_rows import (
    FoundServer,
    after_success,
    http_server,
    stdio_server,
    unix_server,
)

pytestmark = pytest.mark.django_db

CANARY = '<img src=x onerror=alert(1)>"><svg/onload=alert(1)></script><script>'


def page(client: Client, **query: str) -> str:
    return client.get(reverse("servers:list"), query).content.decode()


def test_the_empty_list_teaches_and_offers_the_first_step(
    administrator_client: Client, member_client: Client
) -> None:
    assert "No MCP server yet" in page(administrator_client)
    assert reverse("servers:create") in page(administrator_client)
    assert reverse("servers:create") not in page(member_client)


def test_a_row_shows_what_is_known_of_a_server(member_client: Client) -> None:
    """P29, P49-P51."""
    after_success(stdio_server("everything", description="All kinds of tools"), "a", "b")
    http_server(
        "github", headers={"Authorization": "Bearer canary-1"}, url="https://h.ex/?k=canary"
    )
    text = page(member_client)
    assert "All kinds of tools" in text
    assert "<strong>2</strong> · <time" in text
    assert "Not tested" in text
    assert "Bearer token" in text
    assert "canary" not in text


def test_a_state_has_a_word_an_age_and_its_reason_on_hover(member_client: Client) -> None:
    """Colour is never alone; the last error and the next attempt are one look away."""
    working, broken = after_success(http_server("works"), "a"), http_server("broken")
    new = http_server("new")
    store_failure(broken, ServerUnavailable('502 "Bad" Gateway'))
    at = datetime(2100, 1, 1, 14, 5, tzinfo=UTC)
    Server.objects.filter(pk=new.pk).update(next_check_at=at - timedelta(days=40_000))
    Server.objects.filter(pk=broken.pk).update(failures=3, next_check_at=at)
    Server.objects.filter(pk=working.pk).update(next_check_at=at)
    text = page(member_client)
    states = re.findall(r'class="server-state is-(\w+)">(.*?)</span>', text, flags=re.S)
    assert [(state, re.sub("<.*?>", "", words)) for state, words in states] == [
        ("failed", "Failed just now"),
        ("connected", "Connected"),
    ]
    hovers = re.findall(r'class="server-name" title="(.*?)"', text, flags=re.S)
    assert hovers == [
        "Failed\n3 times in a row\n502 &quot;Bad&quot; Gateway\nNext check at 14:05 UTC",
        "Not tested\nA check is due",
        "Connected\nNext check at 14:05 UTC",
    ]


def test_where_no_pointer_rests_the_row_says_the_reason_itself(member_client: Client) -> None:
    """The first words of the last error, and when the server is looked at again."""
    broken, off = http_server("broken"), http_server("off")
    for server in (broken, off, after_success(http_server("works"), "a")):
        store_failure(server, ServerUnavailable("502 Bad Gateway\n" + "x" * 5000))
    after_success(Server.objects.get(name="works"), "a")
    due = timezone.now() + timedelta(minutes=7)
    Server.objects.filter(pk=broken.pk).update(next_check_at=due)
    set_enabled(off, actor=None, enabled=False)
    found = re.findall(r'class="server-why">(.*?)</span>', page(member_client), flags=re.S)
    reasons = [re.sub("<.*?>", "", words) for words in found]
    cut = "502 Bad Gateway " + "x" * 83 + "…"
    assert reasons == [f"{cut}&nbsp;· Next check in 7 min", cut]


@pytest.mark.parametrize(
    ("server", "shown"),
    [
        (lambda: http_server(url="https://mcp.example.org/v1"), "mcp.example.org/v1"),
        (lambda: http_server(url="http://127.0.0.1:18301/mcp"), "127.0.0.1:18301/mcp"),
        (lambda: unix_server(), "/run/engine/mcp.sock"),
        (lambda: stdio_server(command="uvx", args=("some-server",)), "uvx some-server"),
    ],
)
def test_addresses_stand_in_the_list_without_their_scheme_and_whole_on_hover(
    server: Callable[[], Server], shown: str, member_client: Client
) -> None:
    endpoint = server().endpoint
    text = page(member_client)
    assert f'title="{endpoint}"' in text
    assert f"<span>{shown[:-10]}</span><span>{shown[-10:]}</span>" in text


def test_a_disabled_server_plans_nothing(member_client: Client) -> None:
    """U4."""
    Server.objects.filter(pk=http_server().pk).update(enabled=False, next_check_at=timezone.now())
    assert "Next check" not in page(member_client)


def test_a_token_that_exists_is_a_bearer_token(member_client: Client) -> None:
    """P49, section 0."""
    http_server("with", options={"token_ref": "@T"})
    http_server("without", options={"token_ref": "@MISSING"})
    set_secret(actor=None, name="T", value="x")
    rows = member_client.get(reverse("servers:list")).context["rows"]
    assert [(row["server"].name, row["login"].auth.label) for row in rows] == [
        ("with", "Bearer token"),
        ("without", "Unknown"),
    ]


def test_members_see_no_way_to_change_anything(
    member_client: Client, administrator_client: Client
) -> None:
    """I19."""
    server = http_server()
    ways = ["edit", "delete", "duplicate", "enabled"]
    for way in ways:
        address = reverse(f"servers:{way}", args=[server.pk])
        assert address in page(administrator_client)
        assert address not in page(member_client)
    assert reverse("servers:test", args=[server.pk]) in page(member_client)


@pytest.mark.parametrize("way", ["edit", "delete", "duplicate", "enabled", "create"])
def test_a_member_who_tries_all_the_same_is_told_who_may(way: str, member_client: Client) -> None:
    server = http_server()
    args = [] if way == "create" else [server.pk]
    response = member_client.post(reverse(f"servers:{way}", args=args))
    assert response.status_code == 403
    assert "Only administrators can change MCP servers" in response.content.decode()
    assert Server.objects.get().enabled


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, {"everything", "github", "off"}),
        ({"q": "git"}, {"github"}),
        ({"q": "API.example"}, {"github", "off"}),
        ({"q": "npx everything"}, {"everything"}),
        ({"transport": "stdio"}, {"everything"}),
        ({"auth": "unknown"}, {"github", "off"}),
        ({"auth": "none"}, {"everything"}),
        ({"state": "untested"}, set()),
        ({"state": "disabled"}, {"off"}),
        ({"state": "trouble"}, {"github"}),
        ({"state": "nonsense", "transport": "pigeon"}, {"everything", "github", "off"}),
        ({"q": "nowhere"}, set()),
    ],
)
def test_the_list_is_searched_and_filtered_by_its_address(
    query: dict[str, str], names: set[str], member_client: Client
) -> None:
    after_success(stdio_server("everything"), "echo")
    for server in (http_server("github"), http_server("off")):
        store_failure(server, ServerUnavailable("It refused the connection."))
    set_enabled(server, actor=None, enabled=False)
    response = member_client.get(reverse("servers:list"), query)
    assert {row["server"].name for row in response.context["rows"]} == names
    assert ("No server matches" in response.content.decode()) == (not names)


def test_many_servers_are_paged(member_client: Client) -> None:
    rows = [Server(name=f"s{i:03}", transport="http", private=b"", key_id="k") for i in range(120)]
    Server.objects.bulk_create(rows)
    text = page(member_client, page="2", transport="http")
    assert "26 to 50 of 120" in text
    assert "page=3&amp;transport=http" in text
    assert "101 to 120 of 120" in page(member_client, page="99")


def test_the_list_asks_the_database_equally_often_for_any_number_of_servers(
    member_client: Client, django_assert_num_queries: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    after_success(http_server(), "a")
    with CaptureQueriesContext(connection) as few:
        page(member_client)
    rows = [Server(name=f"s{i:03}", transport="http", private=b"", key_id="k") for i in range(40)]
    Server.objects.bulk_create(rows)
    with django_assert_num_queries(len(few)):
        page(member_client)
    assert len(few) <= 12


def test_the_filter_answers_with_the_list_alone(member_client: Client) -> None:
    http_server()
    headers = {"HX-Request": "true", "HX-Target": "server-list"}
    text = member_client.get(reverse("servers:list"), headers=headers).content.decode()
    assert text.lstrip().startswith('<div id="server-list"')


def test_a_row_can_be_fetched_alone(member_client: Client) -> None:
    server = http_server()
    Check.objects.create(server=server, connection_version=1)
    address = reverse("servers:row", args=[server.pk])
    text = member_client.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "Being checked" in text
    assert "every 2s" in text
    Server.objects.all().delete()
    assert member_client.get(address).status_code == 404


def changes_since(client: Client, moment: datetime | str) -> set[str]:
    """Names of the servers whose rows would fetch themselves again."""
    words = moment if isinstance(moment, str) else f"{moment:%Y-%m-%dT%H:%M:%S%z}"
    response = client.get(reverse("servers:changes"), {"since": words}, headers={"HX-Request": "1"})
    assert 'hx-trigger="every 15s"' in response.content.decode()
    events = json.loads(response["HX-Trigger"])
    return {server.name for server in Server.objects.all() if f"row-{server.pk}" in events}


def test_rows_learn_what_health_checks_and_other_people_did(member_client: Client) -> None:
    """Issue 3, section 4: the list is true while it stands open."""
    for name in ("checked", "edited", "asked", "quiet"):
        http_server(name)
    old, now = timezone.now() - timedelta(hours=1), timezone.now()
    Server.objects.update(checked_at=old, updated_at=old)
    Server.objects.filter(name="checked").update(checked_at=now)
    Server.objects.filter(name="edited").update(updated_at=now)
    Check.objects.create(server=Server.objects.get(name="asked"), connection_version=1)
    moment = now - timedelta(minutes=1)
    assert changes_since(member_client, moment) == {"checked", "edited", "asked"}
    assert changes_since(member_client, now + timedelta(minutes=1)) == set()
    assert changes_since(member_client, "yesterday") == set()


def test_where_many_servers_changed_all_rows_are_told_at_once(member_client: Client) -> None:
    """A header has an end: a proxy refuses one of more than four kilobytes."""
    rows = [Server(name=f"s{i:03}", transport="http", private=b"", key_id="k") for i in range(30)]
    Server.objects.bulk_create(rows)
    words = f"{timezone.now() - timedelta(minutes=1):%Y-%m-%dT%H:%M:%S%z}"
    address = reverse("servers:changes")
    response = member_client.get(address, {"since": words}, headers={"HX-Request": "1"})
    assert json.loads(response["HX-Trigger"]) == {"rows": ""}
    assert page(member_client).count("rows from:body") == 25


def test_the_list_watches_from_the_moment_it_was_made(member_client: Client) -> None:
    """What it asks for is what the view understands."""
    server = http_server()
    [address] = re.findall(r'hx-get="(/servers/changes/[^"]*)"', page(member_client))
    Server.objects.filter(pk=server.pk).update(checked_at=timezone.now())
    response = member_client.get(address, headers={"HX-Request": "true"})
    assert json.loads(response["HX-Trigger"]) == {f"row-{server.pk}": ""}


def test_the_sheet_shows_what_the_last_success_found(member_client: Client) -> None:
    """P27, P33."""
    server = http_server()
    tools = ToolList(
        [
            Tool("read", title="Reads", description="It reads", read_only=True),
            Tool("erase", destructive=True),
        ]
    )
    store_success(server, FoundServer(), tools)
    text = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    for words in ("Read-only", "Destructive", "It reads", "2025-11-25", "Example", "Be gentle."):
        assert words in text


def test_the_sheet_shows_the_last_error_verbatim(member_client: Client) -> None:
    server = after_success(http_server(), "echo")
    store_failure(server, ServerUnavailable("429 Too Many <Requests>"))
    text = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    assert "429 Too Many &lt;Requests&gt;" in text
    assert "echo" in text


def test_what_servers_say_is_shown_as_text(member_client: Client) -> None:
    """I10, A28."""
    server = http_server(description=CANARY)
    schema = {"properties": {CANARY: {"description": CANARY, "enum": [CANARY], "default": CANARY}}}
    tool = Tool(CANARY, title=CANARY, description=CANARY, input_schema=schema)
    found = FoundServer(server_name=CANARY, server_version=CANARY, instructions=CANARY)
    store_success(server, found, ToolList([tool]))
    check = Check.objects.create(
        server=server,
        connection_version=1,
        status="done",
        outcome="failed",
        error=CANARY,
        hint=CANARY,
        stderr_tail=CANARY,
        steps=[{"label": CANARY, "ms": 1}],
    )
    addresses = [
        reverse("servers:list"),
        reverse("servers:detail", args=[server.pk]),
        reverse("servers:check", args=[check.pk]),
        f"{reverse('servers:tool', args=[server.pk])}?name={quote(CANARY)}",
    ]
    for address in addresses:
        text = member_client.get(address).content.decode()
        assert "&lt;img" in text
        assert "<img src=x" not in text
        assert "<svg/onload" not in text


def test_a_tool_that_is_gone_is_a_404(member_client: Client) -> None:
    server = after_success(http_server(), "echo")
    address = reverse("servers:tool", args=[server.pk])
    assert member_client.get(address, {"name": "echo"}).status_code == 200
    assert member_client.get(address, {"name": "gone"}).status_code == 404
    # Postgres would refuse to look for it, with an error.
    assert not ToolForm({"name": "e\0cho"}).is_valid()
    assert member_client.get(address, {"name": "e\0cho"}).status_code == 404


def test_the_sheet_asks_equally_often_for_any_number_of_tools(
    member_client: Client, django_assert_num_queries: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    server = after_success(http_server(), "a")
    address = reverse("servers:detail", args=[server.pk])
    with CaptureQueriesContext(connection) as few:
        member_client.get(address)
    after_success(server, *(f"tool-{i}" for i in range(100)))
    with django_assert_num_queries(len(few)):
        member_client.get(address)


def test_the_switch_saves_at_once(administrator_client: Client) -> None:
    """P59."""
    server = http_server()
    address = reverse("servers:enabled", args=[server.pk])
    response = administrator_client.post(address, headers={"HX-Request": "true"})
    assert "github is disabled" in response["HX-Trigger"]
    assert f'id="server-{server.pk}"' in response.content.decode()
    server.refresh_from_db()
    assert not server.enabled
    assert administrator_client.post(address, {"enabled": "on"}).status_code == 303
    server.refresh_from_db()
    assert server.enabled


def test_a_copy_opens_its_form(administrator_client: Client) -> None:
    server = http_server()
    response = administrator_client.post(reverse("servers:duplicate", args=[server.pk]))
    copy = Server.objects.get(name="github-copy")
    assert response["Location"] == reverse("servers:edit", args=[copy.pk])


def test_deleting_asks_first_and_names_what_uses_it(
    administrator_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from servers import usage

    server = http_server()
    finder = lambda server: [Usage("job", "nightly digest", "/jobs/1/")]  # noqa: E731
    monkeypatch.setattr(usage, "_finders", [finder])
    assert usages(server)[0].name == "nightly digest"
    address = reverse("servers:delete", args=[server.pk])
    text = administrator_client.get(address).content.decode()
    assert "Delete github?" in text
    assert "nightly digest" in text
    assert Server.objects.exists()
    assert administrator_client.post(address).status_code == 303
    assert not Server.objects.exists()


@pytest.mark.parametrize("way", ["duplicate", "enabled", "test"])
def test_a_change_needs_a_post(way: str, administrator_client: Client) -> None:
    server = http_server()
    assert administrator_client.get(reverse(f"servers:{way}", args=[server.pk])).status_code == 405


def test_a_server_whose_key_is_lost_cannot_be_copied_and_says_why(
    administrator_client: Client,
) -> None:
    """E09."""
    server = http_server(headers={"X-Api-Key": "canary-1"})
    Server.objects.update(key_id="gone")
    address = reverse("servers:duplicate", args=[server.pk])
    response = administrator_client.post(address, follow=True)
    assert "cannot be decrypted" in response.content.decode()
    assert Server.objects.count() == 1
