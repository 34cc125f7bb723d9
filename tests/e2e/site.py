"""A real site for the browser: `umpteenth up` in a directory of its own, and what it needs around.

Everything is a process as in production: web, worker, beat, sandboxes, MCP servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.fakes.mcp_http import FakeHttp, Reply, Request
from umpteenth.core.config import PROJECT_ROOT, python_environment
from umpteenth.supervisor import STOP_TIMEOUT, umpteenth_command

START_LIMIT = 60.0  # seconds; two cores that other tests use, too
NODE_MODULES = PROJECT_ROOT / "tests" / "servers" / "node_modules"
EVERYTHING = NODE_MODULES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
# The sandboxes' defaults, and the servers that the tests bring.
SHOWN = (*python_environment(), PROJECT_ROOT / "docs" / "examples", NODE_MODULES)


@dataclass
class Site:
    """A running `umpteenth up`. `greeting` is what it printed before it went on as a service."""

    data_dir: Path
    environ: dict[str, str] = field(default_factory=dict)
    greeting: str = ""
    fake: str = ""
    stock: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.environ |= {
            "UMPTEENTH_DATA_DIR": str(self.data_dir),
            "UMPTEENTH_SANDBOX__READONLY_PATHS": ",".join(map(str, SHOWN)),
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                umpteenth_command("up", "--port=0", f"--parent={os.getpid()}"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environ,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        with self.process.stdout:
            self.greeting = self.process.stdout.read()
        assert self.greeting, self.log.read_text()

    @property
    def log(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    @property
    def address(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.greeting)
        assert found, self.greeting
        return found[0]

    @property
    def claim_link(self) -> str:
        found = re.search(r"http://\S+/claim/\S+", self.greeting)
        assert found, self.greeting
        return found[0]

    def fill(self, *, everything: str, fake: str) -> None:
        """Put people, secrets, servers and jobs into it (`tests.e2e.stock`)."""
        self.fake = fake
        self.fill_with("tests.e2e.stock", everything, fake)

    def fill_with(self, module: str, *arguments: str) -> None:
        """Have a module of the tests work on the data; it prints sessions as JSON."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=PROJECT_ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        self.stock = json.loads(done.stdout)

    def cookie(self, person: str) -> dict[str, Any]:
        """The session of a person who has signed in, for a browser."""
        value = self.stock["sessions"][person]
        return {"name": "sessionid", "value": value, "url": self.address, "httpOnly": True}

    def stop(self) -> list[str]:
        """End it as Ctrl-C does. Returns what is left of its processes; nothing should be."""
        if self.process is None or self.process.poll() is not None:
            return []
        processes = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STOP_TIMEOUT + 5)
        _, alive = psutil.wait_procs(processes, timeout=5)
        left = [_describe(process) for process in alive if not _has_ended(process)]
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return left


def _has_ended(process: psutil.Process) -> bool:
    """A zombie has ended; who should take it away does not matter here."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    return str(process.pid)


@contextlib.contextmanager
def running_site(directory: Path) -> Iterator[Site]:
    """A site that ends with the block, without a process or a traceback left."""
    site = Site(directory / "data")
    site.start()
    try:
        yield site
    finally:
        left = site.stop()
    assert not left, left
    log = site.log.read_text(errors="replace")
    assert "Traceback" not in log, log[-4000:]


@contextlib.contextmanager
def everything_over_http(directory: Path) -> Iterator[str]:
    """`server-everything` over Streamable HTTP; its address."""
    port = free_port()
    argv = ["node", str(EVERYTHING), "streamableHttp"]
    with served(argv, port, directory / "everything.log", PORT=str(port)) as address:
        yield address


@contextlib.contextmanager
def served(argv: list[str], port: int, log: Path, **variables: str) -> Iterator[str]:
    """A server of MCP over HTTP on this port; its address."""
    with log.open("w") as output:
        process = subprocess.Popen(
            argv,
            env={"PATH": os.environ["PATH"], **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for_port(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def fake_over_http() -> Iterator[str]:
    """The tests' own server, in a thread; `<address>?login` wants a login."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake MCP server")
    thread.start()

    def refuse(request: Request) -> Reply | None:
        if "login" not in request.path:
            return None
        return Reply(401, {"www-authenticate": "Bearer", "content-type": "text/plain"}, b"Who?")

    ready: Future[str] = Future()
    stopping = asyncio.Event()

    async def serve() -> None:
        async with FakeHttp(script=refuse, answer="sse") as server:
            ready.set_result(server.url)
            await stopping.wait()

    task = asyncio.run_coroutine_threadsafe(serve(), loop)
    try:
        yield ready.result(START_LIMIT)
    finally:
        loop.call_soon_threadsafe(stopping.set)
        task.result(START_LIMIT)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(asyncio.sleep(0))  # closed transports let go of their sockets
        loop.close()
