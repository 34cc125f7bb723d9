"""The sheet: state and why, how it is reached, what holds, its checks."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from secrets_vault.errors import SecretNotFound
from servers.mcp.types import LoginRequired, ServerUnavailable
from servers.models import Check, Server, Tool
from servers.policy import Policy
from servers.services import set_enabled, store_failure
from tests.fakes.server_rows import (
    after_success,
    changed,
    http_server,
    stdio_server,
    unix_server,
)
from tests.units.server_sheets import facts_of, plain, sheet
from umpteenth.accounts.models import User
from umpteenth.core import config

pytestmark = pytest.mark.django_db


def state_of(client: Client, server: Server) -> str:
    html = sheet(client, server)
    begin = html.index('<section class="health')
    return plain(html[begin : html.index("</section>", begin)])


def ended(server: Server, outcome: str, *, ago: timedelta, **values: Any) -> Check:
    """A finished check of some time ago."""
    values = {"connection_version": server.connection_version, "kind": "health", **values}
    check = Check.objects.create(server=server, status="done", outcome=outcome, **values)
    Check.objects.filter(pk=check.pk).update(created_at=timezone.now() - ago)
    return check


@pytest.fixture
def moment() -> Any:
    """Time stands still, so that `12 min` is twelve minutes."""
    with time_machine.travel(timezone.now(), tick=False) as traveller:
        yield traveller


def soon(minutes: float) -> datetime:
    return timezone.now() + timedelta(minutes=minutes)


def test_a_server_that_works_says_since_when_and_when_it_is_looked_at_again(
    member_client: Client, moment: Any
) -> None:
    server = changed(
        after_success(http_server(), "echo"), checked_at=soon(-5), next_check_at=soon(10)
    )
    words = state_of(member_client, server)
    assert "Connected 5 min ago" in words
    assert "Next check in 10 min" in words
    assert "Check now" in words


def test_a_failed_server_says_what_it_said_how_often_and_when_it_is_tried_again(
    member_client: Client, moment: Any
) -> None:
    """The last error verbatim, the number of attempts and the next one (issue 3, section 4)."""
    server = after_success(http_server(), "echo")
    error = "502 Bad Gateway\n<html>upstream &amp; gone"
    store_failure(server, ServerUnavailable(error))
    ended(server, "failed", ago=timedelta(), error=error, hint="Ask whoever runs it.")
    server = changed(server, failures=4, checked_at=soon(-2), next_check_at=soon(6))
    html = sheet(member_client, server)
    assert "502 Bad Gateway\n&lt;html&gt;upstream &amp;amp; gone" in html
    words = state_of(member_client, server)
    assert "Failed 4 attempts in a row, the last 2 min ago" in words
    assert "Tries again in 6 min" in words
    assert "Ask whoever runs it." in words
    assert facts_of(member_client, server)["Last success"]


def test_a_failed_stdio_server_shows_how_its_process_ended(member_client: Client) -> None:
    """C06."""
    server = stdio_server()
    store_failure(server, ServerUnavailable("It ended."))
    tail = {"error": "It ended.", "exit_code": 7, "stderr_tail": "API_KEY is not set"}
    ended(server, "failed", ago=timedelta(), **tail)
    words = state_of(member_client, server)
    assert "exit code 7" in words
    assert "API_KEY is not set" in words


def test_a_login_that_is_missing_says_what_to_do(
    administrator_client: Client, member_client: Client
) -> None:
    server = http_server()
    store_failure(server, LoginRequired("401 Unauthorized"))
    assert "Add an Authorization header" in state_of(administrator_client, server)
    assert "An administrator can add" in state_of(member_client, server)


@pytest.mark.parametrize(
    ("values", "words", "never"),
    [
        ({}, "Not tested", "since it was changed"),
        ({"next_check_at": timezone.now() - timedelta(seconds=9)}, "A check is due", "ago"),
        ({"enabled": False}, "Disabled", "Next check"),
    ],
)
def test_a_server_that_nobody_looked_at_says_what_is_planned(
    values: dict[str, Any], words: str, never: str, member_client: Client
) -> None:
    found = state_of(member_client, changed(http_server(), **values))
    assert words in found
    assert never not in found


def test_an_edited_server_says_why_it_counts_as_not_tested(member_client: Client) -> None:
    server = changed(after_success(http_server(), "echo"), state=Server.State.UNTESTED)
    ended(server, "connected", ago=timedelta(hours=1))
    assert "Not tested since it was changed" in state_of(member_client, server)


def test_a_disabled_server_is_contacted_by_nobody(member_client: Client) -> None:
    """U4."""
    server = after_success(http_server(), "echo")
    set_enabled(server, actor=None, enabled=False)
    words = state_of(member_client, changed(server, next_check_at=soon(3)))
    assert "Jobs skip it" in words
    assert "Next check" not in words


def test_switched_off_health_is_said(
    member_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U2."""
    from servers.views import sheet as view

    options = config.get_options()
    off = options.model_copy(update={"mcp": config.McpOptions(auto_connect=False)})
    monkeypatch.setattr(view, "get_options", lambda: off)
    assert "Regular checks are off" in state_of(
        member_client, changed(http_server(), next_check_at=None)
    )


