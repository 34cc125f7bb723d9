"""Runs the MCP conformance suite, which starts a server for each scenario a revision requires and
checks everything that the client sends, down to the schema of each message."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def node() -> str:
    """A Node that runs the suite: the installed one, else the system's."""
    local = HERE / f"node_modules/node-linux-{MACHINES.get(platform.machine(), '')}/bin/node"
    found = str(local) if local.exists() else shutil.which("node")
    assert found, "The suite needs Node; run: .ci/setup test"
    return found


def run_suite(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [node(), str(SUITE), "client", *options, "--timeout", "90000", "-o", str(folder)]
    command += ["--expected-failures", str(HERE / "expected_failures.yml")]
    command += ["--command", f"{sys.executable} -m tests.conformance.driver"]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=280)


def assert_passes(folder: Path, scenario: str, revision: str) -> None:
    options = ["--scenario", scenario]
    if revision:
        options += ["--spec-version", revision]
    ended = run_suite(folder, *options)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said[-8000:]
    assert "OVERALL: PASSED" in said, said[-8000:]
