"""A proxy on loopback, and servers behind it that answer as they are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from jobs.sandbox.egress.base import Egress, EgressEvent, Proxied, Refused
from jobs.sandbox.egress.proxy import Proxy

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeGate:
    """Lets through what is known by name; everything else is refused or unknown."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, ...] | Proxied] = {}
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> tuple[str, ...] | Proxied:
        self.asked.append((host, port))
        if host.endswith(".unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host not in self.known:
            raise Refused(f"{host} is not among the job's allowed domains.")
        return self.known[host]


class FakeEgress:
    """The proxy, its gate, and what it has reported."""

    def __init__(self, **limits: float) -> None:
        self.gate = FakeGate()
        self.events: list[EgressEvent] = []
        self.proxy = Proxy(Egress(self.gate, self.events.append), **limits)  # type: ignore[arg-type]
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.proxy.serve(listener)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, data: bytes) -> bytes:
        """Everything that comes back until the end."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            return await reader.read()
        finally:
            writer.close()

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@asynccontextmanager
async def target(serve: Serve) -> AsyncIterator[int]:
    """A server on loopback; its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back whatever comes, until its end."""
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()


async def turns_until(condition: Callable[[], bool]) -> int:
    """Let the loop run until the condition holds; how many turns that took."""
    for turns in range(100_000):
        if condition():
            return turns
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")
