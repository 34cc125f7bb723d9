"""Streamable HTTP: every message is a POST, whose answer is JSON or a stream of events.

Up to 2025-11-25 a server may also speak on its own, on a stream that is opened beside (see
`standing`). A stream that breaks off is resumed where the server numbered its events. A session
that the server has forgotten is reported as `SessionExpired`, in whatever disguise (B01, B02).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import httpx2
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    UNSUPPORTED_PROTOCOL_VERSION,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from servers.limits import request_limit
from servers.mcp import forgotten
from servers.mcp.bearer import Refusal
from servers.mcp.bodies import (
    charset_of,
    content_type,
    drain,
    raw_header,
    read_body,
    read_events,
    text_of,
)
from servers.mcp.errors import HttpRefusal, NotMcp, RpcError, SessionExpired, flatten, own_words
from servers.mcp.events import Event
from servers.mcp.exchange import INITIALIZED, REPEATABLE, Door, is_final, not_mcp
from servers.mcp.messages import decode_json, encode, read_messages
from servers.mcp.standing import StandingStream
from servers.mcp.transport import PostingTransport, end_tasks
from servers.mcp.types import (
    ConnectionLost,
    ConnectionSettings,
    Observer,
    ServerError,
    ServerUnavailable,
)
from umpteenth.core import deadlines
from umpteenth.core.http import public_url

SESSION_HEADER: Final = "mcp-session-id"
VERSION_HEADER: Final = "mcp-protocol-version"
MAX_RESUMPTIONS: Final = 3
RESUME_DELAY: Final = 1.0
MAX_RESUME_DELAY: Final = 30.0
# So often in a row a server may have a stream resumed as fast as it likes.
QUICK_RESUMPTIONS: Final = 20
# How long a stream may stay open behind the answer: read to its end, its connection is used again.
LINGER_SECONDS: Final = 1.0
# Best effort at the end: neither is worth waiting for.
CANCEL_SECONDS: Final = 1.0
GOODBYE_SECONDS: Final = 2.0


pause = asyncio.sleep  # between resumptions


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
        self._endings: set[asyncio.Task[None]] = set()  # answered, and read to their end
        self._abandoned: set[int | str] = set()
        self._standing: asyncio.Task[None] | None = None
        self._session_id = ""
        self._version = ""
        # The server refused a request in a way that may mean that it has forgotten the session:
        # the next request is not sent in it any more (B02).
        self._in_doubt = False

    @property
    def noise(self) -> list[str]:
        """Also where the address leads: a detour with every message (B10)."""
        if not self._door.moved_to:
            return []
        shown, better = public_url(self._settings.url), public_url(self._door.moved_to)
        return [f"The server redirects {shown} to {better}; enter that as the URL."]

    @property
    def _modern(self) -> bool:
        return self._version in MODERN_PROTOCOL_VERSIONS

    def adopt(self, version: str) -> None:
        self._version = version
        if self._modern:  # there are no sessions any more, also not one of a handshake cut short
            self._session_id = ""

    def new_session(self) -> None:
        self._session_id = self._version = ""
        self._in_doubt = False
        if self._standing is not None:
            self._standing.cancel()

    def abandon(self, request_id: int) -> None:
        if self._modern:  # the end of the exchange is what tells the server
            self.forget(request_id)
        elif request_id in self._posts:
            self._abandoned.add(request_id)

    async def explain_end(self) -> ConnectionLost:
        return ConnectionLost("The connection was closed.")

    async def close(self) -> None:
        try:
            await self.end_posts()
            await end_tasks([*self._endings, *([self._standing] if self._standing else [])])
            await self._take_leave()
        finally:
            await self._door.client.aclose()

    async def _take_leave(self) -> None:
        with contextlib.suppress(ServerError, TimeoutError):
            async with deadlines.timeout(GOODBYE_SECONDS):
                if self._farewells:
                    await asyncio.wait(self._farewells, timeout=CANCEL_SECONDS)
                if self._session_id:
                    await self._end_session()
        await end_tasks(list(self._farewells))

    async def _end_session(self) -> None:
        """Some servers do not let clients end sessions, and answer 405."""
        async with self._door.open(
            "DELETE", self._settings.url, headers=self._headers(), refusal="ignored"
        ):
            pass

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._posts[message.id] = self._start(message, item)
        elif isinstance(message, JSONRPCNotification) and _is_cancellation(message):
            self._say_cancelled(item)
        elif isinstance(message, JSONRPCNotification):
            await self._post(item, message.method)
            if message.method == INITIALIZED:
                self._listen()
        else:  # our answer to a server's request: its loss harms no one here
            with contextlib.suppress(ServerError):
                await self._post(item, "an answer")

    def _start(self, request: JSONRPCRequest, item: SessionMessage) -> asyncio.Task[None]:
        """In the session of this moment: another may be opened before the task gets its turn."""
        session = self._session_id if request.method != "initialize" else ""
        return asyncio.create_task(self._exchange(request, self._post_headers(item), session))

    def _say_cancelled(self, item: SessionMessage) -> None:
        """From 2026-07-28 on, ending the request's own exchange is the message."""
        if self._modern:
            return
        task = asyncio.create_task(self._post_briefly(item))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _post_briefly(self, item: SessionMessage) -> None:
        with contextlib.suppress(ServerError, TimeoutError):
            async with deadlines.timeout(GOODBYE_SECONDS):
                await self._post(item, "a cancellation")

    async def _post(self, item: SessionMessage, what: str) -> None:
        """A message without an answer; the body of what comes back is ignored (B09)."""
        limit = request_limit(self._settings.request_timeout)
        headers = self._post_headers(item)
        posted = self._door.open(
            "POST",
            self._settings.url,
            headers=headers,
            content=encode(item.message),
            patient=what == INITIALIZED,
            refusal=_weight_of_refusal(headers),
        )
        try:
            async with deadlines.timeout(limit.seconds), posted as response:
                if what == INITIALIZED:
                    self._check_acknowledgement(response)
                await drain(response)
        except TimeoutError:
            raise ServerUnavailable(
                f"The server did not accept {what} within {limit.seconds:g} seconds "
                f"({limit.option})."
            ) from None

    def _check_acknowledgement(self, response: httpx2.Response) -> None:
        """Any success will do, unless the settings want the specification's (U18, B09)."""
        if self._settings.strict_initialized_ack and response.status_code not in (202, 204):
            raise HttpRefusal(
                f"The server acknowledged {INITIALIZED} with {response.status_code} in place of "
                "202 or 204, and initialized_ack_mode is strict.",
                "Set initialized_ack_mode to lenient if that is all right.",
                status=response.status_code,
            )

    def _listen(self) -> None:
        """Open the standing stream beside; it belongs to the session, and ends with it."""
        stream = StandingStream(
            self._open_stream, self._deliver_unasked, self._settings.limits.message_bytes
        )
        self._standing = asyncio.create_task(stream.run())

    def _open_stream(
        self, last_event_id: str, refusal: Refusal = "ignored"
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        headers = {**self._headers(), "accept": "text/event-stream", "cache-control": "no-store"}
        if last_event_id:
            # In UTF-8, by the standard of server-sent events.
            headers["last-event-id"] = last_event_id.encode().decode("latin-1")
        return self._door.open("GET", self._settings.url, headers=headers, refusal=refusal)

    async def _deliver_unasked(self, message: JSONRPCMessage) -> None:
        """Requests and notices of the server; answers belong on the streams of their requests,
        but some servers send them here."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            waiting = [known for known in self._posts if str(known) == str(message.id)]
            if not waiting:
                return
            message.id = waiting[0]
        await self._inbox.put(SessionMessage(message))

    async def _exchange(
        self, request: JSONRPCRequest, headers: dict[str, str], session: str
    ) -> None:
        try:
            if session and self._in_doubt:
                raise SessionExpired("The server seems to have forgotten the session.")
            await self._request(request, headers)
        except Exception as error:
            await self._inbox.fail(request.id, self._as_server_error(error, session))
        finally:
            self._abandoned.discard(request.id)

    def _as_server_error(self, error: Exception, session: str) -> ServerError:
        """With a session the server may have forgotten it; only 404 says so in clear words."""
        failure = flatten(error, self._settings.name)
        if not session or isinstance(failure, SessionExpired):
            return failure
        if forgotten.says_so_with_404(failure):
            return _expired(failure, not_run=True)
        if forgotten.says_so_in_words(failure):
            return _expired(failure)
        if session == self._session_id and forgotten.may_mean_so(failure):
            self._in_doubt = self._settings.reinit_on_expired_session
        return failure

    async def _request(self, request: JSONRPCRequest, headers: dict[str, str]) -> None:
        if request.method == "server/discover":
            self._want_session(present=False)
        async with self._door.open(
            "POST",
            self._settings.url,
            headers=headers,
            content=encode(request),
            patient=request.method in REPEATABLE,
            refusal=_weight_of_refusal(headers),
        ) as response:
            if request.method == "initialize":
                self._session_id = raw_header(response, SESSION_HEADER)
            if content_type(response) == "text/event-stream":
                await self._read_stream(response, request)
            else:
                await self._read_json(response, request)

    def _want_session(self, *, present: bool) -> None:
        """U16. From 2026-07-28 on there are no sessions at all."""
        if not present and not self._settings.allow_stateless:
            raise NotMcp(
                "The server gives no session id, and allow_stateless is off.",
                "Switch allow_stateless on to use it without a session.",
            )

    async def _read_json(self, response: httpx2.Response, request: JSONRPCRequest) -> None:
        """The answer in one document; its content type is believed only if it cannot be read."""
        body = await read_body(response, self._settings.limits.message_bytes)
        is_json = "json" in content_type(response) or not content_type(response)
        try:
            messages = list(read_messages(decode_json(text_of(body, charset_of(response)))))
        except ValueError as error:
            if not is_json:
                raise not_mcp(response, self._settings.url) from None
            if not body.strip():
                raise NotMcp("The server answered the request with an empty body.") from None
            raise NotMcp(f"The server's answer cannot be read as JSON: {error}.") from None
        if not messages and not is_json:
            raise not_mcp(response, self._settings.url)
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
        if isinstance(message, JSONRPCResponse):
            if str(message.id) != str(request.id):
                return False  # to a question that nobody asked here
            if request.method == "initialize":
                self._want_session(present=bool(self._session_id))
        elif isinstance(message, JSONRPCError):
            self._look_into_refusal(message, request)
        else:
            await self._inbox.put(SessionMessage(message))
            return False
        message.id = request.id
        self._let_finish(request.id)
        await self._inbox.put(SessionMessage(message))
        return True

    def _look_into_refusal(self, error: JSONRPCError, request: JSONRPCRequest) -> None:
        if request.method == "initialize":
            self._want_session(present=not _knows_no_sessions(error))
        if not self._session_id or request.method == "initialize":
            return
        failure = RpcError(error.error.code, error.error.message, error.error.data)
        # With another identifier it was made by no handler of this request.
        if forgotten.says_so_in_words(failure, of_transport=str(error.id) != str(request.id)):
            raise _expired(failure)

    def _let_finish(self, request_id: int | str) -> None:
        """The answer is there: the exchange may end by itself, though nobody waits for it."""
        task = self._posts.pop(request_id, None)
        if task is not None:
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _read_stream(self, response: httpx2.Response, request: JSONRPCRequest) -> None:
        stream = _Stream(self, request)
        failure = await stream.read(response)
        attempts = resumed = 0
        while not stream.answered:
            if not stream.last_event_id or self._modern:  # there is no resuming any more
                raise failure or ConnectionLost("The stream closed before the answer came.")
            if attempts == MAX_RESUMPTIONS or is_final(failure) or request.id in self._abandoned:
                raise _not_resumed(failure)
            attempts, resumed = attempts + 1, resumed + 1
            floor = RESUME_DELAY if resumed > QUICK_RESUMPTIONS else 0.0
            await pause(max(stream.delay, floor))
            seen = stream.last_event_id
            failure = await self._resume(stream)
            if stream.last_event_id != seen:
                attempts = 0  # it gets on, if slowly; the call's own limit ends it

    async def _resume(self, stream: _Stream) -> ServerError | None:
        try:
            async with self._open_stream(stream.last_event_id, "doubtful") as response:
                if content_type(response) != "text/event-stream":
                    return not_mcp(response, self._settings.url)
                return await stream.read(response)
        except ServerError as error:
            return error

    def _post_headers(self, item: SessionMessage) -> dict[str, str]:
        metadata = item.metadata
        own = metadata.headers if isinstance(metadata, ClientMessageMetadata) else None
        return {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **self._headers(),
            **(own or {}),
        }

    def _headers(self) -> dict[str, str]:
        headers = {SESSION_HEADER: self._session_id, VERSION_HEADER: self._version}
        return {name: value for name, value in headers.items() if value}


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
        limit = self._transport._settings.limits.message_bytes
        clock = deadlines.timeout(None)
        try:
            async with clock, contextlib.aclosing(read_events(response, limit)) as events:
                async for event in events:
                    await self._take(event)
                    if self.answered and clock.when() is None:
                        clock.reschedule(asyncio.get_running_loop().time() + LINGER_SECONDS)
        except SessionExpired:
            raise
        except TimeoutError:
            return None  # the answer came long ago
        except ConnectionLost as error:
            return error
        except ServerError:
            if not self.answered:
                raise
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
            if self.answered and isinstance(message, JSONRPCResponse | JSONRPCError):
                continue
            delivered = await self._transport._deliver(message, self._request)
            self.answered = delivered or self.answered


def _is_cancellation(message: JSONRPCNotification) -> bool:
    return message.method == "notifications/cancelled"


def _knows_no_sessions(error: JSONRPCError) -> bool:
    """Whether a server refuses the handshake because it speaks newer revisions only."""
    data = error.error.data
    supported = data.get("supported") if isinstance(data, dict) else None
    if error.error.code != UNSUPPORTED_PROTOCOL_VERSION or not isinstance(supported, list):
        return False
    return not any(version in supported for version in HANDSHAKE_PROTOCOL_VERSIONS)


def _expired(failure: ServerError, *, not_run: bool = False) -> SessionExpired:
    return SessionExpired(
        f"The server has forgotten the session: {failure.message}", not_run=not_run
    )


def _not_resumed(failure: ServerError | None) -> ConnectionLost:
    """Never an error that would have the request sent again: the server has run it."""
    reason = f" and could not be resumed: {own_words(failure.message)}" if failure else "."
    return ConnectionLost(f"The stream closed before the answer came{reason}")


def _weight_of_refusal(headers: Mapping[str, str]) -> Refusal:
    return "doubtful" if SESSION_HEADER in headers else "counts"
