"""Whole runs as root of their sandbox, and homes of servers that grow too large: as the user who
runs the tests and as a plain user (P7, P8, P21, P26).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jobs.skipping import ROOT_SKIPS
from tests.real.conftest import Site, eventually
from tests.real.plain_sites import USERS, site_of

pytestmark = pytest.mark.real

FAKE = "tests/fakes/mcp_server.py"
# Files of its own are all that root may change, also those that it closed to itself.
AS_ROOT = """#!/bin/bash
set -e
[ "$(id -u)" = 0 ]
echo first > kept && chmod 0 kept && cat kept
mkdir -p /ump/outputs/deep && echo result > /ump/outputs/deep/a.txt
ump mcp call plain echo '{"message": "hi"}'
ump mcp call keyed echo '{}' || echo "not there"
ump state set seen '"by root"'
ump output set who "$(id -un) in $HOME"
"""
# It grows while it runs, and says nothing in the protocol.
GROWS = """
import os, sys
open(os.environ["HOME"] + "/big", "wb").write(b"x" * (40 << 20))
for line in sys.stdin:
    pass
"""


@pytest.fixture(scope="module", params=USERS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    variables = {
        "UMPTEENTH_MCP__AUTO_CONNECT": "false",
        "UMPTEENTH_SANDBOX__SERVER_HOME_LIMIT": "16",
    }
    with site_of(request.param, variables) as site:
        site.migrate()
        fake = ["/usr/bin/python3", str(site.code / FAKE)]
        for words in (
            ["plain", "--", *fake],
            ["keyed", "--env=KEY=secret-of-the-server", "--", *fake],
            ["grows", "--", "/usr/bin/python3", "-c", GROWS],
        ):
            done = site.run("mcp", "add", *words)
            assert done.returncode == 0, done.stderr
        site.start("worker")
        eventually(lambda: site.ask("workers"), "the worker's report")
        yield site


def payloads(events: list[Any], kind: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in events if event["kind"] == kind]


def test_a_run_as_root_does_its_work_and_goes_without_a_server_with_variables(site: Site) -> None:
    """P26: what it leaves is collected, and its directory removed, whoever runs the worker."""
    job = {"name": "as root", "script": AS_ROOT, "servers": {"plain": "all", "keyed": "all"}}
    site.ask("create", json.dumps({**job, "run_as_root": True, "network": "none"}))
    shown = site.json("job", "run", "as root", "--wait")
    events = site.ask("events", shown["id"])
    assert (shown["status"], shown["error"]) == ("succeeded", ""), events
    assert shown["outputs"] == {"who": "root in /root"}
    assert payloads(events, "artifact") == [{"name": "deep/a.txt", "size": 7}]
    assert payloads(events, "server.skipped") == [{"server": "keyed", "reason": ROOT_SKIPS}]
    assert [payload["server"] for payload in payloads(events, "server.connected")] == ["plain"]
    said = "".join(payload["text"] for payload in payloads(events, "output"))
    assert "first\n" in said
    assert "not there\n" in said
    assert list((site.data_dir / "runs").iterdir()) == []


def test_a_server_whose_home_grows_too_large_is_ended_and_says_so(site: Site) -> None:
    """P21: while it runs, at its next start, and no more once its home is cleared."""
    words = "The server was ended: its home holds more than 16 MiB (sandbox.server_home_limit)"
    for _ in range(2):
        tested = site.json("mcp", "test", "grows")
        assert tested["outcome"] == "failed"
        assert words in tested["error"]
        assert "umpteenth mcp clear-home" in tested["error"]
    [home] = [path for path in (site.data_dir / "homes").iterdir() if (path / "big").exists()]
    cleared = site.json("mcp", "clear-home", "grows")
    assert cleared["freed_bytes"] > 16 * 1024**2
    assert not home.exists()
