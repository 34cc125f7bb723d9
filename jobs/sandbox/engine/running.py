"""A container that is ours, from its making to its end, and what is said about it inside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from jobs.sandbox.base import Exit, SandboxError, SandboxSpec
from jobs.sandbox.egress.proxy import Proxy
from jobs.sandbox.engine import leftovers
from jobs.sandbox.engine.client import ENDS, POOL, Client, EngineError
from jobs.sandbox.engine.streams import Streams
from jobs.sandbox.launcher import receive
from jobs.sandbox.limits import too_much_memory
from jobs.sandbox.runtime import socket_path
from jobs.sandbox.watching import watch_disk

logger = logging.getLogger(__name__)
T = TypeVar("T")

END_TIMEOUT = 8.0  # seconds from the end of a container's outputs to its own
END_INTERVALS = 0.01, 0.2  # at first, and at most
MAX_REPORT = 64 * 1024
_KILLED = 128 + 9


@dataclass
class Pipe:
    """One with a name, for a user inside."""

    path: Path
    descriptor: int

    @classmethod
    def make(cls, user: int) -> Self:
        path = socket_path().with_suffix(".pipe")
        os.mkfifo(path, 0o600)
        if os.geteuid() == 0:
            os.chown(path, user, user)
        # For both directions: it must not seem ended before somebody inside has opened it.
        return cls(path, os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.path.unlink(missing_ok=True)


@dataclass
class Report(Pipe):
    """On which the first process says what only the inside knows.

    Whatever runs inside may write to it as well, and would only speak ill of itself. It holds no
    more than a pipe does.
    """

    content: str = ""

    def read(self) -> str:
        if self.descriptor >= 0:
            with contextlib.suppress(BlockingIOError):
                self.content += os.read(self.descriptor, MAX_REPORT).decode("ascii", "replace")
        return self.content

    def counts(self, kind: str, name: str) -> bool:
        """Whether the last word on something is more than nought."""
        lines = [line.split() for line in self.read().splitlines()]
        said = [line[2] for line in lines if line[:2] == [kind, name] and len(line) == 3]
        return bool(said) and said[-1].isdigit() and int(said[-1]) > 0


@dataclass
class Made:
    """A container of ours and what belongs to it on this side."""

    client: Client
    name: str
    variables: bytes  # that it is handed over at its start
    report: Report
    lifeline: Pipe  # ends with this process, and the sandbox with it
    handing: socket.socket | None
    _sock: socket.socket | None = None
    _started: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self) -> None:
        """Before the start, so that nothing is missed. Blocks."""
        wish = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        answer = self.client.call(lambda api: api.attach_socket(self.name, params=wish))
        # Its connection belongs to the HTTP library, which loses sight of what it hands out.
        theirs = getattr(answer, "_sock", answer)
        self._sock = socket.socket(fileno=os.dup(theirs.fileno()))
        answer.close()
        theirs.close()

    def take_socket(self) -> socket.socket:
        assert self._sock is not None
        sock, self._sock = self._sock, None
        return sock

    def start(self) -> None:
        self.client.call(lambda api: api.start(self.name))

    def kill(self) -> None:
        """Never raises; what could not be done is done later. Blocks."""
        leftovers.give_up(self.name)
        try:
            leftovers.remove(self.client, self.name)
        except EngineError as error:
            logger.warning("a sandbox could not be removed: %s", error)

    async def take_listener(self) -> socket.socket:
        """The one that comes first, which is before the command; nobody is heard afterwards."""
        assert self.handing is not None
        loop = asyncio.get_running_loop()
        self.handing.setblocking(False)
        inside, _ = await loop.sock_accept(self.handing)
        close_listening(self.handing)
        with inside:
            ready = asyncio.Event()
            loop.add_reader(inside, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(inside)
            listener = received_listener(inside)
            inside.send(b"g")
        return listener

    async def settle(self) -> tuple[int, bool, str]:
        """After the outputs have ended: exit code, whether the engine saw it run out of memory,
        what went wrong with the sandbox itself. Removes the container."""
        fault = ""
        state: dict[str, Any] = {}
        try:
            time = asyncio.get_running_loop().time
            deadline = time() + END_TIMEOUT
            interval, longest = END_INTERVALS
            while (state := await in_pool(self._state)).get("Running"):
                if time() > deadline:
                    fault = "the engine let go of a sandbox that still ran"
                    break
                await asyncio.sleep(interval)
                interval = min(2 * interval, longest)
        except EngineError as error:
            # Removed means killed, by us or by whoever may.
            fault = "" if error.is_gone else str(error)
        except asyncio.CancelledError:
            ENDS.submit(self.discard)
            raise
        await in_pool(self.discard, ENDS)
        code = _KILLED if fault else int(state.get("ExitCode", _KILLED))
        return code, bool(state.get("OOMKilled")), fault or str(state.get("Error") or "")

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.call(lambda api: api.inspect_container(self.name))
        state: dict[str, Any] = found.get("State") or {}
        # Podman says "not running" a moment before it knows the exit code.
        state["Running"] = state.get("Status") in ("created", "running", "stopping", "initialized")
        return state

    def discard(self) -> None:
        """Kill and remove whatever there is. Never raises. Blocks."""
        with self._lock:
            self.report.read()
            self.report.close()
            self.lifeline.close()
            if self.handing is not None:
                close_listening(self.handing)
            if self._sock is not None:
                self._sock.close()
            self.kill()


class Control:
    """See `ProcessControl`."""

    def __init__(
        self, made: Made, streams: Streams, spec: SandboxSpec, proxy: Proxy | None
    ) -> None:
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._made = made
        self._streams = streams
        self._spec = spec
        self._proxy = proxy
        self._broken_limit = ""
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        self._watching = asyncio.create_task(self._watch())
        watch_disk(self._spec, self.exit, self._break)

    def kill(self) -> None:
        self._streams.drain()
        if not self.exit.done():
            ENDS.submit(self._made.kill)

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        self._streams.close()

    def abandon(self) -> None:
        """Nothing came of it."""
        self.close()
        self.exit.cancel()

    def _break(self, sentence: str) -> None:
        self._broken_limit = sentence
        self.kill()

    async def _watch(self) -> None:
        await asyncio.wait({self._streams.ended})
        code, killed, fault = await self._made.settle()
        report = self._made.report
        out_of_memory = (killed or report.counts("memory", "oom_kill")) and not self._broken_limit
        if fault:
            logger.warning("a sandbox ended with %d: %s", code, fault)
        if not self.exit.done():
            memory = too_much_memory(self._spec.limits) if out_of_memory else ""
            self.exit.set_result(
                Exit(
                    code,
                    fault,
                    out_of_memory=out_of_memory,
                    broken_limit=self._broken_limit or memory,
                    processes_refused=report.counts("pids", "max"),
                )
            )


def listening(user: int) -> socket.socket:
    path = socket_path()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        if os.geteuid() == 0:
            os.chown(path, user, user)
        path.chmod(0o600)
        sock.listen(1)
    except OSError:
        sock.close()
        raise
    return sock


def received_listener(sock: socket.socket) -> socket.socket:
    """From a message that is there. Raises `SandboxError`; an image may have any Python."""
    _, descriptors, _ = receive(sock, 16, 1)
    if not descriptors:
        raise SandboxError("The sandbox handed over no listener of its network.")
    try:
        listener = socket.socket(fileno=descriptors[0])
    except OSError:
        os.close(descriptors[0])
    else:
        if listener.family == socket.AF_INET and listener.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            return listener
        listener.close()
    raise SandboxError("The sandbox handed over something else than a listener.")


def close_listening(sock: socket.socket) -> None:
    """Of a listening Unix socket, with its file; twice is fine."""
    with contextlib.suppress(OSError):
        Path(sock.getsockname()).unlink(missing_ok=True)
    sock.close()


async def in_pool(work: Callable[[], T], pool: ThreadPoolExecutor = POOL) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


async def finished(work: Callable[[], T], undo: Callable[[T], None]) -> T:
    """What the work gives; where nobody waits any more it is undone."""
    future = POOL.submit(work)

    def discard(done: Any) -> None:
        if done.exception() is None:
            ENDS.submit(undo, done.result())

    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        future.add_done_callback(discard)
        raise
