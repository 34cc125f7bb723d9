"""The worker's command in a container, with and without what docker-compose.yml gives it.

No image is needed (no registry may be reachable): the container's root is a bare directory into
which this machine's /usr and the project are mounted read-only.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
# Podman's words for the two lines of docker-compose.yml.
ALLOWED = ["--security-opt", "seccomp=unconfined", "--security-opt", "unmask=ALL"]
ETC = ("passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache", "alternatives", "ssl")
JOB = """
name: trial
script: |
  #!/usr/bin/env bash
  id -un; ump output set user "$(id -u)"
network: none
"""
JOB_AS_ROOT = JOB.replace("name: trial", "name: root") + "run_as_root: true\n"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has the rights to make it"),
]

Container = Callable[[list[str]], str]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    commands = [["migrate"]]
    for name, text in {"trial": JOB, "root": JOB_AS_ROOT}.items():
        file = tmp_path / f"{name}.yml"
        file.write_text(text)
        commands.append(["job", "create", str(file)])
    for command in commands:
        subprocess.run(
            [_umpteenth(), *command],
            env={"PATH": os.environ["PATH"], "UMPTEENTH_DATA_DIR": str(path)},
            check=True,
            capture_output=True,
            timeout=60,
        )
    return path


@pytest.fixture
def start_worker(tmp_path: Path, data_dir: Path) -> Iterator[Container]:
    """Start `umpteenth worker` in a container with these options; its id."""
    started: list[str] = []

    def start(options: list[str]) -> str:
        shown = ["/usr", str(PROJECT)]
        if not Path(sys.base_prefix).is_relative_to("/usr"):
            shown.append(sys.base_prefix)
        command = [*_podman("run", "--detach", "--network", "none", "--workdir", "/"), *options]
        command += ["--ulimit", "nofile=4096", "--ulimit", "nproc=4096"]
        for path in shown:
            command += ["--volume", f"{path}:{path}:ro"]
        command += ["--volume", f"{data_dir}:/data", "--env", "UMPTEENTH_DATA_DIR=/data"]
        command += ["--rootfs", str(_bare_root(tmp_path / "root")), _umpteenth(), "worker"]
        started.append(_output(command).strip())
        return started[-1]

    yield start
    for container in started:
        subprocess.run(
            _podman("rm", "--force", "--time", "0", container),
            check=False,
            capture_output=True,
            timeout=60,
        )


def _podman(*arguments: str) -> list[str]:
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    return ["podman", *runtime, *arguments]


def _umpteenth() -> str:
    return str(Path(sys.executable).with_name("umpteenth"))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _bare_root(root: Path) -> Path:
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "run", "data", "root", "var/tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
    for name in ETC:
        if Path("/etc", name).exists():
            subprocess.run(["cp", "-a", f"/etc/{name}", str(root / "etc")], check=True)
    return root


def _problem(data_dir: Path) -> str:
    """What the worker said of its sandboxes when it reported itself."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with sqlite3.connect(data_dir / "umpteenth.sqlite3") as database:
            row = database.execute("SELECT sandbox_problem FROM jobs_worker").fetchone()
        database.close()
        if row is not None:
            return str(row[0])
        time.sleep(0.1)
    raise AssertionError("the worker did not report itself")


def _run_job(container: str, job: str = "trial") -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        _podman("exec", container, _umpteenth(), "job", "run", job, "--wait", "--json"),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_without_the_options_the_worker_says_so_and_refuses_runs(
    start_worker: Container, data_dir: Path
) -> None:
    container = start_worker([])
    said = _problem(data_dir)
    assert "security_opt: [seccomp=unconfined, systempaths=unconfined]" in said
    code, run = _run_job(container)
    assert (code, run["status"]) == (1, "failed")
    assert "security_opt" in run["error"]


def test_with_the_options_the_worker_runs_jobs_as_an_unprivileged_user(
    start_worker: Container, data_dir: Path
) -> None:
    container = start_worker(ALLOWED)
    assert _problem(data_dir) == ""
    code, run = _run_job(container)
    assert (code, run["status"]) == (0, "succeeded"), run
    assert run["outputs"] == {"user": 1000}
    # P26: root inside is not the container's.
    code, run = _run_job(container, "root")
    assert (code, run["status"]) == (0, "succeeded"), run
    assert run["outputs"] == {"user": 0}
