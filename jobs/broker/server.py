"""The broker: a run's own Unix socket, through which `ump` reaches tools, state and outputs.

Token, limits and arguments are checked here; what a command does is the handler's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from jobs.broker.commands import Commands
from jobs.broker.protocol import (
    FAILED,
    MAX_CONCURRENT,
    MAX_REQUEST,
    MAX_VALUES,
    MAX_WAITING,
    REQUEST_TIMEOUT,
    USAGE,
    BrokerError,
    BrokerHandler,
)
from servers.mcp.results import has_more_values
from umpteenth.core import deadlines

logger = logging.getLogger(__name__)

# A Unix path holds 107 bytes and a final NUL.
MAX_SOCKET_PATH = 107
INSIDE_SOCKET = "/ump/broker.sock"
_CHUNK = 64 * 1024
# Connections of a run at a time; those above what may wait are told so, further ones dropped.
MAX_OPEN = 2 * (MAX_CONCURRENT + MAX_WAITING)
BUSY = f"busy: more than {MAX_WAITING} calls of this run are waiting"
# Read and thrown away of a request that is too large, so that its sender sees the answer.
_MAX_DISCARDED = 4 * MAX_REQUEST


def new_token() -> str:
    """A token for one run, 256 bits."""
    return secrets.token_urlsafe(32)


class Broker:
    """Serves one run until `close`. Use as an asynchronous context manager.

    `socket_path` should lie in a private directory (`jobs.sandbox.runtime`); `owner` is the
    user id that the sandbox connects with, where it differs from this process's; `before` is
    awaited before each command.
    """

    def __init__(
        self,
        handler: BrokerHandler,
        token: str,
        socket_path: Path,
        *,
        owner: int | None = None,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH:
            raise ValueError(f"{socket_path} is too long for a Unix socket.")
        self.socket_path = socket_path
        self._token = token.encode()
        self._commands = Commands(handler)
        self._owner = owner
        self._before = before
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def environment(self) -> dict[str, str]:
        """Variables by which `ump` inside the sandbox finds and may use this broker."""
        return {"UMP_SOCKET": INSIDE_SOCKET, "UMP_TOKEN": self._token.decode()}

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(
            self._accept, path=self.socket_path, limit=_CHUNK, backlog=128
        )
        # The directory keeps others out; inside the sandbox only its own party sees the socket.
        if self._owner is not None and os.geteuid() == 0:
            os.chown(self.socket_path, self._owner, self._owner)
        os.chmod(self.socket_path, 0o600)

    async def close(self) -> None:
        """Stop listening, cancel what is going on, remove the socket. Safe to call twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=5)
        with contextlib.suppress(FileNotFoundError):
            self.socket_path.unlink()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_OPEN:
            # Unread, and without waiting: others need the worker's files, too.
            writer.write(_line(_refusal(BUSY)))
            writer.close()
            return
        busy = len(self._connections) >= MAX_CONCURRENT + MAX_WAITING
        self._connections.add(task)
        answer: dict[str, Any] | None
        try:
            if busy:
                await _discard(reader)
                answer = _refusal(BUSY)
            else:
                async with self._slots:
                    answer = await self._exchange(reader)
            if answer is not None:
                writer.write(_line(answer))
                await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT)
        except (OSError, TimeoutError):
            pass  # the client is gone or does not read; nobody is left to tell
        except asyncio.CancelledError:
            # Only `close` cancels; asyncio would log a cancelled connection as an error.
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader) -> dict[str, Any] | None:
        """Read one request and answer it; None if the client hung up meanwhile."""
        try:
            async with deadlines.timeout(REQUEST_TIMEOUT):
                line = await _read_line(reader)
        except TimeoutError:
            return _refusal("the request did not arrive in time", USAGE)
        except BrokerError as error:
            return _refusal(error.message, error.exit_code)
        if line is None:
            return None
        work = asyncio.create_task(self._answer(line))
        gone = asyncio.create_task(_hung_up(reader))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return _refusal("the request is not a JSON line", USAGE)
        # Before anything waits: of several requests at a time only one is then held in memory.
        if has_more_values(request, MAX_VALUES):
            return _refusal(f"the request holds more than {MAX_VALUES:,} values", USAGE)
        if not isinstance(request, dict) or not self._allows(request.get("token")):
            return _refusal("the token is not this run's", USAGE)
        try:
            if self._before is not None:
                await self._before()
            result = await self._commands.run(request.get("command"), request.get("args"))
        except BrokerError as error:
            return _refusal(error.message, error.exit_code)
        except Exception:
            logger.exception("A command of ump failed")
            return _refusal("the call failed inside Umpteenth; its log says why")
        return {"ok": True, "result": result}

    def _allows(self, token: object) -> bool:
        return isinstance(token, str) and hmac.compare_digest(
            token.encode("utf-8", "replace"), self._token
        )


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _refusal(message: str, exit_code: int = FAILED) -> dict[str, Any]:
    return {"ok": False, "error": message, "exit": exit_code}


async def _read_line(reader: asyncio.StreamReader) -> bytes | None:
    """One line without its end; None where the client closed first."""
    line = bytearray()
    while True:
        chunk = await reader.read(_CHUNK)
        if not chunk:
            return None
        line += chunk
        end = line.find(b"\n", len(line) - len(chunk))
        if len(line) > MAX_REQUEST:
            if end < 0:
                await _discard(reader)
            raise BrokerError("the request is larger than 8 MiB", USAGE)
        if end >= 0:
            return bytes(line[:end])


async def _discard(reader: asyncio.StreamReader) -> None:
    """Read on to the end of the line, so that the sender gets to read our answer."""
    with contextlib.suppress(TimeoutError):
        async with deadlines.timeout(2):
            total = 0
            while total < _MAX_DISCARDED:
                chunk = await reader.read(_CHUNK)
                total += len(chunk)
                if not chunk or chunk.endswith(b"\n"):
                    return


async def _hung_up(reader: asyncio.StreamReader) -> None:
    """Return when the client closes; more data after the request is ignored."""
    with contextlib.suppress(OSError):
        while await reader.read(_CHUNK):
            pass
