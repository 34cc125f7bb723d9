"""The test dialog and its page."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from secrets_vault.errors import SecretNotFound
from servers import checks
from servers.models import Check, Server
from tests.fakes.server_rows import after_success, http_server, stdio_server
from umpteenth.accounts.models import User
from umpteenth.core.config import get_options

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


def made(server: Server, **values: Any) -> Check:
    values = {"connection_version": server.connection_version, **values}
    return Check.objects.create(server=server, **values)


def ended(server: Server, outcome: str, **values: Any) -> Check:
    """A check that took 90 seconds."""
    now = timezone.now()
    times = {"started_at": now, "finished_at": now + timedelta(seconds=90)}
    check = made(server, status="done", outcome=outcome, **{**times, **values})
    Check.objects.filter(pk=check.pk).update(created_at=now)
    return check


def poll(client: Client, check: Check, seen: int = 0) -> HttpResponse:
    address = reverse("servers:check", args=[check.pk])
    return client.get(address, {"seen": str(seen)}, headers=HTMX)  # type: ignore[return-value]


def shown(client: Client, check: Check) -> str:
    return client.get(reverse("servers:check", args=[check.pk])).content.decode()


def test_members_may_test(member_client: Client, member: User) -> None:
    server = http_server()
    response = member_client.post(reverse("servers:test", args=[server.pk]))
    check = Check.objects.get()
    assert response.status_code == 303
    assert response["Location"] == reverse("servers:check", args=[check.pk])
    assert check.requested_by == member


def test_the_button_answers_with_the_dialog_and_refreshes_the_row(member_client: Client) -> None:
    server = http_server()
    response = member_client.post(reverse("servers:test", args=[server.pk]), headers=HTMX)
    text = response.content.decode()
    assert "Waiting for a worker" in text
    assert 'hx-trigger="every 500ms"' in text
    assert f"server-{server.pk}" in json.loads(response["HX-Trigger"])


def test_the_page_survives_a_reload(member_client: Client) -> None:
    check = made(http_server())
    assert "Waiting for a worker" in shown(member_client, check)
    assert "Cancel" in shown(member_client, check)


def test_a_poll_says_a_new_step_once(member_client: Client) -> None:
    steps = [{"label": "Starting npx", "ms": 12.0}, {"label": "Connecting", "ms": None}]
    check = made(stdio_server(), status="running", started_at=timezone.now(), steps=steps)
    response = poll(member_client, check, seen=1)
    text = response.content.decode()
    assert json.loads(response["HX-Trigger"]) == {"announce": "Connecting"}
    assert text.lstrip().startswith('<div id="check-progress"')
    assert "12 ms" in text
    assert "HX-Trigger" not in poll(member_client, check, seen=2)


def test_the_last_line_of_stderr_is_shown_while_it_waits(member_client: Client) -> None:
    """C10."""
    check = made(stdio_server(), status="running", last_stderr="npm http fetch GET 200")
    assert "npm http fetch GET 200" in shown(member_client, check)


def test_seconds_pass(member_client: Client) -> None:
    with time_machine.travel(timezone.now(), tick=False) as clock:
        check = made(http_server())
        clock.shift(timedelta(seconds=7))
        text = shown(member_client, check)
    assert "7.0 s" in text
    assert "umpteenth up" in text


def test_the_answer_of_a_finished_check_ends_the_polling(member_client: Client) -> None:
    server = after_success(http_server(), "echo")
    response = poll(member_client, ended(server, "connected", tool_count=1))
    assert response["HX-Retarget"] == "#check"
    assert "every 500ms" not in response.content.decode()
    events = json.loads(response["HX-Trigger"])
    assert events["announce"] == "Connected: github"
    assert f"server-{server.pk}" in events


def test_a_test_that_passed_does_not_promise_what_a_job_lacks(member_client: Client) -> None:
    """P25"""
    words = "the server may still fail to start, and the timeline of the first run shows it"
    assert words in shown(member_client, ended(stdio_server(), "connected"))
    assert words not in shown(member_client, ended(http_server(), "connected"))
    assert words not in shown(member_client, ended(stdio_server("other"), "failed"))


def test_a_test_that_missed_its_command_tells_of_environments_of_jobs(
    member_client: Client,
) -> None:
    """P25: such a command cannot pass it."""
    words = "A command that only the environment of a job has cannot pass a Test"
    missing = ended(stdio_server(), "failed", error="Command not found: x", exit_code=127)
    assert words in shown(member_client, missing)
    failed = ended(stdio_server("other"), "failed", error="It ended", exit_code=1)
    assert words not in shown(member_client, failed)


@pytest.mark.parametrize("outcome", ["connected", "failed"])
def test_what_it_was_tested_with_is_said(
    member_client: Client, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """P24, P25: the jobs' settings do not count."""
    check = ended(stdio_server(), outcome)
    page = shown(member_client, check)
    assert "Tested with internet access and the private network, in the default environment" in page
    options = get_options()
    network = options.network.model_copy(update={"allow_private_targets": False})
    changed = options.model_copy(update={"network": network})
    monkeypatch.setattr("servers.views.checks.get_options", lambda: changed)
    assert "Tested with internet access, in the default environment" in shown(member_client, check)
    assert "Tested with" not in shown(member_client, ended(http_server("web"), outcome))


def test_connected_shows_the_tools_and_what_changed(member_client: Client) -> None:
    """P30."""
    server = after_success(http_server(), "echo", "add")
    changes = {"added": ["add"], "removed": ["old"], "changed": []}
    warnings = ["Tool “x” is left out"]
    check = ended(server, "connected", tool_count=2, changes=changes, warnings=warnings)
    text = shown(member_client, check)
    for words in ("Connected", "About echo", "New since the last success", "Gone", "left out"):
        assert words in text


