"""Streamable HTTP: every message is a POST, whose answer is JSON or a stream of events.

No standing stream is opened for what a server may want to say on its own: its notifications and
requests arrive with the answers. A stream that breaks off is resumed where the server numbered its
events; a session that the server has forgotten is reported as `SessionExpired`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import httpx2
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from servers.mcp.errors import NotMcp, SessionExpired, flatten
from servers.mcp.events import Event
from servers.mcp.exchange import (
    Door,
    content_type,
    not_mcp,
    read_body,
    read_events,
    status_of,
)
from servers.mcp.messages import decode_json, encode, read_messages
from servers.mcp.transport import PostingTransport, end_tasks
from servers.mcp.types import ConnectionLost, ConnectionSettings, Observer, ServerError
from umpteenth.core import deadlines

SESSION_HEADER: Final = "mcp-session-id"
VERSION_HEADER: Final = "mcp-protocol-version"
# Answered without side effects, so that a busy server can be asked again.
REPEATABLE: Final = ("initialize", "server/discover", "tools/list")
MAX_RESUMPTIONS: Final = 3
RESUME_DELAY: Final = 1.0
MAX_RESUME_DELAY: Final = 30.0
# Best effort at the end: neither is worth waiting for.
CANCEL_SECONDS: Final = 2.0
GOODBYE_SECONDS: Final = 2.0


@contextlib.asynccontextmanager
async def open_http(
    settings: ConnectionSettings, observer: Observer
) -> AsyncIterator[HttpTransport]:
    """Nothing is sent before the first message; at the end the session is given back."""
    observer.step("Connecting")
    transport = HttpTransport(settings, Door(settings))
    try:
        yield transport
    finally:
        await transport.close()


class HttpTransport(PostingTransport):
    kind = "http"

    def __init__(self, settings: ConnectionSettings, door: Door) -> None:
        super().__init__(settings, door)
        self._farewells: set[asyncio.Task[None]] = set()
        self._session_id = ""
        self._version = ""

    def adopt(self, version: str) -> None:
        self._version = version

    def new_session(self) -> None:
        self._session_id = self._version = ""

    async def explain_end(self) -> ConnectionLost:
        return ConnectionLost("The connection was closed.")

    async def close(self) -> None:
        await self.end_posts()
        if self._farewells:
            await asyncio.wait(self._farewells, timeout=CANCEL_SECONDS)
            await end_tasks(list(self._farewells))
        if self._session_id:
            await self._end_session()
        await self._door.client.aclose()

    async def _end_session(self) -> None:
        with contextlib.suppress(ServerError, TimeoutError):
            async with (
                deadlines.timeout(GOODBYE_SECONDS),
                self._door.open("DELETE", self._settings.url, headers=self._headers(None)),
            ):
                pass

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._posts[message.id] = asyncio.create_task(self._exchange(message, item))
        elif isinstance(message, JSONRPCNotification) and _is_cancellation(message):
            self._say_cancelled(item)
        elif isinstance(message, JSONRPCNotification):
            await self._post(message, item)
        else:  # our answer to a server's request: its loss harms no one here
            with contextlib.suppress(ServerError):
                await self._post(message, item)

    def _say_cancelled(self, item: SessionMessage) -> None:
        """From 2026-07-28 on, ending the request's own exchange is the message."""
        if self._version in MODERN_PROTOCOL_VERSIONS:
            return
        task = asyncio.create_task(self._post_briefly(item))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _post_briefly(self, item: SessionMessage) -> None:
        with contextlib.suppress(ServerError, TimeoutError):
            async with deadlines.timeout(CANCEL_SECONDS):
                await self._post(item.message, item)

    async def _post(self, message: JSONRPCMessage, item: SessionMessage) -> None:
        """A message without an answer: any status of success will do (B09)."""
        async with self._door.open(
            "POST", self._settings.url, headers=self._headers(item), content=encode(message)
        ):
            pass

    async def _exchange(self, request: JSONRPCRequest, item: SessionMessage) -> None:
        try:
            await self._request(request, item)
        except Exception as error:
            await self._inbox.fail(request.id, self._as_server_error(error, request))

    def _as_server_error(self, error: Exception, request: JSONRPCRequest) -> ServerError:
        failure = flatten(error, self._settings.name)
        expired = status_of(failure) == 404 and self._session_id and request.method != "initialize"
        return SessionExpired("The server has forgotten the session.") if expired else failure

    async def _request(self, request: JSONRPCRequest, item: SessionMessage) -> None:
        async with self._door.open(
            "POST",
            self._settings.url,
            headers=self._headers(item),
            content=encode(request),
            patient=request.method in REPEATABLE,
        ) as response:
            if request.method == "initialize":
                self._session_id = response.headers.get(SESSION_HEADER, "")
            kind = content_type(response)
            if kind == "text/event-stream":
                await self._read_stream(response, request)
            elif "json" in kind or not kind:
                await self._read_json(response, request)
            else:
                raise not_mcp(response, self._settings.url)

    async def _read_json(self, response: httpx2.Response, request: JSONRPCRequest) -> None:
        body = await read_body(response)
        try:
            messages = list(read_messages(decode_json(body)))
        except ValueError as error:
            if not body.strip():
                raise NotMcp("The server answered the request with an empty body.") from None
            raise NotMcp(f"The server's answer cannot be read as JSON: {error}.") from None
        answered = False
        for message in messages:
            answered = await self._deliver(message, request) or answered
        if not answered and any(isinstance(message, JSONRPCResponse) for message in messages):
            raise NotMcp("The server's answer has the id of another request.")
        if not answered:
            raise NotMcp("The server's answer is no JSON-RPC answer.", "Check the address.")

    async def _deliver(self, message: JSONRPCMessage, request: JSONRPCRequest) -> bool:
        """Pass a message on; whether it was the answer to the request.

        A refusal is, whatever identifier it bears (B02); a result only with the request's own.
        """
        is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
        if isinstance(message, JSONRPCResponse) and str(message.id) != str(request.id):
            return False  # to a question that nobody asked here
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            message.id = request.id
        await self._inbox.put(SessionMessage(message))
        return is_answer

    async def _read_stream(self, response: httpx2.Response, request: JSONRPCRequest) -> None:
        stream = _Stream(self, request)
        failure = await stream.read(response)
        attempts = 0
        while not stream.answered:
            if not stream.last_event_id or attempts == MAX_RESUMPTIONS:
                raise failure or ConnectionLost("The stream closed before the answer came.")
            attempts += 1
            await asyncio.sleep(stream.delay)
            seen = stream.last_event_id
            failure = await self._resume(stream)
            if stream.last_event_id != seen:
                attempts = 0  # it gets on, if slowly; the call's own limit ends it

    async def _resume(self, stream: _Stream) -> ServerError | None:
        headers = self._headers(None) | {
            "accept": "text/event-stream",
            "last-event-id": stream.last_event_id,
        }
        try:
            async with self._door.open("GET", self._settings.url, headers=headers) as response:
                if content_type(response) != "text/event-stream":
                    return not_mcp(response, self._settings.url)
                return await stream.read(response)
        except ServerError as error:
            return error

    def _headers(self, item: SessionMessage | None) -> dict[str, str]:
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        if self._session_id:
            headers[SESSION_HEADER] = self._session_id
        if self._version:
            headers[VERSION_HEADER] = self._version
        metadata = item.metadata if item else None
        if isinstance(metadata, ClientMessageMetadata):
            headers |= metadata.headers or {}
        return headers


class _Stream:
    """The answer to one request as events, over one response or several."""

    def __init__(self, transport: HttpTransport, request: JSONRPCRequest) -> None:
        self._transport = transport
        self._request = request
        self.answered = False
        self.last_event_id = ""
        self.delay = RESUME_DELAY

    async def read(self, response: httpx2.Response) -> ServerError | None:
        """Read to the answer or to the end; what broke the stream is returned."""
        try:
            async with contextlib.aclosing(read_events(response)) as events:
                async for event in events:
                    await self._take(event)
                    if self.answered:
                        return None
        except ConnectionLost as error:
            return error
        return None

    async def _take(self, event: Event) -> None:
        self.last_event_id = event.id or self.last_event_id
        if event.retry is not None:
            self.delay = min(event.retry / 1000, MAX_RESUME_DELAY)
        if event.kind != "message" or not event.data.strip():
            return
        try:
            messages = list(read_messages(decode_json(event.data)))
        except ValueError as error:
            raise NotMcp(f"An event of the server cannot be read as JSON: {error}.") from None
        for message in messages:
            delivered = await self._transport._deliver(message, self._request)
            self.answered = delivered or self.answered


def _is_cancellation(message: JSONRPCNotification) -> bool:
    return message.method == "notifications/cancelled"
