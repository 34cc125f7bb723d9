"""The proxy that a guarded sandbox talks to: HTTP CONNECT, plain HTTP and SOCKS5 on one port.

It serves a listener that was made inside the sandbox's network namespace, so a connection names
its sandbox by itself and needs no password. What comes in is hostile: everything is bounded, and
a connection that breaks the rules of its protocol gets a sentence and its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from dataclasses import dataclass

from jobs.sandbox.egress.base import Egress, Proxied, Refused
from jobs.sandbox.egress.dial import CHUNK, DIAL_SECONDS, Streams, dial, why
from jobs.sandbox.egress.requests import (
    HELP,
    MAX_HEAD,
    BadRequest,
    Body,
    Target,
    answer,
    is_word,
    parse_head,
)
from umpteenth.core.deadlines import timeout

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
# Those that are told that there are too many; whoever comes after them waits to be taken, for
# the descriptors of the worker are not the sandbox's to use up.
MAX_TURNED_AWAY = 16
# So many connections have large buffers, for they are fast; the others together use no more.
FEW = 32
SMALL_CHUNK = 32 * 1024
# A tunnel of which one side has ended may be silent for so long: its client may be gone, and
# who goes without a word looks like one who waits for an answer.
HALF_OPEN_SECONDS = 600.0
MAX_DIALS = 64  # at once: each may hold a thread that asks the name service
HEAD_SECONDS = 60.0
CLOSE_SECONDS = 60.0  # for the last words to a client that reads slowly
LINGER_SECONDS = 1.0
LINGER_READS = 64

_SOCKS5 = 5
_NO_PASSWORD, _PASSWORD, _NO_METHOD = 0, 2, 0xFF
_REFUSED, _UNREACHABLE, _NO_COMMAND, _NO_ADDRESS_TYPE = 2, 4, 7, 8


class Proxy:
    """Serves one listener. Made, used and closed in one event loop."""

    def __init__(
        self,
        egress: Egress,
        *,
        max_connections: int = MAX_CONNECTIONS,
        head_seconds: float = HEAD_SECONDS,
        dial_seconds: float = DIAL_SECONDS,
        half_open_seconds: float = HALF_OPEN_SECONDS,
    ) -> None:
        self._egress = egress
        self._max = max_connections
        self._head_seconds = head_seconds
        self._dial_seconds = dial_seconds
        self._half_open_seconds = half_open_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._dials = asyncio.Semaphore(MAX_DIALS)
        self._closed = False
        self._accepting: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None

    def serve(self, listener: socket.socket) -> None:
        """Take connections from now on; the listener is the proxy's, which closes it."""
        if self._closed:
            listener.close()
            return
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener))

    def close(self) -> None:
        """End every connection and let go of the listener, which holds a network namespace.

        A listener that comes later is closed at once.
        """
        self._closed = True
        for task in (self._accepting, *self._tasks):
            if task is not None:
                task.cancel()
        if self._listener is not None:
            # Not before its task is off the loop: the loop would watch a closed descriptor.
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:  # out of descriptors, most likely; those who wait are not lost
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._serve_one(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # Where connections come without end, accepting them never waits, and nobody else
            # in this loop would get a turn.
            await asyncio.sleep(0)
            while len(self._tasks) >= self._max + MAX_TURNED_AWAY:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _serve_one(self, sock: socket.socket) -> None:
        full = len(self._tasks) > self._max
        try:
            reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_HEAD)
        except OSError:
            sock.close()
            return
        try:
            if full:
                words = f"This sandbox has {self._max} connections open, which is the most."
                writer.write(answer(503, words))
                self._egress.failed("", 0, words)
            if full or not await self._talk(reader, writer):
                await _linger(reader, writer)
            await _close(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side has gone
        except Exception:
            logger.exception("the proxy of a sandbox failed at a connection")
        finally:
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one connection; False where an answer of ours is all that came of it."""
        try:
            async with timeout(self._head_seconds):
                first = await reader.readexactly(1)
                if first[0] == _SOCKS5:
                    target = await _greet(reader, writer)
                    head, body = b"", None
                elif not is_word(first):  # TLS, SOCKS4: they wait for an answer, and send no more
                    raise BadRequest(400, HELP)
                else:
                    target, head, body = parse_head(first + await _read_head(reader))
        except BadRequest as error:
            writer.write(error.answer)
            return False
        except TimeoutError:
            words = f"No whole request came within {self._head_seconds:.0f} seconds."
            writer.write(answer(408, words))
            return False
        found = await self._dial(target, head, writer, tunnel=body is None)
        if found is None:
            return False
        far, head = found
        try:
            await _relay(reader, writer, *far, head, body, self._half_open_seconds)
        finally:
            await _close(far[1])
        return True

    async def _dial(
        self, target: Target, head: bytes, writer: asyncio.StreamWriter, *, tunnel: bool
    ) -> tuple[Streams, bytes] | None:
        """A connection to the target, its opening said to the client, and what to send first;
        None if there is none."""
        host, port = target.host, target.port
        try:
            async with timeout(self._dial_seconds), self._dials:
                way = await self._egress.gate(host, port)
                limit = CHUNK if len(self._tasks) <= FEW else SMALL_CHUNK
                if not isinstance(way, Proxied):
                    far = await dial(way, port, limit)
                else:
                    upstream = self._egress.upstream
                    assert upstream is not None  # a gate that knows of none does not answer so
                    far = await upstream.connect(target, way.addresses, tunnel=tunnel, limit=limit)
                    head = head if tunnel or way.addresses else upstream.ask(head, target)
        except Refused as error:
            self._egress.refused(host, port, str(error))
            writer.write(_socks_reply(_REFUSED) if target.socks else answer(403, str(error)))
            return None
        except OSError as error:
            words = f"{host}:{port} could not be reached: {why(error)}."
            self._egress.failed(host, port, words)
            writer.write(_socks_reply(_UNREACHABLE) if target.socks else answer(502, words))
            return None
        self._egress.opened(host, port)
        if target.socks:
            writer.write(_socks_reply(0))
        elif target.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return far, head


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        words = f"The header of the request is larger than {MAX_HEAD // 1024} KiB."
        raise BadRequest(431, words) from None


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Target:
    """SOCKS5 from behind its first byte to the wish (RFC 1928); a password is taken as it comes."""
    methods = await reader.readexactly((await reader.readexactly(1))[0])
    if _NO_PASSWORD in methods:
        writer.write(bytes([_SOCKS5, _NO_PASSWORD]))
    elif _PASSWORD in methods:
        writer.write(bytes([_SOCKS5, _PASSWORD]))
        await reader.readexactly(1)
        for _ in ("name", "password"):
            await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x01\x00")
    else:
        raise BadRequest.with_bytes(bytes([_SOCKS5, _NO_METHOD]))
    version, command, _, kind = await reader.readexactly(4)
    if version != _SOCKS5 or command != 1:
        raise BadRequest.with_bytes(_socks_reply(_NO_COMMAND))
    if kind == 1:
        host = socket.inet_ntop(socket.AF_INET, await reader.readexactly(4))
    elif kind == 4:
        host = socket.inet_ntop(socket.AF_INET6, await reader.readexactly(16))
    elif kind == 3:
        name = await reader.readexactly((await reader.readexactly(1))[0])
        host = name.decode("ascii", "replace")
    else:
        raise BadRequest.with_bytes(_socks_reply(_NO_ADDRESS_TYPE))
    (port,) = struct.unpack("!H", await reader.readexactly(2))
    try:
        return Target.checked(host, port, socks=True)
    except BadRequest:
        raise BadRequest.with_bytes(_socks_reply(_REFUSED)) from None


def _socks_reply(code: int) -> bytes:
    return bytes([_SOCKS5, code, 0, 1, 0, 0, 0, 0, 0, 0])


async def _relay(
    near: asyncio.StreamReader,
    near_out: asyncio.StreamWriter,
    far: asyncio.StreamReader,
    far_out: asyncio.StreamWriter,
    head: bytes,
    body: Body | None,
    half_open_seconds: float,
) -> None:
    """Copy both ways until both have ended, or one has broken or the other is silent for long.

    Of a plain request only what belongs to it goes over: the next one on the same connection may
    be for another host.
    """
    far_out.write(head)
    moved = _Moved()
    up = asyncio.create_task(_copy(near, far_out, body, moved))
    down = asyncio.create_task(_copy(far, near_out, None, moved))
    try:
        done, pending = await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        # A plain request's connection is over with its answer, or with its client.
        if body is not None or any(task.exception() for task in done):
            return
        seen = -1
        while pending and seen != moved.pieces:
            seen = moved.pieces
            _, pending = await asyncio.wait(pending, timeout=half_open_seconds)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


@dataclass
class _Moved:
    """How many pieces have gone over, in both directions."""

    pieces: int = 0


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: Body | None, moved: _Moved
) -> None:
    while data := await reader.read(CHUNK):
        moved.pieces += 1
        part = data if body is None else body.take(data)
        writer.write(part)
        await writer.drain()
        if len(part) < len(data):
            # Nobody serves what comes behind the request; only its end is waited for.
            while await reader.read(CHUNK):
                pass
            return
    if body is None:
        if not writer.can_write_eof():  # TLS to an upstream proxy: there the end is for both
            raise ConnectionResetError("the client has gone")
        writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Send what is still to be sent, and let go of the connection whatever happens."""
    try:
        writer.close()
        with contextlib.suppress(OSError):
            async with timeout(CLOSE_SECONDS):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read on for a moment: a connection closed over unread data takes the answer with it."""
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with timeout(LINGER_SECONDS):
            for _ in range(LINGER_READS):
                if not await reader.read(CHUNK):
                    break
