"""Lines of the timeline: what each kind of event says, and the values behind it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from jobs.models import Run, RunEvent
from jobs.skipping import ROOT_SKIPS
from jobs.views.panes import panes_of
from jobs.views.words import describe
from tests.fakes.runs import make_job
from tests.fakes.timelines import add, call, result, run_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return run_of(make_job())


def page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        ("broker.call", {"command": "state_set", "key": "k", "ok": True}, "ump state set"),
        ("broker.call", {"command": "mcp_tools", "count": 3, "ok": True}, "3 found"),
        ("script.exit", {"code": 3, "timed_out": False}, "Script ended with exit code 3"),
        ("script.exit", {"code": None, "timed_out": False}, "Script stopped<"),
        ("script.exit", {"code": None, "timed_out": True}, "Script stopped at the time limit"),
        (
            "script.exit",
            {"code": 137, "timed_out": False, "limit": "memory"},
            "Script ended at its limit of memory<",
        ),
        (
            "server.connected",
            {"server": "time", "tools": 1, "transport": "stdio"},
            "1 tool · stdio",
        ),
        (
            "server.connected",
            {"server": "engine", "tools": 2, "transport": "http", "socket": True},
            "2 tools · http over a Unix socket",
        ),
        (
            "server.connected",
            {"server": "time", "tools": 1, "after": "The server ended with exit code 3."},
            "Connected again",
        ),
        ("server.skipped", {"server": "time", "reason": "disabled"}, "Disabled."),
        ("network.connected", {"host": "packages.example", "port": 443}, "packages.example:443"),
        ("network.connected", {"host": "2001:db8::7", "port": 80}, "[2001:db8::7]:80"),
        (
            "network.refused",
            {"host": "intranet", "port": 80, "reason": "intranet is private."},
            "intranet is private.",
        ),
        ("network.refused", {"host": "a.example", "reason": "no", "count": 3}, "3 times"),
        ("network.failed", {"host": "a.example", "reason": "No answer came."}, "No answer came."),
        (
            "sandbox.create",
            {"adapter": "engine", "image": "tools:1", "user": "agent", "network": "internet"},
            "engine · tools:1 · Internet access",
        ),
        ("sandbox.create", {"adapter": "bubblewrap", "user": "root"}, "bubblewrap · as root"),
        ("sandbox.destroy", {}, "Sandbox ended"),
        ("fail", {"reason": "no data"}, "Script reported a failure"),
        ("run.status", {"status": "timed_out"}, "Timed out"),
        ("artifact", {"name": "report.csv", "size": 3}, "report.csv"),
        ("outputs.set", {"name": "count", "value": 12}, "Output count"),
    ],
)
def test_each_kind_of_event_reads_as_words(
    member_client: Client, run: Run, kind: str, payload: dict[str, Any], words: str
) -> None:
    add(run, kind, payload)
    assert words in page(member_client, f"/runs/{run.pk}/")


def test_a_sandbox_names_the_limits_that_it_is_not_held_to(run: Run) -> None:
    add(run, "sandbox.create", {"adapter": "bubblewrap", "unenforced": ["Processors are not."]})
    event = RunEvent.objects.get(run=run, kind="sandbox.create")
    assert [(pane.label, pane.raw) for pane in panes_of(event)][1:] == [
        ("Limits that are not held", "Processors are not.")
    ]


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("connected", "ok"), ("refused", "refused"), ("failed", "error")],
)
def test_what_the_proxy_did_has_a_word_and_a_shape(run: Run, kind: str, outcome: str) -> None:
    payload = {"host": "a.example", "port": 443, "server": "time", "reason": "no answer came"}
    add(run, f"network.{kind}", payload)
    event = RunEvent.objects.get(kind=f"network.{kind}")
    line = describe(event)
    assert (line.title, line.outcome, line.server) == ("a.example:443", outcome, "time")
    # The whole reason can be read on a phone, too.
    assert line.has_body is (kind != "connected")


def test_the_whole_reason_of_a_skip_can_be_read(run: Run) -> None:
    """P26"""
    add(run, "server.skipped", {"server": "brave", "reason": ROOT_SKIPS})
    event = RunEvent.objects.get(kind="server.skipped")
    assert describe(event).has_body
    assert [pane.raw for pane in panes_of(event)] == [ROOT_SKIPS]


def test_a_key_that_is_not_there_is_an_answer_and_no_error(member_client: Client, run: Run) -> None:
    add(run, "broker.call", {"command": "state_get", "key": "n", "found": False, "ok": True})
    html = page(member_client, f"/runs/{run.pk}/")
    assert "n: no such key" in html
    assert "is-error" not in html
    assert " open>" not in html.partition('id="timeline"')[2]


def test_an_unavailable_server_shows_its_last_words(member_client: Client, run: Run) -> None:
    details = {"hint": "Install npx.", "exit_code": 127, "stderr_tail": "npx: not found"}
    payload = {"server": "x", "message": "MCP server x is unavailable", "reason": "It ended."}
    add(run, "server.unavailable", payload | details)
    html = page(member_client, f"/runs/{run.pk}/")
    for words in ("Install npx.", "127", "npx: not found", "It ended."):
        assert words in html


def test_an_error_of_a_tool_is_shown_once(member_client: Client, run: Run) -> None:
    number = call(run, "s1")
    result(run, "s1", "needle", ok=False)
    html = page(member_client, f"/runs/{run.pk}/events/{number}/")
    assert html.count(">needle</pre>") == 1
    assert "<h3>Error</h3>" in html


def test_a_structured_result_is_not_repeated_as_text(member_client: Client, run: Run) -> None:
    number = call(run, "s1")
    result(run, "s1", '{"sum": 5}', structured={"sum": 5})
    html = page(member_client, f"/runs/{run.pk}/events/{number}/")
    assert "<h3>Result</h3>" in html
    assert "<h3>Text</h3>" not in html


def test_a_deep_or_wide_value_is_cut(member_client: Client, run: Run) -> None:
    """I17: nested 5,000 deep, or with thousands of keys."""
    deep: Any = 1
    for _ in range(300):
        deep = {"a": deep}
    number = add(run, "tool.call", {"tool": "t", "arguments": {"deep": deep, "wide": [0] * 3000}})
    html = page(member_client, f"/runs/{run.pk}/events/{number}/")
    assert "{…}" in html
    assert "more</span></li>" in html
    assert html.count("<li>") < 700
