"""A whole site for the length of a measurement, and a helper that gives it work.

The helper is a process of its own (`bench.driver`), because options and Django are read once a
process; they talk in JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from umpteenth.core.config import PREFIX
from umpteenth.supervisor import STOP_TIMEOUT, umpteenth_command

PROJECT = Path(__file__).resolve().parents[1]
START_LIMIT = 60.0  # seconds until a process answers


class Site:
    """`umpteenth up` on a temporary directory. `process` is its supervisor."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.environ = _environment(folder, variables)
        self._undo = contextlib.ExitStack()
        self._driver: subprocess.Popen[str] | None = None
        log = self._undo.enter_context((folder / "log").open("w"))
        self.process = subprocess.Popen(
            umpteenth_command("up", "--port=0", f"--parent={os.getpid()}"),
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._undo.callback(end, self.process)
        assert self.process.stdout is not None
        # The greeting; it ends once the children start.
        found = re.search(r"http://[\w.:]+", self.process.stdout.read())
        if found is None:
            self.close()
            sys.exit(f"The site did not start: {self.log()}")
        self.address = found[0]

    def ask(self, what: str, **arguments: Any) -> Any:
        """Have the helper do something; see `bench.driver`. Starts it if need be."""
        driver = self._driver or self._start_driver()
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(json.dumps([what, arguments]) + "\n")
        driver.stdin.flush()
        answer = driver.stdout.readline()
        if not answer:
            sys.exit(f"The bench's helper failed. The site's log: {self.log()}")
        return json.loads(answer)

    def log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]

    def stop_driver(self) -> None:
        """Before memory is read: whatever shares pages makes everybody's share smaller."""
        if self._driver is not None:
            end(self._driver)
            self._driver = None

    def close(self) -> None:
        self._undo.close()

    def _start_driver(self) -> subprocess.Popen[str]:
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "bench.driver"],
            cwd=PROJECT,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._undo.callback(self.stop_driver)
        return self._driver


def _environment(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    shown = [PROJECT / "tests" / "servers" / "node_modules", PROJECT / "docs" / "examples"]
    empty = folder / "config.yml"
    empty.touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {
        **kept,
        f"{PREFIX}DATA_DIR": str(folder / "data"),
        f"{PREFIX}CONFIG": str(empty),
        f"{PREFIX}SANDBOX__READONLY_PATHS": ",".join(map(str, shown)),
        **variables,
    }


@contextlib.contextmanager
def site(redis_url: str = "") -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="umpteenth-bench-"))
    try:
        here = Site(folder, {f"{PREFIX}REDIS__URL": redis_url} if redis_url else {})
        with contextlib.closing(here):
            yield here
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """A Redis server of its own: the address."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="umpteenth-bench-redis-") as folder:
        where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        process = subprocess.Popen(
            ["redis-server", *where, "--save", "", "--appendonly", "no"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_port(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            end(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def wait_for_port(port: int, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{process.args!r} did not start.")
            time.sleep(0.05)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process of ours, by force if it does not want to."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