@pytest.mark.parametrize("outcome", ["connected", "failed"])
def test_what_happened_by_itself_is_told(outcome: str, member_client: Client) -> None:
    """Questions that were declined, sessions that were renewed (issue 3, section 5)."""
    notices = ["The server asked <who>; it was declined.", "The session was renewed."]
    text = shown(member_client, ended(http_server(), outcome, error="x", notices=notices))
    assert "The server asked &lt;who&gt;; it was declined." in text
    assert "The session was renewed." in text


def test_a_success_says_how_transport_and_revision_were_found(member_client: Client) -> None:
    """U19."""
    how = "The first POST was answered with 405, so legacy SSE was tried."
    facts = {"transport": "sse", "protocol_version": "2024-11-05", "found_how": how}
    text = shown(member_client, ended(http_server(), "connected", **facts))
    assert "revision 2024-11-05 · legacy SSE" in text
    assert how in text


@pytest.mark.parametrize(
    ("kind", "title", "who"),
    [
        ("person", "Test github", "Asked for by bob"),
        ("health", "Test github", "Health check"),
        ("run", "Run start with github", "Run start"),
    ],
)
def test_a_check_says_who_made_it(
    kind: str, title: str, who: str, member_client: Client, member: User
) -> None:
    """A person who joins a health check under way still sees the test that they asked for."""
    asked = member if kind == "person" else None
    text = shown(member_client, ended(http_server(), "connected", kind=kind, requested_by=asked))
    assert f"<h1>{title}" in text
    assert f'class="check-who">{who}' in text


def test_thousands_of_tools_come_in_pages(member_client: Client) -> None:
    server = after_success(http_server(), *(f"t{i}" for i in range(120)))
    text = shown(member_client, ended(server, "connected", tool_count=120))
    assert text.count('class="tool-name"') == 50
    assert "50 of 120" in text


def test_login_required_points_to_headers(
    administrator_client: Client, member_client: Client
) -> None:
    """P31, until logins exist."""
    check = ended(http_server(), "login_required", error="401 Unauthorized")
    text = shown(administrator_client, check)
    for words in ("Login required", "401 Unauthorized", "Add an Authorization header"):
        assert words in text
    assert "An administrator can add an Authorization header" in shown(member_client, check)


def test_connection_failed_shows_duration_words_cause_exit_code_and_stderr(
    member_client: Client,
) -> None:
    """P21, P32."""
    check = ended(
        stdio_server(),
        "failed",
        error="npx: not found",
        hint="Install Node.",
        exit_code=127,
        stderr_tail="sh: npx: not found",
    )
    text = shown(member_client, check)
    for words in (
        "Connection failed",
        "after 1 min 30 s",
        "npx: not found",
        "Install Node.",
        "Exit code 127",
        "End of standard error",
    ):
        assert words in text


def test_tools_of_newer_settings_are_not_shown_as_found_by_an_old_test(
    member_client: Client,
) -> None:
    server = after_success(http_server(), "echo")
    check = ended(server, "connected", connection_version=0, warnings=[checks.OUTDATED])
    text = shown(member_client, check)
    assert "what it found was not kept" in text
    assert "About echo" not in text


def test_cancel_ends_a_waiting_test(member_client: Client) -> None:
    check = made(http_server())
    address = reverse("servers:cancel_check", args=[check.pk])
    text = member_client.post(address, headers=HTMX).content.decode()
    assert "Cancelled" in text
    assert member_client.post(address).status_code == 303


def test_cancel_of_a_running_test_is_shown_at_once(member_client: Client) -> None:
    check = made(http_server(), status="running", heartbeat_at=timezone.now())
    address = reverse("servers:cancel_check", args=[check.pk])
    assert "Cancelling…" in member_client.post(address, headers=HTMX).content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_server_that_was_deleted_in_the_moment_of_the_click_is_a_404(
    member_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = http_server()
    Server.objects.all().delete()
    monkeypatch.setattr("servers.views.checks.get_server", lambda _pk: server)
    assert member_client.post(reverse("servers:test", args=[server.pk])).status_code == 404


def test_a_test_that_is_gone_is_a_404(member_client: Client) -> None:
    check = made(http_server())
    Server.objects.all().delete()
    assert poll(member_client, check).status_code == 404


def test_a_failed_step_has_a_cross_though_others_followed(member_client: Client) -> None:
    steps = [
        {"label": "Connecting", "ms": 3.0, "failed": True},
        {"label": "Connecting over SSE", "ms": 4.0},
    ]
    text = shown(member_client, ended(http_server(), "failed", error="404", steps=steps))
    states = re.findall(r'class="check-step">\s*<span class="[^"]*" data-state="(\w+)"', text)
    assert states == ["failed", "failed"]
    text = shown(member_client, ended(http_server("sse"), "connected", steps=steps))
    assert "check-step" not in text


@pytest.mark.parametrize("outcome", ["failed", "login_required", "cancelled"])
def test_without_a_step_there_is_no_list_of_steps(outcome: str, member_client: Client) -> None:
    assert "check-steps" not in shown(member_client, ended(http_server(), outcome))


def test_who_can_make_a_secret_that_is_missing_is_led_there(
    administrator_client: Client, member_client: Client
) -> None:
    link = f'href="{reverse("secrets:list")}">Open Secrets'
    missing = ended(http_server(), "failed", error=str(SecretNotFound("NOPE")))
    assert link in shown(administrator_client, missing)
    assert link not in shown(member_client, missing)
    other = ended(http_server("other"), "failed", error="Secret agents only")
    assert link not in shown(administrator_client, other)
