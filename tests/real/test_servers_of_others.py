"""Servers that nobody here wrote, pinned under `tests/servers`: each is added, tested, attached
and called in one run, by a real worker and from sandboxes of their own (issue 2, section 7)."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.real.conftest import PROJECT, Site, eventually, free_port, new_site
from umpteenth.core.config import python_environment

SERVERS = PROJECT / "tests" / "servers"
MODULES = SERVERS / "node_modules" / "@modelcontextprotocol"
# The repository belongs to another user than the one that servers run as.
ANY_OWNER = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


@dataclass(frozen=True)
class Case:
    """How to add a server, one call of it, and words of the answer."""

    where: list[str]
    tool: str
    arguments: Mapping[str, object]
    expected: str
    env: dict[str, str] = field(default_factory=dict)
    transport: str = "stdio"

    @property
    def options(self) -> list[str]:
        return [*(f"--env={name}={value}" for name, value in self.env.items()), *self.where]


def node(name: str, *args: str) -> list[str]:
    return ["--", "node", str(MODULES / f"server-{name}" / "dist" / "index.js"), *args]


def python(name: str, *args: str) -> list[str]:
    return ["--", str(SERVERS / ".venvs" / name / "bin" / name), *args]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A repository with one letter in it, which sandboxes are shown."""
    with tempfile.TemporaryDirectory(prefix="ump-letters-") as name:
        path = Path(name)
        (path / "letter.txt").write_text("dear reader")
        identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
        for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first words"]):
            subprocess.run(["git", *words], cwd=path, check=True)
        subprocess.run(["chmod", "-R", "a+rX", name], check=True)
        yield path


@pytest.fixture
def page(folder: Path) -> Iterator[str]:
    """The letter over HTTP; the address of its directory.

    Programs in sandboxes ask no proxy for 127.0.0.1, which is their own; for this they do.
    """

    class Letters(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.2", 0), Letters) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.2:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def everything_over(kind: str) -> Iterator[int]:
    """`server-everything` listening; its port."""
    port = free_port()
    _, command, script = node("everything")
    process = subprocess.Popen(
        [command, script, kind],
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        # It says on standard error that it listens.
        assert any(str(port) in line for line in process.stderr)
        yield port
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def cases(folder: Path, page: str) -> Iterator[dict[str, Case]]:
    echo = ("echo", {"message": "hi"}, "Echo: hi")
    fetch = ("fetch", {"url": f"{page}/letter.txt"}, "dear reader")
    berlin = {"timezone": "Europe/Berlin"}
    letters = ["--ignore-robots-txt", "--allow-private-ips"]
    with everything_over("streamableHttp") as http_port, everything_over("sse") as sse_port:
        yield {
            "everything": Case(node("everything"), *echo),
            "over-http": Case([f"--url=http://127.0.0.1:{http_port}/mcp"], *echo, transport="http"),
            "over-sse": Case([f"--url=http://127.0.0.1:{sse_port}/sse"], *echo, transport="sse"),
            "filesystem": Case(
                node("filesystem", str(folder)),
                "list_directory",
                {"path": str(folder)},
                "[FILE] letter.txt",
            ),
            "memory": Case(
                node("memory"),
                "read_graph",
                {},
                "entities",
                {"MEMORY_FILE_PATH": "/home/mcp/memory.json"},
            ),
            "time": Case(python("mcp-server-time"), "get_current_time", berlin, "Europe/Berlin"),
            "git": Case(
                python("mcp-server-git"),
                "git_log",
                {"repo_path": str(folder)},
                "first words",
                ANY_OWNER,
            ),
            "fetch": Case(python("mcp-server-fetch", *letters), *fetch),
        }


@pytest.fixture
def worker_site(folder: Path) -> Iterator[Site]:
    shown = (*python_environment(), PROJECT / "tests", folder)
    site = new_site({"UMPTEENTH_SANDBOX__READONLY_PATHS": ",".join(map(str, shown))})
    try:
        site.migrate()
        site.start("worker")
        eventually(lambda: site.ask("workers"), "the worker's report")
        yield site
    finally:
        site.close()


@pytest.mark.timeout(240)  # two dozen commands, each a process of its own
def test_all_are_tested_and_called_in_one_run(worker_site: Site, cases: dict[str, Case]) -> None:
    """P1, P5, P6."""
    for name, case in cases.items():
        done = worker_site.run("mcp", "add", name, *case.options)
        assert done.returncode == 0, done.stderr
        tested = worker_site.json("mcp", "test", name)
        assert tested["outcome"] == "connected", tested
        # `server-everything` holds a tool that runs only as a task.
        warnings = [each for each in tested["warnings"] if "as a task" not in each]
        assert (tested["transport"], warnings) == (case.transport, [])
        assert case.tool in [tool["name"] for tool in tested["tools"]]
    calls = [
        f"ump mcp call {name} {case.tool} '{json.dumps(case.arguments)}'"
        for name, case in cases.items()
    ]
    job = {
        "name": "all of them",
        "script": "\n".join(["#!/usr/bin/env bash", "set -e", *calls]) + "\n",
        "servers": {name: [case.tool] for name, case in cases.items()},
        "allow_private_network": True,
    }
    assert worker_site.run("job", "create", "-", input=json.dumps(job)).returncode == 0
    run = worker_site.json("job", "run", "all of them", "--wait")
    events = worker_site.ask("events", run["id"])
    assert run["status"] == "succeeded", events
    results = [event["payload"] for event in events if event["kind"] == "tool.result"]
    assert [result["server"] for result in results] == list(cases)
    for result in results:
        assert result["ok"], result
        assert cases[result["server"]].expected in result["text"]