def test_a_check_under_way_can_be_watched(member_client: Client) -> None:
    server = http_server()
    check = Check.objects.create(server=server, connection_version=1, kind="health")
    words = state_of(member_client, server)
    assert "Being checked" in words
    assert "Check now" not in words
    assert reverse("servers:check", args=[check.pk]) in sheet(member_client, server)


def test_warnings_of_the_last_success_stand_under_the_state(member_client: Client) -> None:
    """D08: one bad tool is left out with a warning that names it."""
    server = after_success(http_server(), "echo")
    ended(server, "connected", ago=timedelta(), warnings=["The tool “bad” is left out."])
    assert "The tool “bad” is left out." in state_of(member_client, server)


@pytest.mark.parametrize(
    ("transport", "found", "words"),
    [
        ("http", {"transport": "http"}, "HTTP · Streamable HTTP"),
        ("http", {"transport": "sse"}, "HTTP · legacy SSE"),
        ("http", {}, "HTTP"),
        ("stdio", {"transport": "stdio"}, "stdio"),
        ("unix", {"transport": "http"}, "Unix socket · Streamable HTTP"),
        ("unix", {"transport": "sse"}, "Unix socket · legacy SSE"),
    ],
)
def test_transport_revision_and_how_they_were_found_are_shown(
    transport: str, found: dict[str, str], words: str, member_client: Client
) -> None:
    """U19, P5."""
    make = {"http": http_server, "stdio": stdio_server, "unix": unix_server}[transport]
    how = "It does not know server/discover (-32601); initialize succeeded."
    server = changed(
        after_success(make(), "echo"),
        remembered=found,
        found_how=how,
        protocol_version="2025-06-18",
    )
    facts = facts_of(member_client, server)
    assert facts["Transport"] == words
    assert facts["Protocol revision"] == "2025-06-18"
    assert facts["Handshake"] == how


def test_a_unix_server_shows_socket_and_address(member_client: Client) -> None:
    """U12."""
    facts = facts_of(member_client, unix_server())
    assert facts["Socket"] == "/run/engine/mcp.sock"
    assert facts["URI"] == "http://localhost/mcp"
    assert "URL" not in facts


def test_every_limit_in_force_is_shown_with_its_source(member_client: Client) -> None:
    """A37-A43, U44, U48."""
    server = http_server(
        options={"limits_profile": "strict", "max_tools": 7, "tool_timeout_secs": 300.0}
    )
    html = sheet(member_client, server)
    rows = re.findall(
        r"<code>(\w+)</code></th>\s*<td>(.*?)</td>\s*<td>(.*?)</td>",
        html.replace("<wbr>", ""),
        flags=re.S,
    )
    limits = {name: (value, source) for name, value, source in rows}
    assert limits["max_tools"] == ("7", "Set here")
    assert limits["tool_timeout_secs"] == ("300 s", "Set here")
    assert limits["max_message_bytes"] == ("256 KiB", "Profile strict")
    assert limits["connect_timeout_secs"] == ("30 s", "Default")
    assert limits["max_inflight_calls"] == ("4", "Default")
    assert "start_timeout_secs" not in limits
    assert "3 set here" in html


