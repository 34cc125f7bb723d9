"""One conversation with a server over a transport, in whichever revision was agreed upon.

Requests and answers are raw JSON: the SDK's dispatcher matches them and isolates handlers; the
SDK's models would give up a whole list for one bad item. Progress and cancellation are our own:
a request that nobody waits for any more lives on until the server is done with it (A50).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    CORE_RESULT_TYPES,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    ErrorData,
)

from servers.limits import MAX_INSTRUCTIONS, TimeLimit
from servers.mcp.elicitation import ELICITATION, Questions, capabilities
from servers.mcp.errors import NothingSent, NotMcp, RpcError, own_words
from servers.mcp.ongoing import Ongoing
from servers.mcp.transport import Outgoing, Transport, end_tasks
from servers.mcp.types import CallTimedOut, ConnectionLost, ServerError
from umpteenth import __version__
from umpteenth.core import deadlines
from umpteenth.core.text import clean, finite_number

CLIENT_INFO: Final = {"name": "umpteenth", "title": "Umpteenth", "version": __version__}
# Requests that the protocol forbids to cancel.
NOT_CANCELLABLE: Final = ("initialize", "server/discover")
REFUSED: Final = ("sampling/createMessage", "roots/list")
LISTEN: Final = "subscriptions/listen"
# For telling the server that nobody waits any more: best effort, not worth more.
CANCEL_SECONDS: Final = 2.0

# What the dispatcher says when a stream broke; the transport knows more.
CLOSED: Final = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")

Params = dict[str, Any]


@dataclass(eq=False)
class _Exchange:
    """A request under way; `telling` tells the server that nobody waits for it any more."""

    id: int
    method: str
    task: asyncio.Task[dict[str, Any]]
    ongoing: Ongoing | None = None
    telling: asyncio.Task[None] | None = None


class Session:
    """Owns the dispatcher; `start` and `stop` are called by the task that owns the transport.

    `on_tools_changed` is told that the server announced other tools, `on_changes_missed` that it
    may have done so while nobody listened.
    """

    def __init__(self, transport: Transport, questions: Questions) -> None:
        self.transport = transport
        self.questions = questions
        self.version = ""
        self.modern = False  # whether each request carries its own envelope (2026-07-28 on)
        self.capabilities: dict[str, Any] | None = None
        self.server_name = ""
        self.server_version = ""
        self.instructions = ""
        self.on_tools_changed: Callable[[], None] = _look_away
        self.on_changes_missed: Callable[[], None] = _look_away
        self._dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(
            transport.incoming, Outgoing(transport, self._answers)
        )
        self._task: asyncio.Task[None] | None = None
        self._last_id = 0
        self._stopping = False
        self._exchanges: dict[int, _Exchange] = {}
        self._partings: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        started = _Started()
        self._task = asyncio.create_task(
            self._dispatcher.run(
                self._on_request, self._on_notify, self._intercept, task_status=started
            )
        )
        await started.event.wait()

    async def stop(self) -> None:
        """Whoever still waits learns that the connection was closed, the server first of all."""
        self._stopping = True
        await self._say_all_cancelled()
        if self._task is not None:
            await end_tasks([self._task])
        await end_tasks([*self._partings, *(each.task for each in self._exchanges.values())])

    async def _say_all_cancelled(self) -> None:
        if self._exchanges and not self.transport.ended:
            await asyncio.wait([self._say_cancelled(each) for each in self._exchanges.values()])

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        limit: TimeLimit,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The raw result. `limit` counts in total time, however the answer trickles in (F06).

        Raises `CallTimedOut`, `RpcError` or the transport's own `ServerError`.
        """
        try:
            async with deadlines.timeout(limit.seconds):
                return await self.exchange(method, params, headers=headers)
        except TimeoutError:
            raise CallTimedOut(
                f"The request {method} got no answer within {limit.seconds:g} seconds "
                f"({limit.option}).",
                "Raise the limit if the server needs longer.",
            ) from None

    async def exchange(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        ongoing: Ongoing | None = None,
    ) -> dict[str, Any]:
        """A request without a limit of its own: whoever cancels it gives it up (A50).

        The server is then told, and `ongoing` held until it is done with the request.
        """
        if self.transport.ended:
            end = await self.transport.explain_end()
            raise NothingSent(end.message, end.hint, end.stderr_tail, end.exit_code)
        exchange = self._send(method, dict(params or {}), headers or {}, ongoing)
        try:
            return self._of_known_type(await asyncio.shield(exchange.task))
        except MCPError as error:
            raise await self._explain(error) from None
        except asyncio.CancelledError:
            self._give_up(exchange)
            raise
        finally:
            if exchange.task.done():
                self._end(exchange)

    def _of_known_type(self, result: dict[str, Any]) -> dict[str, Any]:
        """Without a type it is complete (spec 2026-07-28, Overview, ResultType)."""
        kind = result.get("resultType")
        if self.modern and kind is not None and not _is_core(kind):
            shown = own_words(str(kind), 50)
            raise NotMcp(f"The server's result has the unknown type “{shown}”.")
        return result

    def _send(
        self, method: str, body: Params, headers: Mapping[str, str], ongoing: Ongoing | None
    ) -> _Exchange:
        self._last_id += 1
        request_id = self._last_id
        if ongoing is not None:
            ongoing.sent = True
            # Asked for anyway: progress renews the limit of a call.
            body["_meta"] = {**body.get("_meta", {}), "progressToken": request_id}
        options: CallOptions = {
            "request_id": request_id,
            "cancel_on_abandon": False,
            "headers": {**self._stamp(method, body), **headers},
        }
        waiting = asyncio.create_task(self._wait_for(method, body or None, options))
        waiting.add_done_callback(_seen)
        exchange = _Exchange(request_id, method, waiting, ongoing)
        self._exchanges[request_id] = exchange
        return exchange

    async def _wait_for(
        self, method: str, body: Params | None, options: CallOptions
    ) -> dict[str, Any]:
        try:
            return await self._dispatcher.send_raw_request(method, body, options)
        except asyncio.CancelledError:
            # Only `stop` and `_give_up` do that; whoever still waits must not seem cancelled too.
            raise MCPError.from_error_data(CLOSED) from None

    def _end(self, exchange: _Exchange) -> None:
        self._exchanges.pop(exchange.id, None)
        self.transport.forget(exchange.id)

    def _give_up(self, exchange: _Exchange) -> None:
        """Nobody waits any more; what is left to do happens beside the caller."""
        if exchange.task.done() or self._stopping:
            exchange.task.cancel()
            return
        if exchange.ongoing is not None:
            exchange.ongoing.hold()
            exchange.ongoing.give_up()
        parting = asyncio.create_task(self._part(exchange))
        self._partings.add(parting)

        def parted(task: asyncio.Task[None]) -> None:
            self._partings.discard(task)
            exchange.task.cancel()
            self._end(exchange)
            if exchange.ongoing is not None:
                exchange.ongoing.release()

        parting.add_done_callback(parted)

    async def _part(self, exchange: _Exchange) -> None:
        await asyncio.wait({self._say_cancelled(exchange)})
        self.transport.abandon(exchange.id)
        if exchange.ongoing is not None:
            await exchange.ongoing.silence(exchange.task)

    def _say_cancelled(self, exchange: _Exchange) -> asyncio.Task[None]:
        if exchange.telling is None:
            exchange.telling = asyncio.create_task(self._tell(exchange))
        return exchange.telling

    async def _tell(self, exchange: _Exchange) -> None:
        if exchange.method in NOT_CANCELLABLE:
            return
        params = {"requestId": exchange.id, "reason": "Nobody waits for the answer any more."}
        options: CallOptions = {"headers": self._stamp("notifications/cancelled", {})}
        with contextlib.suppress(ServerError, TimeoutError):
            async with deadlines.timeout(CANCEL_SECONDS):
                await self._dispatcher.notify("notifications/cancelled", params, options)

    async def notify(self, method: str) -> None:
        options: CallOptions = {"headers": self._stamp(method, {})}
        await self._dispatcher.notify(method, None, options)

    def adopt(self, version: str, result: Mapping[str, Any], *, modern: bool) -> None:
        """Take over what the server said of itself, whatever shape it has."""
        self.version, self.modern = version, modern
        self.transport.adopt(version)
        capabilities = result.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else None
        info = result.get("serverInfo")
        if modern and isinstance(meta := result.get("_meta"), dict):
            info = meta.get(SERVER_INFO_META_KEY, info)
        info = info if isinstance(info, dict) else {}
        self.server_name = _text(info.get("name")) or _text(info.get("title"))
        self.server_version = _text(info.get("version"), 100)
        self.instructions = _text(result.get("instructions"), MAX_INSTRUCTIONS)

    @property
    def runs_tasks(self) -> bool:
        """Whether the server takes calls of tools as tasks (2025-11-25)."""
        found: Any = self.capabilities
        for key in ("tasks", "requests", "tools", "call"):
            found = found.get(key) if isinstance(found, dict) else None
        return found is not None

    def envelope(self, version: str) -> Params:
        """What each request says of its sender from 2026-07-28 on."""
        return {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: CLIENT_INFO,
            CLIENT_CAPABILITIES_META_KEY: capabilities(version),
        }

    def _stamp(self, method: str, body: Params) -> dict[str, str]:
        """The headers of a message; adds the envelope to `body` where the revision wants it."""
        if not self.version:
            return {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.version}
        if self.modern:
            body["_meta"] = {**self.envelope(self.version), **body.get("_meta", {})}
            headers[MCP_METHOD_HEADER] = method
            if method == "tools/call":
                headers[MCP_NAME_HEADER] = encode_header_value(str(body.get("name")))
        return headers

    async def _explain(self, error: MCPError) -> ServerError:
        data = error.error.data
        if isinstance(data, ServerError):
            return data
        if self._stopping:
            return _closed_meanwhile()
        if self.transport.ended or error.error == CLOSED:
            return await self.transport.explain_end()
        return RpcError(error.error.code, error.error.message, data)

    async def _on_request(
        self,
        context: DispatchContext[TransportContext],
        method: str,
        params: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Servers may ask whether we live and put questions; everything else is refused."""
        if self.modern:
            self.questions.ignored(method)
            raise MCPError(code=INVALID_REQUEST, message="Not answered.")
        if method == "ping":
            return {}
        if method == ELICITATION:
            if (params or {}).get("mode") == "url":  # not declared (2025-11-25, Elicitation)
                self.questions.refused("a visit to an address")
                raise MCPError(code=INVALID_PARAMS, message="Only forms are supported.")
            clocks = [each.ongoing.clock for each in self._exchanges.values() if each.ongoing]
            return await self.questions.answer(params or {}, clocks)
        if method in REFUSED:
            self.questions.refused(method)
            raise MCPError(code=METHOD_NOT_FOUND, message=f"Umpteenth does not offer {method}.")
        raise MCPError(code=METHOD_NOT_FOUND, message="Method not found")

    def _answers(self) -> bool:
        """From 2026-07-28 on servers put no requests, and clients never answer any."""
        return not self.modern

    async def _on_notify(
        self,
        context: DispatchContext[TransportContext],
        method: str,
        params: Mapping[str, Any] | None,
    ) -> None:
        """Nothing comes here: `_intercept` sees everything first."""

    def _intercept(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """What servers announce, in the order of its arrival; no task for each (F06)."""
        if method == "notifications/progress":
            self._on_progress(params or {})
        elif method == "notifications/tools/list_changed":
            self.on_tools_changed()
        elif method == "notifications/cancelled":
            self._on_cancelled((params or {}).get("requestId"))
        return True

    def _on_cancelled(self, request_id: Any) -> None:
        """Servers end nothing in this way but a stream of announcements (2026-07-28)."""
        for exchange in self._exchanges.values():
            if exchange.method == LISTEN and str(exchange.id) == str(request_id):
                exchange.task.cancel()

    def _on_progress(self, params: Mapping[str, Any]) -> None:
        token, message = params.get("progressToken"), params.get("message")
        if isinstance(token, str) and token.isdecimal() and len(token) < 20:
            token = int(token)
        exchange = self._exchanges.get(token) if isinstance(token, int) else None
        progress = finite_number(params.get("progress"))
        if exchange is None or exchange.ongoing is None or progress is None:
            return
        words = message if isinstance(message, str) else None
        exchange.ongoing.progress(progress, finite_number(params.get("total")), words)


def _closed_meanwhile() -> ConnectionLost:
    return ConnectionLost("The connection was closed while the request was waiting.")


def _seen(task: asyncio.Task[dict[str, Any]]) -> None:
    """Nobody may wait any more; an error is then no news."""
    if not task.cancelled():
        task.exception()


class _Started:
    """Told by the dispatcher that it can be used."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def started(self, value: None = None) -> None:
        self.event.set()


def _look_away() -> None:
    pass


def _is_core(kind: Any) -> bool:
    return isinstance(kind, str) and kind in CORE_RESULT_TYPES


def _text(value: Any, limit: int = 200) -> str:
    return clean(value.strip(), limit) if isinstance(value, str) else ""
