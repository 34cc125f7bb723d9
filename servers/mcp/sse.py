"""The transport of 2024-11-05: one standing stream of events, and an address to post to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urljoin

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from servers.limits import request_limit
from servers.mcp.errors import NotMcp, flatten
from servers.mcp.events import Event
from servers.mcp.exchange import Door, content_type, not_mcp, read_events
from servers.mcp.messages import decode_json, encode, read_messages
from servers.mcp.transport import PostingTransport, background
from servers.mcp.types import (
    ConnectionLost,
    ConnectionSettings,
    Observer,
    ServerError,
    ServerUnavailable,
)
from umpteenth.core import deadlines
from umpteenth.core.http import public_url, same_origin

POST_SECONDS_FOR_NOTICES: Final = 2.0


@contextlib.asynccontextmanager
async def open_sse(settings: ConnectionSettings, observer: Observer) -> AsyncIterator[SseTransport]:
    """Open the stream and wait until it has named the address for messages."""
    observer.step("Connecting over SSE")
    transport = SseTransport(settings, Door(settings))
    try:
        async with background(transport.read()):
            await transport.wait_for_endpoint()
            yield transport
    finally:
        await transport.close()


class SseTransport(PostingTransport):
    kind = "sse"

    def __init__(self, settings: ConnectionSettings, door: Door) -> None:
        super().__init__(settings, door)
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._failure: ServerError | None = None

    def adopt(self, version: str) -> None:
        """Nothing: the stream is the session."""

    def new_session(self) -> None:
        """Nothing: the stream is the session."""

    async def explain_end(self) -> ConnectionLost:
        reason = f": {self._failure.message}" if self._failure else "."
        return ConnectionLost(f"The server closed the event stream{reason}")

    async def close(self) -> None:
        await self.end_posts()
        await self._door.client.aclose()

    async def wait_for_endpoint(self) -> None:
        limit = request_limit(self._settings.request_timeout)
        try:
            async with deadlines.timeout(limit.seconds):
                await self._endpoint
        except TimeoutError:
            raise ServerUnavailable(
                f"{public_url(self._settings.url)} named no address for messages "
                f"within {limit.seconds:g} seconds.",
                "Check the path; older servers listen at /sse.",
            ) from None

    async def read(self) -> None:
        """Read the stream to its end; the first event decides whether the connection stands."""
        try:
            headers = {"accept": "text/event-stream", "cache-control": "no-store"}
            async with self._door.open("GET", self._settings.url, headers=headers) as response:
                if content_type(response) != "text/event-stream":
                    raise not_mcp(response, self._settings.url)
                async with contextlib.aclosing(read_events(response)) as events:
                    async for event in events:
                        await self._take(event)
            self._give_up(NotMcp("The event stream ended before it named an address."))
        except Exception as error:
            self._failure = flatten(error, self._settings.name)
            self._give_up(self._failure)
        finally:
            self._inbox.close()

    def _give_up(self, error: ServerError) -> None:
        if not self._endpoint.done():
            self._endpoint.set_exception(error)

    async def _take(self, event: Event) -> None:
        if event.kind == "endpoint" and not self._endpoint.done():
            self._endpoint.set_result(self._checked(event.data.strip()))
        elif event.kind == "message" and event.data.strip():
            with contextlib.suppress(ValueError):  # one bad event harms only its own request
                for message in read_messages(decode_json(event.data)):
                    await self._inbox.put(SessionMessage(message))

    def _checked(self, endpoint: str) -> str:
        url = urljoin(self._settings.url, endpoint)
        if not same_origin(url, self._settings.url):
            raise NotMcp(
                f"The server wants its messages at {public_url(url)}, which is another origin; "
                "Umpteenth does not send them there."
            )
        return url

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._posts[message.id] = asyncio.create_task(self._request(message))
            return
        essential = isinstance(message, JSONRPCNotification) and (
            message.method == "notifications/initialized"
        )
        try:
            async with deadlines.timeout(None if essential else POST_SECONDS_FOR_NOTICES):
                await self._post(encode(message))
        except (ServerError, TimeoutError):
            if essential:
                raise

    async def _request(self, message: JSONRPCRequest) -> None:
        try:
            await self._post(encode(message))
        except Exception as error:
            await self._inbox.fail(message.id, flatten(error, self._settings.name))

    async def _post(self, content: bytes) -> None:
        headers = {"content-type": "application/json"}
        url = await self._endpoint
        async with self._door.open("POST", url, headers=headers, content=content):
            pass
