"""Servers that fail a run: each is named with its reason, and none of them gives anything away."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from jobs.models import Run, RunEvent
from secrets_vault.services import set_secret
from servers.definition import Entry
from servers.mcp.types import CallResult, LoginRequired, ServerError, ServerUnavailable
from servers.models import Check, Server
from tests.fakes.executions import UMP, attach, execute, without_a_machine
from tests.fakes.runs import FakeServer, FakeServers, make_job, output_of, payloads_of, unavailable

pytestmark = pytest.mark.django_db(transaction=True)

CANARY = "s3cr3t-horse-battery"
SECRET_HEADER = (Entry("X-Key", "{{secret:KEY}}"),)


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    return without_a_machine(monkeypatch)


def reasons(run: Run) -> dict[str, str]:
    return {event["server"]: event["reason"] for event in payloads_of(run, "server.unavailable")}


@pytest.mark.parametrize("order", list(permutations(["bad", "good", "fine"])))
def test_one_broken_server_costs_its_own_tools_in_any_order(
    servers: FakeServers, order: tuple[str, ...]
) -> None:
    """F13, A45, P71."""
    servers["bad"] = FakeServer(error=ServerUnavailable("Command not found: no-such-command"))
    servers["fine"] = FakeServer()
    calls = "; ".join(f"ump mcp call {name} echo '{{}}'" for name in order if name != "bad")
    job = make_job(script=UMP + f"ump mcp tools --json; {calls}\n")
    for name in order:
        attach(job, name)
    run = execute(job)
    assert run.status == "succeeded"
    assert reasons(run) == {"bad": "Command not found: no-such-command"}
    assert len(payloads_of(run, "server.connected")) == 2
    assert len(servers["good"].calls) == len(servers["fine"].calls) == 1
    assert not payloads_of(run, "error")


@pytest.mark.parametrize("lost", ["the server's values", "the secret"])
def test_a_key_that_is_gone_stops_the_server_in_words(servers: FakeServers, lost: str) -> None:
    """E09: nothing is sent, least of all what cannot be read."""
    set_secret(actor=None, name="KEY", value=CANARY)
    job = make_job(script=UMP + "ump mcp call good echo '{}' || echo went on\n")
    attach(job, headers=SECRET_HEADER)
    if lost == "the secret":
        from secrets_vault.models import Secret

        Secret.objects.update(key_id="gone")
    else:
        Server.objects.update(key_id="gone")
    run = execute(job)
    assert "cannot be decrypted" in reasons(run)["good"]
    assert servers.connected_with == {}
    assert (run.status, output_of(run)) == ("succeeded", "went on\n")


@pytest.mark.parametrize(
    "error",
    [
        ServerUnavailable(f"500: {CANARY}", f"Not {CANARY}", stderr_tail=f"key={CANARY}"),
        LoginRequired(f"401 Unauthorized: {CANARY}"),
        ZeroDivisionError(CANARY),
    ],
    ids=["failure", "login", "a fault of ours"],
)
def test_a_secret_in_a_failure_reaches_no_row(
    servers: FakeServers, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """E11: neither events nor states nor checks nor what the script sees."""
    servers["good"].error = error
    set_secret(actor=None, name="KEY", value=CANARY)
    job = make_job(script=UMP + "ump mcp call good echo '{}' 2>&1; ump mcp tools good 2>&1\n")
    attach(job, headers=SECRET_HEADER)
    run = execute(job)
    assert "[secret KEY]" in reasons(run)["good"]
    assert CANARY not in everything_stored()
    assert "unavailable" in output_of(run)


def test_a_secret_in_the_answers_reaches_no_row(servers: FakeServers) -> None:
    """E11: results, errors of calls, notices and progress."""
    set_secret(actor=None, name="KEY", value=CANARY)
    answers: list[Any] = [
        CallResult(ok=True, text=CANARY, structured={CANARY: [CANARY]}, warnings=[CANARY]),
        CallResult(ok=True, text="", content=[{"type": "hologram", "a": CANARY}]),
        CallResult(ok=False, text=CANARY, error=CANARY),
        ServerError(f"lost {CANARY}"),
    ]

    def answer(_name: str, _arguments: dict[str, Any]) -> CallResult:
        observer = servers["good"].observer
        assert observer is not None
        observer.notice(f"asked for {CANARY}")
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        result: CallResult = found
        return result

    servers["good"].answer = answer
    servers["good"].reports = [(1, 2, f"working on {CANARY}")]
    job = make_job(script=UMP + "for n in 1 2 3 4; do ump mcp call good echo '{}' || true; done\n")
    attach(job, headers=SECRET_HEADER)
    run = execute(job)
    assert (run.status, answers) == ("succeeded", [])
    stored = everything_stored()
    assert stored.count("[secret KEY]") > 6
    assert CANARY not in stored


def everything_stored() -> str:
    tables = [Run, RunEvent, Check, Server]
    rows = [list(table.objects.values()) for table in tables]  # type: ignore[attr-defined]
    return json.dumps(rows, default=str)


def test_where_nothing_can_be_used_a_person_reads_it_at_once(servers: FakeServers) -> None:
    """F14: all answer 401; each is named, and the run says what it goes without."""
    for name in ("one", "two"):
        servers[name] = FakeServer(error=LoginRequired("The server requires a login: 401"))
    servers["good"].error = unavailable("Connection refused")
    job = make_job(script=UMP + "ump mcp tools || true\n")
    for name in ("one", "two", "good"):
        attach(job, name)
    run = execute(job)
    assert set(reasons(run)) == {"one", "two", "good"}
    [warning] = payloads_of(run, "error")
    assert warning["message"].startswith("None of this run's MCP servers is available")
