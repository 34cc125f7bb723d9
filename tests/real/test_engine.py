"""What is an engine's alone: images, what a dead worker leaves, what cannot be done (issue 5;
P20, P22, P26). What every adapter promises is in test_adapters.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.network import NEEDS_DOWNLOAD
from jobs.sandbox.base import Limits, SandboxProcess, SandboxSpec, SandboxUnavailable
from jobs.sandbox.egress.base import Egress
from jobs.sandbox.engine.adapter import Engine
from jobs.sandbox.places import Places
from tests.real.conftest import PROJECT, Site, eventually, new_site
from tests.real.engines import BARE_IMAGE, IMAGE, Podman, import_image, running_podman

pytestmark = pytest.mark.real

MIB = 1024**2
NOTHING = SandboxSpec("agent", network=False)
JOB = """
name: trial
network: internet
memory: 128
script: |
  #!/usr/bin/env bash
  ump output set user "$(id -un)"
  ump output set input "$(cat /ump/input.json)"
  echo kept > /ump/outputs/note.txt
  curl -sS -o /dev/null http://127.0.0.1:9/ 2>&1
  curl -sS -o /dev/null --noproxy '' http://169.254.169.254/latest/
  echo "a line on standard output"
"""
CALLS = """#!/usr/bin/env bash
ump output set answer "$(ump mcp call fake echo '{"text": "hello"}')"
"""
HUNGRY = """
name: hungry
network: none
memory: 64
script: |
  #!/usr/bin/env python3
  bytearray(300_000_000)
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with running_podman() as found:
        yield found


@pytest.fixture
def engine(podman: Podman, tmp_path: Path) -> Engine:
    return Engine(Places(tmp_path), url=podman.url, image=IMAGE)


@pytest.fixture(scope="module")
def site(podman: Podman) -> Iterator[Site]:
    made = new_site(podman.variables)
    made.migrate()
    for job in (JOB, HUNGRY):
        assert made.run("job", "create", "-", input=job).returncode == 0
    made.start("worker")
    yield made
    made.close()


async def outcome(process: SandboxProcess) -> tuple[int, str]:
    try:
        process.stdin.close()
        out, code = await asyncio.gather(process.stdout.read(), process.wait())
        return code, out.decode()
    finally:
        await process.kill()


def test_a_job_runs_in_a_container_with_all_that_a_run_has(site: Site) -> None:
    """P4, P20, P22, P74: `ump`, input, outputs, limits and the guarded network."""
    run = site.json("job", "run", "trial", "--wait", "--input", '{"a": 1}')
    assert run["status"] == "succeeded", run
    assert run["outputs"]["user"] == "agent"
    assert run["outputs"]["input"] == {"a": 1}
    lines = site.run("run", "events", run["id"], "--json").stdout
    [made] = [e for e in map(json.loads, lines.splitlines()) if e["kind"] == "sandbox.create"]
    assert (made["payload"]["adapter"], made["payload"]["image"]) == ("engine", IMAGE)
    assert made["payload"]["isolation"]
    for expected in ("a line on standard output", "note.txt", "network.refused", "169.254.169.254"):
        assert expected in lines


def test_a_stdio_server_is_tested_and_called_in_containers_of_its_own(site: Site) -> None:
    """P6, P24: over the engine's connection, with a home that persists."""
    done = site.run(
        "mcp", "add", "fake", "--", "python3", str(PROJECT / "tests/fakes/mcp_server.py")
    )
    assert done.returncode == 0, done.stderr
    tested = site.json("mcp", "test", "fake")
    assert tested["outcome"] == "connected", tested
    job = {"name": "calls", "script": CALLS, "network": "none", "servers": {"fake": "all"}}
    assert site.run("job", "create", "-", input=json.dumps(job)).returncode == 0
    run = site.json("job", "run", "calls", "--wait")
    assert run["status"] == "succeeded", run
    assert "hello" in json.dumps(run["outputs"])


