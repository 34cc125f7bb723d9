"""The three streams of a container over the one connection that an engine gives for them.

Towards the container the bytes go as they are; what comes back is in frames of an eight-byte head
(the stream's number, three zeros, the length) and the content.

The two outputs share that connection: a reader who leaves more than twice his limit holds back the
other output as well, and the end, which comes behind them, until he reads on or it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

CHUNK = 64 * 1024
_HEAD = 8
_STDOUT, _STDERR = 1, 2


class _Valve(asyncio.ReadTransport):
    """Holds one output back while its reader has enough."""

    def __init__(self) -> None:
        super().__init__()
        self._open = asyncio.Event()
        self._open.set()
        self._for_good = False

    def pause_reading(self) -> None:
        if not self._for_good:
            self._open.clear()

    def resume_reading(self) -> None:
        self._open.set()

    def open_for_good(self) -> None:
        self._for_good = True
        self._open.set()

    async def wait(self) -> None:
        await self._open.wait()


class _Inlet(asyncio.WriteTransport):
    """The connection as its writer sees it: to close it ends the input, and no more than that."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        super().__init__()
        self._transport = transport
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed:
            self._transport.write(data)

    def writelines(self, list_of_data: object) -> None:
        self.write(b"".join(list_of_data))  # type: ignore[arg-type]

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._transport.is_closing():
                with contextlib.suppress(OSError):
                    self._transport.write_eof()

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def abort(self) -> None:
        self._closed = True
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._transport.get_extra_info(name, default)


@dataclass
class Streams:
    """`ended` is done when the container has closed its outputs, which it does at its end."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    ended: asyncio.Task[None]
    _transport: asyncio.WriteTransport
    _valves: tuple[_Valve, _Valve]

    def drain(self) -> None:
        """Take what is still to come, however little of it is read."""
        for valve in self._valves:
            valve.open_for_good()

    def close(self) -> None:
        """Let go of the connection; what has come can still be read."""
        self.ended.cancel()
        self._transport.abort()


async def connect(sock: socket.socket, limit: int) -> Streams:
    """Take over the socket. `limit` as of `jobs.sandbox.base.start`."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(CHUNK)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
    # As a connection's own writer, but for what closing it does.
    stdin = asyncio.StreamWriter(_Inlet(transport), protocol, None, loop)
    stdout, stderr = asyncio.StreamReader(limit), asyncio.StreamReader(limit)
    valves = _Valve(), _Valve()
    outputs = {_STDOUT: (stdout, valves[0]), _STDERR: (stderr, valves[1])}
    for output, valve in outputs.values():
        output.set_transport(valve)
    ended = asyncio.create_task(_divide(reader, outputs))
    return Streams(stdin, stdout, stderr, ended, transport, valves)


async def _divide(
    reader: asyncio.StreamReader,
    outputs: dict[int, tuple[asyncio.StreamReader, _Valve]],
) -> None:
    try:
        while True:
            head = await reader.readexactly(_HEAD)
            left = int.from_bytes(head[4:], "big")
            output = outputs.get(head[0])
            while left:
                data = await reader.read(min(left, CHUNK))
                if not data:
                    return
                left -= len(data)
                if output is not None:
                    output[0].feed_data(data)
                    await output[1].wait()
    except (OSError, asyncio.IncompleteReadError):
        pass  # the end, in order or not: how the container ended is asked for
    finally:
        for output_reader, _ in outputs.values():
            output_reader.feed_eof()
