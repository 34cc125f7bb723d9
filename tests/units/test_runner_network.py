"""The network of a run: what its sandbox gets, and what its timeline says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.conf import settings

from jobs import definition
from jobs.egress_events import reporter
from jobs.models import Attachment, Job
from jobs.network import NEEDS_DOWNLOAD, NetworkRules
from jobs.plan import make_plan
from jobs.sandbox import base as sandbox
from jobs.sandbox import network as sandbox_network
from jobs.sandbox.base import SandboxProcess, SandboxSpec
from jobs.sandbox.egress.base import MAX_REFUSALS, Egress
from jobs.sandbox.egress.rules import EgressRules, rules_for
from jobs.sandbox.terms import Terms
from servers.mcp.types import ServerUnavailable
from tests.fakes.executions import attach, execute, without_a_machine
from tests.fakes.runs import (
    FakeServer,
    FakeServers,
    make_job,
    make_run,
    payloads_of,
    start_plainly,
)
from tests.fakes.server_rows import stdio_server
from umpteenth.core.config import NetworkOptions

pytestmark = pytest.mark.django_db(transaction=True)

ALL = ("none", "internet", "domains", "unrestricted")


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    return without_a_machine(monkeypatch)


@pytest.fixture
def specs(servers: FakeServers, monkeypatch: pytest.MonkeyPatch) -> list[SandboxSpec]:
    started: list[SandboxSpec] = []

    async def start(argv: Sequence[str], spec: SandboxSpec, **options: Any) -> SandboxProcess:
        started.append(spec)
        return await start_plainly(argv, spec, **options)

    monkeypatch.setattr(sandbox, "start", start)
    return started


def rules(job: Job) -> NetworkRules:
    return make_plan(make_run(job).pk).network


def attach_stdio(job: Job, command: str) -> None:
    server = stdio_server(command=command, args=("-y", "thing"))
    Attachment.objects.create(job=job, server=server)


def unavailable(servers: FakeServers, job: Job, command: str, hint: str = "") -> dict[str, Any]:
    servers["everything"] = FakeServer(error=ServerUnavailable("It ended.", hint))
    attach_stdio(job, command)
    [payload] = payloads_of(execute(job), "server.unavailable")
    return payload


def test_the_plan_holds_the_rules_of_the_job() -> None:
    job = make_job(network="domains", domains=["a.example"], allow_private_network=True)
    assert rules(job) == NetworkRules("domains", ("a.example",), allow_private=True)


def test_the_installation_comes_before_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """P77: a tick from before does not outlive the option."""
    job = make_job(network="internet", allow_private_network=True)
    monkeypatch.setattr("jobs.plan.private_allowed", lambda: False)
    assert rules(job) == NetworkRules("internet")
    assert definition.private_allowed()


@pytest.mark.parametrize("network", ALL)
def test_no_network_is_wider_than_its_name(specs: list[SandboxSpec], network: str) -> None:
    run = execute(make_job(network=network))
    assert run.status == "succeeded"
    assert [spec.network for spec in specs] == [network == "unrestricted"]
    assert [spec.egress is not None for spec in specs] == [network in ("internet", "domains")]


@pytest.mark.parametrize("network", ALL)
def test_stdio_servers_get_the_network_of_the_job(
    servers: FakeServers, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    """P22"""
    asked: list[Terms] = []

    def spawner(**options: Any) -> None:
        asked.append(options["terms"])

    monkeypatch.setattr("jobs.connections.get_spawner", spawner)
    servers["everything"] = FakeServer()
    job = make_job(network=network)
    attach_stdio(job, "npx")
    execute(job)
    [found] = asked
    assert found.network.unrestricted == (network == "unrestricted")
    assert (found.network.egress is not None) == (network in ("internet", "domains"))


class FakeRecorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def record(self, kind: str, payload: dict[str, Any]) -> None:
        self.events.append((kind, payload))


def test_what_the_proxy_meets_is_on_the_timeline() -> None:
    recorder = FakeRecorder()
    egress = Egress(EgressRules(NetworkRules("internet")), reporter(recorder, "files"))  # type: ignore[arg-type]
    egress.opened("packages.example", 443)
    egress.refused("10.0.0.1", 80, "It is private.")
    egress.failed("b.example", 80, "It does not answer.")
    egress.failed("", 0, "Too many.")
    assert recorder.events == [
        ("network.connected", {"host": "packages.example", "port": 443, "server": "files"}),
        (
            "network.refused",
            {"host": "10.0.0.1", "port": 80, "reason": "It is private.", "server": "files"},
        ),
        (
            "network.failed",
            {"host": "b.example", "port": 80, "reason": "It does not answer.", "server": "files"},
        ),
        ("network.failed", {"reason": "Too many.", "server": "files"}),
    ]


def test_a_full_journal_is_on_the_timeline_once() -> None:
    recorder = FakeRecorder()
    egress = Egress(EgressRules(NetworkRules("internet")), reporter(recorder))  # type: ignore[arg-type]
    for number in range(MAX_REFUSALS + 5):
        egress.refused("10.0.0.1", number + 1, "It is private.")
    assert [kind for kind, _ in recorder.events].count("log") == 1
    assert recorder.events[0][1] == {"host": "10.0.0.1", "port": 1, "reason": "It is private."}


@pytest.mark.parametrize("allowed", [True, False])
def test_a_test_has_internet_and_what_the_installation_allows(
    monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """P24"""
    options = NetworkOptions(allow_private_targets=allowed)
    monkeypatch.setattr(
        sandbox_network,
        "get_options",
        lambda: settings.OPTIONS.model_copy(update={"network": options}),
    )
    found = sandbox_network.network_of_a_test()
    assert found.egress is not None
    assert found.egress.gate == rules_for(NetworkRules("internet", allow_private=allowed))


def test_a_test_tells_what_its_server_could_not_reach() -> None:
    told: list[str] = []
    egress = sandbox_network.network_of_a_test(told.append).egress
    assert egress is not None
    egress.opened("registry.example", 443)
    egress.refused("10.0.0.1", 80, "10.0.0.1 is refused.")
    egress.failed("other.example", 443, "other.example:443 could not be reached.")
    assert told == ["10.0.0.1 is refused.", "other.example:443 could not be reached."]


@pytest.mark.parametrize("command", ["npx", "/usr/bin/uvx"])
def test_without_network_a_server_that_is_downloaded_says_what_it_needs(
    servers: FakeServers, command: str
) -> None:
    """P23"""
    payload = unavailable(servers, make_job(network="none"), command, "Look at its log.")
    assert payload["hint"] == f"{NEEDS_DOWNLOAD} Look at its log."
    assert "job setting Internet access" in NEEDS_DOWNLOAD


@pytest.mark.parametrize(("network", "command"), [("none", "time-server"), ("internet", "npx")])
def test_others_are_not_told_what_they_do_not_lack(
    servers: FakeServers, network: str, command: str
) -> None:
    assert "hint" not in unavailable(servers, make_job(network=network), command)


def test_servers_over_http_are_not_told_either(servers: FakeServers) -> None:
    servers["good"].error = ServerUnavailable("Connection refused")
    job = make_job(network="none")
    attach(job)
    [payload] = payloads_of(execute(job), "server.unavailable")
    assert "hint" not in payload
