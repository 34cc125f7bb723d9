"""The MCP conformance suite with the product's engine as its client.

The suite starts a server for each scenario a revision requires and checks everything that the
client sends, down to the schema of each message. `expected_failures.yml` lists what is not done.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
MACHINES = {"x86_64": "x64", "aarch64": "arm64"}

# The frozen requirements of each revision, without the scenarios of OAuth.
REQUIRED = {
    "2025-11-25": {
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "json-schema-2020-12-preservation",
    },
    "2026-07-28": {
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    },
}

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def node() -> str:
    """A Node that runs the suite: the installed one, else the system's."""
    local = HERE / f"node_modules/node-linux-{MACHINES.get(platform.machine(), '')}/bin/node"
    found = str(local) if local.exists() else shutil.which("node")
    assert found, "The suite needs Node; run: .ci/setup test"
    return found


def passed(output: str) -> set[str]:
    return set(re.findall(r"^✓ (\S+): ", output, re.MULTILINE))


@pytest.mark.parametrize("revision", REQUIRED)
def test_the_engine_meets_what_a_revision_requires_of_clients(
    revision: str, tmp_path: Path
) -> None:
    """U19, U22, A24; the scenarios run at this revision's own wire format."""
    command = [node(), str(SUITE), "client", "--requirements", revision]
    command += ["--expected-failures", str(HERE / "expected_failures.yml")]
    command += ["--command", f"{sys.executable} -m tests.conformance.driver"]
    ended = subprocess.run(
        [*command, "-o", str(tmp_path)], cwd=PROJECT, capture_output=True, text=True, timeout=280
    )
    summary = ended.stdout.partition("=== SUITE SUMMARY ===")[2]
    assert ended.returncode == 0, summary or ended.stdout[-4000:] + ended.stderr[-4000:]
    assert passed(summary) >= REQUIRED[revision]
