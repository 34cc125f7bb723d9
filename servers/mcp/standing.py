"""The stream that a server may keep open for what it wants to say on its own (2025-03-26 on).

It is optional: servers answer the GET with 405, with other refusals, with JSON, or with a stream
that ends at once, and are healthy all the same (B04). Where it cannot be had, it is given up; where
it breaks, it is opened again, ever more slowly while nothing comes of it (B05).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import httpx2
from mcp_types import JSONRPCMessage

from servers.mcp.bodies import content_type, read_events
from servers.mcp.events import Event
from servers.mcp.exchange import is_final
from servers.mcp.messages import decode_json, read_messages
from servers.mcp.types import ServerError

FIRST_DELAY: Final = 1.0
MAX_DELAY: Final = 30.0
# Openings in a row of which nothing came, after which the stream is given up.
MAX_MISSES: Final = 4
# A stream that stood for so long was one, even if it said nothing.
STEADY_SECONDS: Final = 10.0

# Opens the stream behind the given event ("" for none).
Opener = Callable[[str], AbstractAsyncContextManager[httpx2.Response]]
Deliver = Callable[[JSONRPCMessage], Awaitable[None]]


class StandingStream:
    def __init__(self, open_stream: Opener, deliver: Deliver, limit: int) -> None:
        """`limit` in bytes of one event."""
        self._open = open_stream
        self._deliver = deliver
        self._limit = limit
        self._last_event_id = ""
        self._asked_delay = 0.0
        self._spoke = False
        self._misses = 0

    async def run(self) -> None:
        """Ends when the server does not offer the stream. Raises nothing."""
        while self._misses < MAX_MISSES:
            start = time.monotonic()
            self._spoke = False
            if not await self._read_once():
                return
            self._count(self._spoke or time.monotonic() - start >= STEADY_SECONDS)
            await asyncio.sleep(self.delay)

    @property
    def delay(self) -> float:
        """Seconds until the next opening: what the server asks for, doubled with each miss."""
        return min(max(self._asked_delay, FIRST_DELAY) * 2.0 ** max(self._misses - 1, 0), MAX_DELAY)

    def _count(self, useful: bool) -> None:
        self._misses = 0 if useful else self._misses + 1
        if self._last_event_id:
            # A server that numbers its events may close streams at will (SEP-1699): what it has
            # to say waits for the next one.
            self._misses = min(self._misses, MAX_MISSES - 1)

    async def _read_once(self) -> bool:
        """Whether it is worth another time."""
        try:
            async with self._open(self._last_event_id) as response:
                if content_type(response) != "text/event-stream":
                    return False
                async for event in _events(response, self._limit):
                    await self._take(event)
        except ServerError as error:
            return not is_final(error)
        return True

    async def _take(self, event: Event) -> None:
        self._last_event_id = event.id or self._last_event_id
        if event.retry is not None:
            self._asked_delay = event.retry / 1000
        if event.kind != "message" or not event.data.strip():
            return
        with contextlib.suppress(ValueError):  # one bad event harms no other
            for message in read_messages(decode_json(event.data)):
                self._spoke = True
                await self._deliver(message)


async def _events(response: httpx2.Response, limit: int) -> AsyncIterator[Event]:
    async with contextlib.aclosing(read_events(response, limit)) as events:
        async for event in events:
            yield event
