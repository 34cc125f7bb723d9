"""What a session needs from a transport, behind the stream protocol of the SDK's dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCResponse

from servers.mcp.types import ConnectionLost, ConnectionSettings, ServerError

if TYPE_CHECKING:
    from servers.mcp.exchange import Door

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]

# The code of an answer that a transport makes up; the error itself travels in `data`.
TRANSPORT_ERROR = -32000
# Answers to the server's own requests that are on their way at once: each may be a POST, and a
# server that asks more than it takes answers for goes without.
MAX_ANSWERS = 32


class Transport(Protocol):
    kind: str  # "stdio", "http" or "sse"

    @property
    def incoming(self) -> Incoming: ...
    @property
    def ended(self) -> bool:
        """Whether nothing more can come from the server."""
        ...

    @property
    def noise(self) -> list[str]:
        """Sentences about what the server sent outside of the protocol."""
        ...

    async def send(self, item: SessionMessage) -> None: ...
    def forget(self, request_id: int) -> None:
        """The answer came, or nobody waits for it any more: free everything."""
        ...

    def abandon(self, request_id: int) -> None:
        """The caller has stopped waiting and the server was told so, but the exchange lives on.

        Until its answer, its own end or `forget`; nothing is resumed or sent again for it.
        """
        ...

    def adopt(self, version: str) -> None:
        """The protocol revision was agreed upon."""
        ...

    def new_session(self) -> None:
        """The next message opens a session; forget the last one."""
        ...

    async def explain_end(self) -> ConnectionLost:
        """Why the connection ended."""
        ...


class Outgoing:
    """The transport's sending side as the dispatcher wants it; `answers` tells whether requests of
    the server are answered."""

    def __init__(self, transport: Transport, answers: Callable[[], bool]) -> None:
        self._transport = transport
        self._answers = answers
        self._answering = 0

    async def send(self, item: SessionMessage) -> None:
        if not isinstance(item.message, JSONRPCResponse | JSONRPCError):
            await self._transport.send(item)
        elif self._answers() and self._answering < MAX_ANSWERS:
            self._answering += 1
            try:
                await self._transport.send(item)
            finally:
                self._answering -= 1

    async def aclose(self) -> None:
        """Nothing: the transport outlives its dispatcher."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class Inbox:
    """The transport's receiving side. Offers after the end are dropped."""

    def __init__(self) -> None:
        self._writer, self.stream = anyio.create_memory_object_stream[SessionMessage | Exception](
            16
        )
        self.closed = False

    async def put(self, item: SessionMessage) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._writer.send(item)

    async def fail(self, request_id: int | str, error: ServerError) -> None:
        """Answer a request with an error of our own."""
        data = ErrorData(code=TRANSPORT_ERROR, message=error.message, data=error)
        await self.put(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=data)))

    def close(self) -> None:
        """The dispatcher wakes all who wait with an error."""
        self.closed = True
        self._writer.close()

    def dispose(self) -> None:
        self.close()
        self.stream.close()


class InboxTransport:
    """What every transport says of its receiving side."""

    def __init__(self) -> None:
        self._inbox = Inbox()

    @property
    def incoming(self) -> Incoming:
        return self._inbox.stream

    @property
    def ended(self) -> bool:
        return self._inbox.closed

    def abandon(self, request_id: int) -> None:
        """Nothing: what still comes in is read like everything else."""


class PostingTransport(InboxTransport):
    """A transport whose requests are POSTs, each in a task of its own by the request's id."""

    def __init__(self, settings: ConnectionSettings, door: Door) -> None:
        super().__init__()
        self._settings = settings
        self._door = door
        self._posts: dict[int | str, asyncio.Task[None]] = {}

    @property
    def noise(self) -> list[str]:
        return []

    def forget(self, request_id: int) -> None:
        task = self._posts.pop(request_id, None)
        if task is not None:
            task.cancel()

    async def end_posts(self) -> None:
        """Stop listening and posting."""
        self._inbox.dispose()
        await end_tasks(list(self._posts.values()))


@contextlib.asynccontextmanager
async def background(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run tasks beside the block and end them with it. They must handle their own errors."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        await end_tasks(tasks)


async def end_tasks(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
