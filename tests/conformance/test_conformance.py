"""The MCP conformance suite with the product's engine as its client.

The suite starts a server for each scenario a revision requires and checks everything that the
client sends, down to the schema of each message. `expected_failures.yml` lists what is not done.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
MACHINES = {"x86_64": "x64", "aarch64": "arm64"}

# What each revision requires of clients, without the scenarios of OAuth: (scenario, revision).
REQUIRED = [
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-11-25"),
    ("elicitation-sep1034-client-defaults", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("json-schema-2020-12-preservation", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("request-metadata", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
    ("http-standard-headers", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("http-invalid-tool-headers", "2026-07-28"),
    ("json-schema-ref-no-deref", "2026-07-28"),
    ("json-schema-2020-12-preservation", "2026-07-28"),
]

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


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


@pytest.mark.parametrize(("scenario", "revision"), REQUIRED)
def test_the_engine_meets_what_a_revision_requires_of_clients(
    scenario: str, revision: str, tmp_path: Path
) -> None:
    """U19, U22, A24; each scenario at its revision's own wire format."""
    ended = run_suite(tmp_path, "--scenario", scenario, "--spec-version", revision)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said[-8000:]
    assert "OVERALL: PASSED" in said


def test_the_scenarios_of_logins_fail_as_listed(tmp_path: Path) -> None:
    """One that passes, or that nobody listed, fails this test: the list is to be kept true."""
    ended = run_suite(tmp_path, "--suite", "auth")
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said[-8000:]
    assert "SUITE SUMMARY" in said