def test_a_token_whose_secret_is_missing_is_a_warning(member_client: Client) -> None:
    """U27."""
    server = http_server(options={"token_ref": "@NOT_THERE"})
    html = sheet(member_client, server)
    assert "There is no secret named NOT_THERE" in html
    assert '<span class="facts-warning">' in html


def test_which_credential_wins_is_said(member_client: Client) -> None:
    """E15, U26: one defined precedence, shown."""
    server = http_server(headers={"Authorization": "Bearer x"}, options={"token_ref": "@T"})
    assert "wins over token_ref" in facts_of(member_client, server)["Auth"]


def test_checks_of_the_last_days_stand_in_a_strip_oldest_first(member_client: Client) -> None:
    """A failure is higher than a success: colour is not alone."""
    server = http_server()
    for number, outcome in enumerate(["failed", "connected", "login_required", "cancelled"]):
        ended(server, outcome, ago=timedelta(hours=number + 1))
    ended(server, "connected", ago=timedelta(days=8))
    html = sheet(member_client, server)
    bars = re.findall(r'<rect class="check-(\w+)" x="(\d+)" y="\d+" width="5" height="(\d+)"', html)
    assert bars == [
        ("cancelled", "0", "20"),
        ("login_required", "7", "20"),
        ("connected", "14", "8"),
        ("failed", "21", "20"),
    ]
    assert "cancelled, login required, connected, connection failed" in html


def test_health_checks_that_fail_alike_make_one_line(member_client: Client, alice: User) -> None:
    server = http_server()
    for minutes in (1, 3, 7):
        ended(server, "failed", ago=timedelta(minutes=minutes), error="502")
    ended(server, "failed", ago=timedelta(minutes=9), error="503")
    asked = {"kind": "person", "requested_by": alice}
    ended(server, "failed", ago=timedelta(minutes=11), error="503", **asked)
    html = sheet(member_client, server)
    # As people read it: the ids in addresses hold any digits.
    lines = plain(html[html.index('class="checks"') :])
    assert lines.count("502") == 1
    assert "3 times since" in lines
    assert lines.count("503") == 2
    assert "alice" in lines


def test_a_sheet_with_thousands_of_tools_is_as_fast_as_one_with_a_page_of_them(
    member_client: Client,
) -> None:
    """As many questions and hardly more text, a policy that judges all included."""
    policy = Policy("guarded", blocked_tools=("t1",))
    server = after_success(http_server(policy=policy), *(f"t{i}" for i in range(60)))
    ended(server, "connected", ago=timedelta(), changes={"added": ["t3"]})
    with CaptureQueriesContext(connection) as few:
        small = sheet(member_client, server)
    Tool.objects.bulk_create(
        Tool(server=server, position=i, name=f"t{i}", content_hash="0") for i in range(60, 3000)
    )
    changed(server, tool_count=3000)
    with CaptureQueriesContext(connection) as many:
        large = sheet(member_client, server)
    assert len(many) == len(few) <= 12
    assert len(large) < len(small) + 1000
    assert "50 of 3000" in plain(large)


def test_the_form_asks_equally_often_for_any_number_of_tools(
    administrator_client: Client, django_assert_num_queries: Any
) -> None:
    server = after_success(http_server(policy=Policy(blocked_tools=("b",))), "a", "b")
    address = reverse("servers:edit", args=[server.pk])
    with CaptureQueriesContext(connection) as few:
        administrator_client.get(address)
    Tool.objects.bulk_create(
        Tool(server=server, position=i, name=f"t{i}", content_hash="0") for i in range(2, 300)
    )
    with django_assert_num_queries(len(few)):
        administrator_client.get(address)
    assert len(few) <= 12


