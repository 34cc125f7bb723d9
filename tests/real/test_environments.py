"""Environments with real packages of each kind, as root and as a plain user (issue 5, section 1;
P20, P23, P25): built in a sandbox, used by scripts and by stdio servers, removed again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.sandbox.places import find_uv
from tests.real.conftest import Site, eventually
from tests.real.plain_sites import USERS, site_of

pytestmark = pytest.mark.real

TOOLS = """\
name: tools
python: [humanize==4.9.0, mcp-server-time==2026.10.19]
npm: [cowsay@1.6.0]
debian: [jq, tree]
"""
USE = """\
#!/usr/bin/env bash
set -eu
echo '{"a": [5, 6]}' | jq -c .a
tree --version | cut -d' ' -f1
python3 -c 'import humanize; print(humanize.intcomma(1234567))'
node -e 'console.log(require("cowsay").say({text: "moo"}).includes("< moo >"))'
cowsay hello | head -2 | tail -1
command -v ump
touch /ump/env/new 2>/dev/null || echo cannot write
ls /ump
"""


@pytest.fixture(scope="module", params=USERS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    uv = find_uv()
    assert uv is not None
    with tempfile.TemporaryDirectory(prefix="ump-uv-") as name:
        # A plain user has no way into the checkout where ours lies.
        for program in ("uv", "uvx"):
            shutil.copy(uv.with_name(program), name)
        Path(name).chmod(0o755)
        with site_of(request.param, {"PATH": f"{name}:{os.environ['PATH']}"}) as found:
            found.migrate()
            done = found.run("env", "build", "-", "--wait", input=TOOLS)
            assert done.returncode == 0, done.stdout + done.stderr
            yield found


# What does not depend on who the worker is.
as_own = pytest.mark.parametrize("site", ["own"], indirect=True)


def run_job(site: Site, name: str, **fields: Any) -> dict[str, Any]:
    """Make a job and run it to its end, in this command if no worker lives."""
    site.ask("create", json.dumps({"name": name, "script": USE, "network": "none", **fields}))
    shown: dict[str, Any] = site.json("job", "run", name, "--wait")
    return shown


def output_of(site: Site, run_id: str) -> str:
    events = site.ask("events", run_id)
    return "".join(
        event["payload"]["text"]
        for event in events
        if event["kind"] == "output" and event["payload"]["stream"] == "stdout"
    )


def waits(site: Site, run_id: str) -> list[dict[str, Any]]:
    return [e["payload"] for e in site.ask("events", run_id) if e["kind"] == "sandbox.image_wait"]


def test_packages_of_each_kind_are_found_by_a_script_without_network(site: Site) -> None:
    run = run_job(site, "uses tools", environment="tools")
    assert run["status"] == "succeeded", run["error"]
    lines = output_of(site, run["id"]).splitlines()
    assert lines[:5] == ["[5,6]", "tree", "1,234,567", "true", "< hello >"]
    assert lines[5:7] == ["/ump/bin/ump", "cannot write"]
    assert "scratch" not in lines[7:]
    assert "dpkg-status" not in lines[7:]
    assert waits(site, run["id"]) == []  # it was there


@as_own
def test_the_default_environment_has_nothing_of_it(site: Site) -> None:
    script = "#!/bin/sh\npython3 -c 'import humanize' 2>/dev/null || echo none\nls /ump\n"
    run = run_job(site, "without", script=script)
    assert output_of(site, run["id"]).splitlines()[0] == "none"
    assert "env" not in output_of(site, run["id"]).splitlines()[1:]


def test_a_stdio_server_of_the_environment_starts_without_network(site: Site) -> None:
    """P23: the command is the installed one. P25: it cannot pass Test."""
    added = site.run("mcp", "add", "time", "--", "mcp-server-time", "--local-timezone=UTC")
    assert added.returncode == 0, added.stderr
    tested = site.json("mcp", "test", "time")
    assert tested["outcome"] == "failed"
    assert "Command not found: mcp-server-time" in tested["error"]
    script = '#!/bin/sh\nump mcp call time get_current_time \'{"timezone": "UTC"}\'\n'
    run = run_job(site, "asks", script=script, servers={"time": "all"}, environment="tools")
    assert run["status"] == "succeeded", output_of(site, run["id"])
    assert '"timezone": "UTC"' in output_of(site, run["id"]).replace('":"', '": "')


@as_own
def test_a_run_waits_for_what_its_machine_has_not_built(site: Site) -> None:
    definition = "name: late\npython: [humanize==4.8.0]\n"
    assert site.run("env", "build", "-", input=definition).returncode == 0
    script = "#!/usr/bin/env python3\nimport humanize\nprint(humanize.__version__)\n"
    run = run_job(site, "waits", script=script, environment="late")
    assert run["status"] == "succeeded", run["error"]
    assert output_of(site, run["id"]) == "4.8.0\n"
    first, *_, last = waits(site, run["id"])
    assert first["message"] == "Built on this machine first"
    assert last["done"] is True
    again = site.json("job", "run", "waits", "--wait")
    assert waits(site, again["id"]) == []


@as_own
def test_what_cannot_be_built_fails_the_run_with_the_registrys_words(site: Site) -> None:
    name = "no-such-package-of-umpteenth"
    done = site.run("env", "build", "-", "--wait", input=f"name: broken\npython: [{name}]\n")
    assert done.returncode == 1
    assert name in done.stderr
    run = run_job(site, "cannot", environment="broken")
    assert run["status"] == "failed"
    assert run["error"].startswith("The environment broken could not be built: Python packages:")
    assert name in run["error"]


@as_own
def test_a_worker_builds_what_a_command_asks_for_and_removes_what_nobody_names(
    site: Site,
) -> None:
    worker = site.start("worker")
    try:
        eventually(lambda: site.ask("machines"), "the worker's machine")
        programs = dict(site.ask("programs"))
        assert programs["Python"].startswith("3.")
        assert programs["Node"].count(".") == 2
        done = site.run("env", "build", "-", input="name: quick\nnpm: [left-pad@1.3.0]\n")
        assert "1 machine" in done.stderr
        built = eventually(lambda: _ready(site, "quick"), "the build")
        assert built["builds"][0]["size"] > 0
    finally:
        site.stop(worker)
    (place,) = (site.data_dir / "environments").glob(f"{built['digest']}-*")
    assert (place / "root/node/node_modules/left-pad").is_dir()
    assert site.run("env", "remove", "quick", "--yes").returncode == 0
    assert not place.exists()
    left = [path.name for path in place.parent.iterdir() if path.name.startswith(".")]
    assert left == []


@as_own
def test_a_build_ends_with_its_worker_or_with_ctrl_c_and_leaves_nothing(site: Site) -> None:
    definition = "name: slow\ndebian: [cowsay]\n"
    worker = site.start("worker")
    try:
        eventually(lambda: site.ask("machines"), "the worker's machine")
        assert site.run("env", "build", "-", input=definition).returncode == 0
        eventually(lambda: site.ask("builds", "slow") == ["building"], "the build")
    finally:
        site.stop(worker)
    assert site.ask("builds", "slow") == ["failed"]
    file = site.data_dir.parent / "slow.yml"
    file.write_text(definition)
    # Whoever runs the tests in the background of a shell has it ignore the signal.
    listening = ["env", "--default-signal=INT"]
    command = subprocess.Popen(
        [*listening, *site.command("-P", "-m", "umpteenth", "env", "build", str(file), "--wait")],
        env=site.environ,
        cwd=site.code,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert command.stdout is not None
    said = command.stdout.readline()  # its first step begins
    command.send_signal(signal.SIGINT)
    said += command.communicate(timeout=20)[0]
    assert command.returncode == 130, said
    assert b"Traceback" not in said
    assert site.ask("builds", "slow") == ["failed"]
    left = [path.name for path in (site.data_dir / "environments").iterdir()]
    assert [name for name in left if name.startswith(".")] == []


def _ready(site: Site, name: str) -> dict[str, Any] | None:
    shown: dict[str, Any] = site.json("env", "show", name)
    return shown if [build["status"] for build in shown["builds"]] == ["ready"] else None
