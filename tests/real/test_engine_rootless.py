"""Rootless Podman under a worker that is a plain user: whole runs and servers in its containers,
and Run as root, which no other engine can have (issue 5, section 1; P6, P7, P20, P22, P24, P26)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.skipping import ROOT_SKIPS
from tests.real.conftest import Site, eventually
from tests.real.engines import IMAGE, rootless_podman
from tests.real.plain_sites import site_of
from tests.real.sandboxes import processes_with

pytestmark = pytest.mark.real

SCRIPT = """#!/bin/bash
ump output set who "$(id -un) in $HOME"
ump output set answer "$(ump mcp call fake echo '{"text": "hello"}')"
mkdir -p /ump/outputs/deep
echo private > /ump/outputs/deep/a.txt
chmod 600 /ump/outputs/deep/a.txt
curl -sS -o /dev/null --noproxy '' http://169.254.169.254/latest/
touch /usr/x /etc/x
grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with rootless_podman() as podman, site_of("plain", podman.variables) as made:
        done = made.run("migrate")
        assert done.returncode == 0, done.stderr
        assert made.run("secret", "set", "KEY", input="the key").returncode == 0
        command = ["python3", str(made.code / "tests/fakes/mcp_server.py")]
        for name, options in (("fake", []), ("keyed", ["--env=KEY={{secret:KEY}}"])):
            done = made.run("mcp", "add", name, *options, "--", *command)
            assert done.returncode == 0, done.stderr
        made.start("worker")
        yield made


def run_of(
    site: Site, name: str, *, root: bool
) -> tuple[dict[str, object], list[dict[str, object]]]:
    servers = {"fake": "all", "keyed": "all"}
    job = {"name": name, "script": SCRIPT, "servers": servers, "run_as_root": root}
    site.ask("create", json.dumps({**job, "network": "internet"}))
    shown = site.json("job", "run", name, "--wait")
    events = site.ask("events", shown["id"])
    assert (shown["status"], shown["error"]) == ("succeeded", ""), (shown["error"], events)
    return shown["outputs"], events


def of_kind(events: list[Any], kind: str) -> list[Any]:
    return [event["payload"] for event in events if event["kind"] == kind]


@pytest.mark.parametrize("root", [False, True], ids=["agent", "root"])
def test_a_run_does_its_work_and_leaves_its_files(site: Site, root: bool) -> None:
    """P26: root is the worker's own user outside, who goes without a server with variables."""
    outputs, events = run_of(site, f"whole {root}", root=root)
    assert outputs["who"] == ("root in /root" if root else "agent in /home/agent")
    assert "hello" in json.dumps(outputs["answer"])
    assert of_kind(events, "artifact") == [{"name": "deep/a.txt", "size": 8}]
    skipped = [{"server": "keyed", "reason": ROOT_SKIPS}] if root else []
    assert of_kind(events, "server.skipped") == skipped
    said = json.dumps(events)
    assert "network.refused" in said
    for path in ("/usr/x", "/etc/x"):
        assert f"'{path}': Read-only" in said
    assert "NoNewPrivs:\\t1" in said
    assert "Seccomp:\\t2" in said
    assert list((site.data_dir / "runs").iterdir()) == []


def test_a_server_is_tested_with_its_variables_and_a_home_that_stays(site: Site) -> None:
    """P6, P24."""
    for _ in range(2):
        assert site.json("mcp", "test", "keyed")["outcome"] == "connected"


def test_doctor_says_what_is_not_limited_and_that_root_can_be_had(site: Site) -> None:
    said = site.run("doctor").stdout
    assert f"starts from the image {IMAGE}" in said
    assert "cannot run as root" not in said
    hierarchies = Path("/sys/fs/cgroup/cgroup.controllers")
    if not hierarchies.exists():  # v1, which rootless engines have no part of
        assert "does not limit the memory of sandboxes" in said


def test_nothing_is_left(site: Site) -> None:
    eventually(lambda: not processes_with("/ump/listen"), "the end of all sandboxes")
