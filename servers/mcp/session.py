"""One conversation with a server over a transport, in whichever revision was agreed upon.

Requests and answers are raw JSON: the SDK's dispatcher matches them, carries progress and
cancellation, and isolates handlers; the SDK's models would give up a whole list for one bad item.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from mcp.shared.dispatcher import CallOptions, DispatchContext, ProgressFnT
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
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    ErrorData,
)

from servers.limits import MAX_INSTRUCTIONS, PROGRESS_FACTOR, TimeLimit
from servers.mcp.errors import RpcError
from servers.mcp.transport import Outgoing, Transport, end_tasks
from servers.mcp.types import CallTimedOut, ConnectionLost, ServerError
from umpteenth import __version__
from umpteenth.core import deadlines
from umpteenth.core.text import clean

CLIENT_INFO: Final = {"name": "umpteenth", "title": "Umpteenth", "version": __version__}
# Sampling, roots and elicitation are not offered, so that servers need not ask.
CLIENT_CAPABILITIES: Final[dict[str, Any]] = {}
# Requests that the protocol forbids to cancel.
NOT_CANCELLABLE: Final = ("initialize", "server/discover")

# What the dispatcher says when a stream broke; the transport knows more.
CLOSED: Final = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")

Params = dict[str, Any]


class Session:
    """Owns the dispatcher; `start` and `stop` are called by the task that owns the transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.version = ""
        self.modern = False  # whether each request carries its own envelope (2026-07-28 on)
        self.capabilities: dict[str, Any] | None = None
        self.server_name = ""
        self.server_version = ""
        self.instructions = ""
        self._dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(
            transport.incoming, Outgoing(transport)
        )
        self._task: asyncio.Task[None] | None = None
        self._last_id = 0
        self._stopping = False

    async def start(self) -> None:
        started = _Started()
        self._task = asyncio.create_task(
            self._dispatcher.run(self._on_request, self._on_notify, task_status=started)
        )
        await started.event.wait()

    async def stop(self) -> None:
        self._stopping = True
        if self._task is not None:
            await end_tasks([self._task])

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        limit: TimeLimit,
        on_progress: ProgressFnT | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The raw result. `limit` counts in total time, however the answer trickles in (F06).

        Raises `CallTimedOut`, `RpcError` or the transport's own `ServerError`.
        """
        self._last_id += 1
        request_id = self._last_id
        body = dict(params or {})
        options: CallOptions = {
            "request_id": request_id,
            "cancel_on_abandon": method not in NOT_CANCELLABLE,
            "headers": {**self._stamp(method, body), **(headers or {})},
        }
        clock = deadlines.timeout(limit.seconds)
        try:
            async with clock:
                if on_progress is not None:
                    options["on_progress"] = _renewing(clock, limit.seconds, on_progress)
                return await self._dispatcher.send_raw_request(method, body or None, options)
        except TimeoutError:
            raise _timed_out(method, limit) from None
        except MCPError as error:
            raise await self._explain(error) from None
        finally:
            self.transport.forget(request_id)

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

    def envelope(self, version: str) -> Params:
        """What each request says of its sender from 2026-07-28 on."""
        return {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: CLIENT_INFO,
            CLIENT_CAPABILITIES_META_KEY: CLIENT_CAPABILITIES,
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
            return ConnectionLost("The connection was closed while the request was waiting.")
        if self.transport.ended or error.error == CLOSED:
            return await self.transport.explain_end()
        return RpcError(error.error.code, error.error.message, data)

    async def _on_request(
        self,
        context: DispatchContext[TransportContext],
        method: str,
        params: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Servers may ask whether we live; everything else is refused."""
        if method == "ping":
            return {}
        if method == "elicitation/create":
            return {"action": "decline"}
        if method in ("sampling/createMessage", "roots/list"):
            raise MCPError(code=INVALID_REQUEST, message=f"Umpteenth does not offer {method}.")
        raise MCPError(code=METHOD_NOT_FOUND, message="Method not found")

    async def _on_notify(
        self,
        context: DispatchContext[TransportContext],
        method: str,
        params: Mapping[str, Any] | None,
    ) -> None:
        """Nothing follows from what servers announce: lists are read when they are needed."""


def _timed_out(method: str, limit: TimeLimit) -> CallTimedOut:
    what = "The call" if method == "tools/call" else f"The request {method}"
    return CallTimedOut(
        f"{what} got no answer within {limit.seconds:g} seconds ({limit.option}).",
        "Raise the limit if the server needs longer.",
    )


class _Started:
    """Told by the dispatcher that it can be used."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def started(self, value: None = None) -> None:
        self.event.set()


def _renewing(
    clock: asyncio.Timeout, limit: float | None, on_progress: ProgressFnT
) -> Callable[..., Any]:
    """Progress renews the limit, up to `PROGRESS_FACTOR` times the limit in all."""
    now = asyncio.get_running_loop().time
    last_moment = None if limit is None else now() + limit * PROGRESS_FACTOR

    async def renew(progress: float, total: float | None, message: str | None) -> None:
        if limit is not None and last_moment is not None and not clock.expired():
            with contextlib.suppress(RuntimeError):  # the call ended meanwhile
                clock.reschedule(min(now() + limit, last_moment))
        await on_progress(progress, total, message)

    return renew


def _text(value: Any, limit: int = 200) -> str:
    return clean(value.strip(), limit) if isinstance(value, str) else ""
