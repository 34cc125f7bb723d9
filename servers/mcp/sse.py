"""The transport of 2024-11-05: one standing stream of events, and an address to post to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urljoin

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest

from servers.limits import request_limit
from servers.mcp.bodies import content_type, drain, read_events
from servers.mcp.errors import NotMcp, RpcError, flatten
from servers.mcp.events import Event
from servers.mcp.exchange import INITIALIZED, REPEATABLE, Door, not_mcp
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
from umpteenth.core.http import public_url, same_origin, without_userinfo

EVENT_STREAM: Final = "text/event-stream"
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
        try:
            await self.end_posts()
        finally:
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
            headers = {"accept": EVENT_STREAM, "cache-control": "no-store"}
            async with self._door.open("GET", self._settings.url, headers=headers) as response:
                if content_type(response) != EVENT_STREAM:
                    raise not_mcp(response, self._settings.url)
                limit = self._settings.limits.message_bytes
                async with contextlib.aclosing(read_events(response, limit)) as events:
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
                    await self._deliver(message)

    async def _deliver(self, message: JSONRPCMessage) -> None:
        if not isinstance(message, JSONRPCError) or message.id is not None:
            await self._inbox.put(SessionMessage(message))
            return
        # It belongs to a request, but does not say to which: none of them may wait in vain (B02).
        words = RpcError(message.error.code, message.error.message).message
        for request_id in list(self._posts):
            await self._inbox.fail(request_id, ConnectionLost(f"The server reported: {words}"))

    def _checked(self, endpoint: str) -> str:
        try:
            url = without_userinfo(urljoin(self._settings.url, endpoint))
        except ValueError:
            raise NotMcp("The address that the server names for messages cannot be read.") from None
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
        if isinstance(message, JSONRPCNotification) and message.method == INITIALIZED:
            await self._finish_handshake(message)
            return
        with contextlib.suppress(ServerError, TimeoutError):  # their loss harms no one here
            async with deadlines.timeout(POST_SECONDS_FOR_NOTICES):
                await self._post(encode(message))

    async def _finish_handshake(self, message: JSONRPCNotification) -> None:
        limit = request_limit(self._settings.request_timeout)
        try:
            async with deadlines.timeout(limit.seconds):
                await self._post(encode(message), patient=True)
        except TimeoutError:
            raise ServerUnavailable(
                f"The server did not accept {INITIALIZED} within {limit.seconds:g} seconds "
                f"({limit.option})."
            ) from None

    async def _request(self, message: JSONRPCRequest) -> None:
        try:
            await self._post(encode(message), patient=message.method in REPEATABLE)
        except Exception as error:
            await self._inbox.fail(message.id, flatten(error, self._settings.name))

    async def _post(self, content: bytes, *, patient: bool = False) -> None:
        """What comes back is ignored: answers come on the stream."""
        headers = {"content-type": "application/json"}
        url = await self._endpoint
        async with self._door.open(
            "POST", url, headers=headers, content=content, patient=patient
        ) as response:
            await drain(response)
