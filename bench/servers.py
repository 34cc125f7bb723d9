"""The servers that are measured: server-everything, pinned under `tests/servers`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bench.site import PROJECT, end, free_port, wait_for_port

MODULES = PROJECT / "tests" / "servers" / "node_modules"
PROGRAM = MODULES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
COUNT = 8
HTTP_PROCESSES = 2  # a single one would be what everybody waits for
TOOL = "echo"
ARGUMENTS = {"message": "hi"}


@dataclass(frozen=True)
class Target:
    """A server as both sides know it: by a command, or by an address."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""


def node() -> str:
    found = shutil.which("node")
    if found is None or not PROGRAM.exists():
        sys.exit("The bench needs node and tests/servers/node_modules; run `make bench`.")
    return found


def stdio(count: int = COUNT) -> list[Target]:
    program = node()
    return [Target(f"stdio-{n}", program, (str(PROGRAM), "stdio")) for n in range(count)]


@contextlib.contextmanager
def http(count: int = COUNT) -> Iterator[list[Target]]:
    """Addresses that a few processes serve until the block ends."""
    ports = [free_port() for _ in range(HTTP_PROCESSES)]
    with contextlib.ExitStack() as undo:
        for port in ports:
            process = subprocess.Popen(
                [node(), str(PROGRAM), "streamableHttp"],
                env={"PATH": os.environ.get("PATH", ""), "PORT": str(port)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            undo.callback(end, process)
            wait_for_port(port, process)
        yield [
            Target(f"http-{n}", url=f"http://127.0.0.1:{ports[n % len(ports)]}/mcp")
            for n in range(count)
        ]
