"""Connects to a server and lists its tools, in a thread with an event loop of its own.

Where it is told to, it looks afterwards for how people log in to the server.

It knows no database: whoever started it reads `progress()` while it lasts and `outcome` at the
end, and may `stop()` it at any time. The connection is closed, and a stdio server's processes
are gone, before `wait()` returns True.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from servers.mcp.types import (
    Asker,
    Challenge,
    ConnectionSettings,
    LoginRequired,
    ServerError,
    ServerUnavailable,
    Spawner,
    ToolList,
)
from servers.oauth.types import DiscoveryFailed, Looked

if TYPE_CHECKING:
    from servers.mcp.client import Connection

logger = logging.getLogger(__name__)

MAX_LINE = 500  # characters of the last line of stderr
MAX_TAIL = 8192  # characters of stderr kept for a failure
MAX_STEPS = 50
MAX_NOTICES = 50
_ORDER = ("Starting", "Connecting", "Listing")


@dataclass(frozen=True)
class Found:
    """The server answered."""

    connection: Connection
    tools: ToolList


@dataclass(frozen=True)
class Stopped:
    """It was stopped by `stop`."""


Outcome = Found | Stopped | ServerError


@dataclass(frozen=True)
class Progress:
    """What has happened so far; `steps` is [{"label": str, "ms": float | None}], and `failed`
    in those after which something else was tried."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    last_stderr: str = ""
    notices: list[str] = field(default_factory=list)


def _tries_again(label: str, before: str) -> bool:
    """Each attempt starts, connects and lists; a step that comes no later begins another one."""
    return _place(label) <= _place(before) < len(_ORDER)


def _place(label: str) -> int:
    word = label.partition(" ")[0]
    return _ORDER.index(word) if word in _ORDER else len(_ORDER)


class Notes:
    """The observer: written by the event loop, read by another thread."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._steps: list[dict[str, Any]] = []
        self._began = 0.0
        self._last_line = ""
        self._tail = ""
        self._notices: list[str] = []

    def step(self, label: str) -> None:
        if label == "Starting" and self._command:
            label = f"Starting {self._command}"
        with self._lock:
            if self._steps and self._steps[-1]["label"] == label:
                return
            self._end_step()
            if self._steps and _tries_again(label, self._steps[-1]["label"]):
                self._steps[-1]["failed"] = True
            if len(self._steps) < MAX_STEPS:
                self._steps.append({"label": label, "ms": None})
                self._began = time.monotonic()

    def stderr(self, line: str) -> None:
        with self._lock:
            self._tail = (self._tail + line[-MAX_TAIL:].rstrip("\n") + "\n")[-MAX_TAIL:]
            if line.strip():
                self._last_line = line.strip()[:MAX_LINE]

    def notice(self, sentence: str) -> None:
        with self._lock:
            if len(self._notices) < MAX_NOTICES:
                self._notices.append(sentence)

    def end(self) -> None:
        with self._lock:
            self._end_step()

    def progress(self) -> Progress:
        with self._lock:
            steps = [dict(step) for step in self._steps]
            return Progress(steps, self._last_line, list(self._notices))

    @property
    def tail(self) -> str:
        with self._lock:
            return self._tail

    def _end_step(self) -> None:
        if self._steps and self._steps[-1]["ms"] is None:
            self._steps[-1]["ms"] = round((time.monotonic() - self._began) * 1000, 1)


class Probe:
    """One attempt; `start` once. `ask` answers the server's questions, in the probe's thread.

    With `looks_for_login` it also asks a server that has answered, or that wants a login, how
    people log in; `looked` tells the result, None that it did not come to that.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        spawn: Spawner | None,
        ask: Asker | None = None,
        *,
        notes: Notes | None = None,
        looks_for_login: bool = False,
    ) -> None:
        self.outcome: Outcome = Stopped()
        self.looked: Looked | None = None
        self._looks_for_login = looks_for_login
        self._settings = settings
        self._spawn = spawn
        self._ask = ask
        self._notes = notes or Notes(settings.command)
        self._done = threading.Event()
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Found] | None = None

    def start(self) -> None:
        name = f"check of {self._settings.name}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Whether it has ended, at the latest after `timeout` seconds."""
        return self._done.wait(timeout)

    def stop(self) -> None:
        """Cancel it; the outcome will be `Stopped` unless it has ended already."""
        self._stop.set()
        if not self._ready.wait(5):
            return
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not self._done.is_set():
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                return  # the loop closed in this very moment: it has ended

    def progress(self) -> Progress:
        return self._notes.progress()

    @property
    def stderr_tail(self) -> str:
        return self._notes.tail

    def _work(self) -> None:
        try:
            self.outcome = asyncio.run(self._guarded())
        # Whatever the engine did not foresee must still end the check, with its own words.
        except Exception as error:
            logger.exception("The check of %s broke", self._settings.name)
            self.outcome = ServerUnavailable(f"{type(error).__name__}: {error}")
        finally:
            self._ready.set()
            self._notes.end()
            self._done.set()

    async def _guarded(self) -> Outcome:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._attempt())
        self._ready.set()
        if self._stop.is_set():
            self._task.cancel()
        try:
            return await self._task
        except asyncio.CancelledError:
            return Stopped()
        except ServerError as error:
            return error

    async def _attempt(self) -> Found:
        try:
            found = await self._connect()
        except LoginRequired as error:
            await self._look(error.challenge or Challenge())
            raise
        await self._look(None)
        return found

    async def _look(self, challenge: Challenge | None) -> None:
        if not self._looks_for_login:
            return
        from servers.oauth.discovery import discover

        self._notes.step("Looking for a login")
        try:
            self.looked = Looked(advertised=await discover(self._settings.url, challenge))
        except DiscoveryFailed as failure:
            self.looked = Looked(failure=failure)

    async def _connect(self) -> Found:
        # The SDK is heavy: only processes that connect load it.
        from servers.mcp.client import connect

        async with connect(
            self._settings, spawn=self._spawn, observer=self._notes, ask=self._ask
        ) as connection:
            tools = await connection.list_tools()
        return Found(connection, tools)
