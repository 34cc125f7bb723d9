"""What people do with sandboxes, with packages from the real registries: as the user who runs the
tests and as a plain user (issue 5, section 6; P6, P20, P22-P24).

A second server of each kind stands for one that was never started, whose package is in no cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from jobs.network import NEEDS_DOWNLOAD
from tests.real.conftest import Site, eventually
from tests.real.plain_sites import USERS, site_of
from tests.real.registries import registries

pytestmark = pytest.mark.real

INSTALL = """#!/bin/bash
set -e
python3 -m pip install -q --target p humanize
PYTHONPATH=p python3 -c 'import humanize; print(humanize.intcomma(1234567))'
npm init -y > /dev/null
npm install --silent left-pad
node -p "require('left-pad')('5', 3, '0')"
uv venv -q v
uv pip install -q -p v/bin/python six
v/bin/python -c 'import six; print(six.PY3)'
"""
# Each by itself, and how long it took to fail.
INSTALL_ANYWAY = """#!/bin/bash
try() { SECONDS=0; "$@" > /dev/null 2>&1 && echo "installed" || echo "failed $((SECONDS > 5))"; }
try python3 -m pip install -q --target p humanize
try npm install --silent left-pad
try uv pip install -q --target q six
"""
SERVERS = {
    "everything": ["npx", "-y", "@modelcontextprotocol/server-everything@2026.8.31"],
    "time": ["uvx", "mcp-server-time@2026.10.19"],
}
NEVER_STARTED = {
    "memory": ["npx", "-y", "@modelcontextprotocol/server-memory@2026.8.31"],
    "fetch": ["uvx", "mcp-server-fetch@2026.10.24"],
}
CALLS = """#!/bin/bash
set -e
ump mcp call everything echo '{"message": "hi"}'
ump mcp call time get_current_time '{"timezone": "Europe/Berlin"}'
"""


@pytest.fixture(scope="module", params=USERS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site_of(request.param, {"UMPTEENTH_MCP__AUTO_CONNECT": "false"}) as site:
        site.migrate()
        for name, (command, *args) in {**SERVERS, **NEVER_STARTED}.items():
            site.ask("add_server", name, "stdio", {"command": command, "args": args})
        site.start("worker")
        eventually(lambda: site.ask("workers"), "the worker's report")
        yield site


def run(site: Site, name: str, script: str, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The run of a new job as it ended, and its events."""
    site.ask("create", json.dumps({"name": name, "script": script, **fields}))
    run_id = site.ask("start", name)

    def over() -> dict[str, Any] | None:
        shown: dict[str, Any] = site.ask("show", run_id)
        return shown if shown["finished_at"] else None

    shown = eventually(over, f"the end of {name}", 100)
    return shown, site.ask("events", run_id)


def payloads(events: list[Any], kind: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in events if event["kind"] == kind]


def output(events: list[Any]) -> str:
    return "".join(payload["text"] for payload in payloads(events, "output"))


def test_a_job_installs_packages_through_internet_access(site: Site) -> None:
    """P20, P22: and its timeline says where they came from."""
    shown, events = run(site, "installs", INSTALL)
    assert shown["status"] == "succeeded", events
    assert output(events).split() == ["1,234,567", "005", "True"]
    assert {payload["host"] for payload in payloads(events, "network.connected")} == registries()


def test_allowed_domains_are_enough_for_it(site: Site) -> None:
    shown, events = run(
        site, "installs from few", INSTALL, network="domains", domains=sorted(registries())
    )
    assert shown["status"] == "succeeded", events
    assert payloads(events, "network.refused") == []


def test_servers_are_started_from_the_registries(site: Site) -> None:
    """P6, P24: by npx -y and by uvx, in a Test, and in runs with what that one has left."""
    checks = site.ask("test", list(SERVERS))

    def tested() -> list[str]:
        found: list[str] = site.ask("outcomes", checks)
        return [] if {"queued", "running"} & set(found) else found

    assert eventually(tested, "both Tests", 100) == ["connected"] * 2, site.ask("errors", checks)
    for name, network in (("first", "internet"), ("second", "internet"), ("third", "none")):
        servers = dict.fromkeys(SERVERS, "all")
        shown, events = run(site, name, CALLS, servers=servers, network=network)
        assert shown["status"] == "succeeded", events
        assert [payload["ok"] for payload in payloads(events, "tool.result")] == [True] * 2
        assert "Echo: hi" in output(events)
        assert "Europe/Berlin" in output(events)
        # The registries are asked once a day.
        assert payloads(events, "network.connected") == []


def test_without_network_they_say_at_once_what_they_need(site: Site) -> None:
    """P22, P23: not after npm's retries, which take more than a minute."""
    wait = "".join(f"ump mcp tools {name}\n" for name in NEVER_STARTED)
    servers = dict.fromkeys(NEVER_STARTED, "all")
    _, events = run(site, "alone", wait, network="none", servers=servers)
    begun = datetime.fromisoformat(events[0]["at"])
    unavailable = [event for event in events if event["kind"] == "server.unavailable"]
    assert {event["payload"]["server"] for event in unavailable} == set(NEVER_STARTED)
    for event in unavailable:
        assert NEEDS_DOWNLOAD in event["payload"]["hint"]
        assert (datetime.fromisoformat(event["at"]) - begun).total_seconds() < 4
    assert payloads(events, "network.connected") == []


def test_without_network_a_script_installs_nothing(site: Site) -> None:
    _, events = run(site, "installs nothing", INSTALL_ANYWAY, network="none")
    assert output(events).splitlines() == ["failed 0"] * 3