def test_tests_of_people_stay_lines_of_their_own(member_client: Client, alice: User) -> None:
    server = http_server()
    for minutes in (1, 3):
        ended(server, "failed", ago=timedelta(minutes=minutes), kind="person", error="502")
    html = sheet(member_client, server)
    lines = html[html.index('class="checks"') :]
    assert lines.count("502") == 2
    assert "times since" not in lines


def test_a_check_under_way_is_no_line_of_others(member_client: Client) -> None:
    server = http_server()
    ended(server, "failed", ago=timedelta(minutes=1), error="502")
    Check.objects.create(server=server, connection_version=1, kind="health")
    html = sheet(member_client, server)
    assert "Waiting for a worker" in html
    assert html[html.index('class="checks"') :].count("<li>") == 2


def test_the_hint_of_the_last_error_outlives_a_cancelled_test(member_client: Client) -> None:
    server = http_server()
    store_failure(server, ServerUnavailable("It refused the connection."))
    told = {"error": "It refused the connection.", "hint": "Is it running?"}
    ended(server, "failed", ago=timedelta(minutes=2), **told)
    ended(server, "cancelled", ago=timedelta(minutes=1))
    assert "Is it running?" in state_of(member_client, server)
    # What a run met since then is another fault.
    store_failure(server, ServerUnavailable("No such host."))
    assert "Is it running?" not in state_of(member_client, server)


def test_a_secret_that_is_missing_leads_to_the_secrets(
    administrator_client: Client, member_client: Client
) -> None:
    server = http_server()
    store_failure(server, ServerUnavailable(str(SecretNotFound("NOPE"))))
    assert "Open Secrets" in state_of(administrator_client, server)
    assert "Open Secrets" not in state_of(member_client, server)
    server = http_server("token", options={"token_ref": "@NOT_THERE"})
    assert "Open Secrets" in facts_of(administrator_client, server)["Auth"]
    assert "Open Secrets" not in facts_of(member_client, server)["Auth"]


def news_of(client: Client, server: Server, seen: str) -> tuple[str, str]:
    """The place for news, and what a screen reader says."""
    response = client.get(reverse("servers:news", args=[server.pk]), {"seen": seen})
    said = json.loads(response.get("HX-Trigger", "{}"))
    return response.content.decode(), said.get("announce", "")


def test_a_sheet_that_is_out_of_date_offers_to_renew_itself(member_client: Client) -> None:
    """It listens to the list's watch and changes nothing under the pointer."""
    server = after_success(http_server(), "echo")
    html = sheet(member_client, server)
    address = re.search(rf'hx-get="[^"]*/news/\?seen=([^"]*)" hx-trigger="row-{server.pk} ', html)
    assert address
    assert reverse("servers:changes") in html
    place, said = news_of(member_client, server, unquote(address[1]))
    assert "New result" not in html + place
    assert f'hx-trigger="row-{server.pk} ' in place
    assert said == ""
    store_failure(server, ServerUnavailable("It refused the connection."))
    place, said = news_of(member_client, server, unquote(address[1]))
    assert "New result" in place
    assert "hx-trigger" not in place
    assert said == f"There is a new result of {server.name}"


@pytest.mark.parametrize("change", [{"version": 2}, {"enabled": False}])
def test_an_edit_and_a_switch_are_news_too(change: dict[str, Any], member_client: Client) -> None:
    server = http_server()
    seen = member_client.get(reverse("servers:detail", args=[server.pk])).context["seen"]
    changed(server, **change)
    assert "New result" in news_of(member_client, server, seen)[0]


def test_what_the_address_says_was_seen_is_not_believed(member_client: Client) -> None:
    place, _ = news_of(member_client, http_server(), '"><script>alert(1)</script>')
    assert "<script>" not in place