def test_a_server_has_its_variables_and_a_home_that_stays(site: Site) -> None:
    """P6, P7: of the Test, and of each run."""
    assert site.run("secret", "set", "KEY", input="the-key").returncode == 0
    program = f"echo $KEY $(id -un) >> $HOME/seen; exec python3 {PROJECT}/tests/fakes/mcp_server.py"
    variables = ("--env", "KEY={{secret:KEY}}")
    done = site.run("mcp", "add", "keyed", *variables, "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    assert site.json("mcp", "test", "keyed")["outcome"] == "connected"
    job = {"name": "keyed", "script": "ump mcp tools keyed\n", "servers": {"keyed": "all"}}
    assert site.run("job", "create", "-", input=json.dumps(job)).returncode == 0
    assert site.json("job", "run", "keyed", "--wait")["status"] == "succeeded"
    [seen] = (site.data_dir / "homes").glob("*/seen")
    assert seen.read_text() == "the-key mcp\n" * 2


def test_without_network_a_server_that_is_downloaded_says_what_it_needs(site: Site) -> None:
    """P23."""
    done = site.run("mcp", "add", "fetched", "--", "uvx", "a-package-that-is-not-there")
    assert done.returncode == 0, done.stderr
    script = "ump mcp tools fetched || true\n"
    job = {"name": "alone", "script": script, "network": "none", "servers": {"fetched": "all"}}
    assert site.run("job", "create", "-", input=json.dumps(job)).returncode == 0
    run = site.json("job", "run", "alone", "--wait")
    events = [
        json.loads(line)
        for line in site.run("run", "events", run["id"], "--json").stdout.splitlines()
    ]
    [unavailable] = [event for event in events if event["kind"] == "server.unavailable"]
    assert NEEDS_DOWNLOAD in unavailable["payload"]["hint"]


def test_a_test_of_a_command_that_the_image_lacks_says_so(site: Site) -> None:
    """P21, P25: with the exit code that the page's advice stands at, and not as a fault of the
    network."""
    done = site.run("mcp", "add", "lacking", "--", "no-such-server", "--flag")
    assert done.returncode == 0, done.stderr
    done = site.run("mcp", "test", "lacking")
    said = done.stdout + done.stderr
    assert "Exit code 127" in said
    assert "no-such-server" in said
    assert "listener" not in said


def test_a_run_that_eats_its_memory_says_so(site: Site) -> None:
    run = site.json("job", "run", "hungry", "--wait")
    assert run["status"] == "failed"
    assert "64 MiB of memory" in run["error"]


def test_doctor_says_what_the_engine_starts_from_and_what_it_cannot(site: Site) -> None:
    said = site.run("doctor").stdout
    assert f"starts from the image {IMAGE}" in said
    assert "cannot run as root with this engine" in said
    assert "bwrap" not in said


def test_nothing_is_left_after_runs(site: Site, podman: Podman) -> None:
    site.json("job", "run", "trial", "--wait")
    eventually(lambda: not podman.containers(), "the containers' removal")


async def test_a_child_that_ran_out_of_memory_is_known_though_the_command_went_well(
    engine: Engine,
) -> None:
    spec = SandboxSpec("agent", network=False, limits=Limits(memory=100 * MIB))
    script = "python3 -c 'bytearray(300_000_000)'; echo after; exit 0"
    process = await engine.start(["bash", "-c", script], spec)
    assert await outcome(process) == (0, "after\n")
    assert process.ended is not None
    assert process.ended.out_of_memory


async def test_an_image_without_python_has_no_guarded_network_and_says_so(
    engine: Engine, podman: Podman
) -> None:
    """P22."""

    async def refuse(host: str, port: int) -> tuple[str, ...]:
        raise AssertionError

    plain = SandboxSpec("agent", network=False, base=BARE_IMAGE)
    assert await outcome(await engine.start(["sh", "-c", "echo fine"], plain)) == (0, "fine\n")
    guarded = SandboxSpec(
        "agent", network=False, base=BARE_IMAGE, egress=Egress(refuse, lambda _: None)
    )
    with pytest.raises(SandboxUnavailable, match="no python3 on its path"):
        await engine.start(["sh", "-c", "echo fine"], guarded)
    assert podman.containers() == []


async def test_run_as_root_is_refused_where_it_would_be_root_of_the_machine(
    engine: Engine,
) -> None:
    """P26."""
    with pytest.raises(SandboxUnavailable, match="root of this machine too"):
        await engine.start(["id"], SandboxSpec("agent", network=False, root=True))
    assert any("cannot run as root" in gap for gap in engine.gaps())


async def test_an_environment_that_the_engine_has_not_is_named(engine: Engine) -> None:
    with pytest.raises(SandboxUnavailable, match="no image ump-environment:none"):
        await engine.start(["id"], SandboxSpec("agent", network=False, base="ump-environment:none"))


def test_an_engine_that_does_not_answer_is_said_with_its_address(tmp_path: Path) -> None:
    engine = Engine(Places(tmp_path), url=f"unix://{tmp_path}/none.sock", image=IMAGE)
    assert f"the engine at unix://{tmp_path}/none.sock does not answer" in engine.problem()
    engine.tidy()  # which must not fail for it


def test_an_image_that_is_not_there_is_said_with_what_to_do(podman: Podman, tmp_path: Path) -> None:
    problem = Engine(Places(tmp_path), url=podman.url, image="elsewhere/none:1").problem()
    assert "no image elsewhere/none:1" in problem
    assert "sandbox.engine.image" in problem


def test_an_image_without_a_shell_is_said(podman: Podman, tmp_path: Path) -> None:
    import_image(podman, "ump-tests:shell-less", ["cat"])
    engine = Engine(Places(tmp_path), url=podman.url, image="ump-tests:shell-less")
    assert engine.problem() == (
        "The image ump-tests:shell-less has no /bin/sh, which a sandbox starts with."
    )
    assert podman.containers() == []


def test_an_engine_that_does_not_see_our_files_is_said(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where the worker is in a container and the engine outside."""
    monkeypatch.setattr(
        "jobs.sandbox.engine.adapter.small_file", lambda name, content: Path(tmp_path / "elsewhere")
    )
    (tmp_path / "elsewhere").write_text("another file at the same path")
    assert "does not see this worker's files" in engine.problem()


def test_a_runtime_that_podman_would_pass_over_is_said(podman: Podman, tmp_path: Path) -> None:
    """There is no silent fallback to a weaker one."""
    engine = Engine(Places(tmp_path), url=podman.url, image=IMAGE, runtime="runsc")
    assert "passes over sandbox.engine.runtime" in engine.problem()


async def test_a_start_that_nobody_waits_for_any_more_leaves_nothing(
    engine: Engine, podman: Podman
) -> None:
    """C24: at whatever moment it is cancelled."""
    assert engine.problem() == ""
    for delay in (0.0, 0.02, 0.05, 0.1, 0.15, 0.2):
        task = asyncio.create_task(engine.start(["sleep", "999"], NOTHING))
        await asyncio.wait({task}, timeout=delay)
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(result, SandboxProcess):
            await result.kill()
    await asyncio.to_thread(eventually, lambda: not podman.containers(), "their removal")


def test_what_a_killed_worker_left_ends_and_is_removed_and_what_a_living_one_has_is_not(
    engine: Engine, podman: Podman, tmp_path: Path
) -> None:
    """P8: an engine does not end them with their worker, but they do so themselves."""
    workers = [_worker(podman, tmp_path) for _ in range(2)]
    try:
        assert len(podman.containers()) == 2
        workers[0].send_signal(signal.SIGKILL)
        workers[0].wait()
        eventually(lambda: len(podman.run("ps", "--quiet").split()) == 1, "the end of one")
        engine.tidy()
        assert len(podman.containers()) == 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()

    def removed() -> bool:
        engine.tidy()  # which Podman refuses for one that is just ending
        return podman.containers() == []

    eventually(removed, "the removal of the other")


def _worker(podman: Podman, data_dir: Path) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.real.engine_trial", str(data_dir), podman.url, IMAGE],
        env={"PATH": os.environ["PATH"]},
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "up\n"
    return worker


async def test_an_end_is_told_soon_after_it(engine: Engine) -> None:
    """The engine's own way of waiting takes up to twenty seconds with some versions."""
    process = await engine.start(["true"], NOTHING)
    started = time.monotonic()
    assert await outcome(process) == (0, "")
    assert time.monotonic() - started < 5


async def test_the_engine_is_never_told_a_variable_that_may_be_secret(
    engine: Engine, podman: Podman
) -> None:
    """It would keep it on its disk. The command has it as it was given, and its input whole."""
    odd = "first\n second \\n 'x' \"y\" $HOME \u0101\u0088 \n\n+\n"
    env = {"TOKEN": odd, "line": "x", "how": "y", "EMPTY": ""}
    script = "cat; python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    spec = SandboxSpec("agent", network=False, env=env)
    process = await engine.start(["sh", "-c", script], spec)
    [container] = podman.containers()
    assert "second" not in podman.run("inspect", container)
    process.stdin.write(b"=INPUT=1\n\n.\n")
    code, said = await outcome(process)
    assert code == 0
    before, _, last = said.partition("{")
    assert before == "=INPUT=1\n\n.\n"
    assert env.items() <= json.loads("{" + last).items()
