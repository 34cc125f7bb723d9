"""Connecting to one MCP server. Importing this module loads the SDK: import it where it is used.

A connection is owned by one task of its own: transports, readers and the dispatcher are opened and
closed there, in order, whoever enters, uses or leaves `connect` from whichever task (F15). What
goes wrong reaches the caller as one `ServerError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types import METHOD_NOT_FOUND

from servers.limits import TimeLimit, call_limit, request_limit, start_limit
from servers.mcp.errors import NotMcp, RpcError, SessionExpired, flatten, words_of
from servers.mcp.exchange import status_of
from servers.mcp.handshake import HANDSHAKE, negotiate
from servers.mcp.http import open_http
from servers.mcp.listing import read_pages
from servers.mcp.results import failed_result, read_result
from servers.mcp.session import Session
from servers.mcp.sse import open_sse
from servers.mcp.stdio import StdioTransport, open_stdio
from servers.mcp.transport import Transport
from servers.mcp.types import (
    CallResult,
    ConnectionSettings,
    LoginRequired,
    Observer,
    ProgressCallback,
    ServerError,
    ServerUnavailable,
    Spawner,
    Tool,
    ToolList,
)
from servers.mcp.validation import check_settings

logger = logging.getLogger(__name__)

Attempt = Callable[[str], Awaitable[None]]

# Statuses of a first POST that a server of 2024-11-05 gives; every other one is the answer.
SSE_STATUSES: Final = frozenset({400, 404, 405, 406, 410, 411})


class Connection:
    """A live connection. Methods may be called from any task, and at the same time."""

    def __init__(
        self, settings: ConnectionSettings, session: Session, mode: str, observer: Observer
    ) -> None:
        self._settings = settings
        self._session = session
        self._observer = observer
        self._tools: dict[str, Tool] | None = None
        self._renewal = asyncio.Lock()
        self._generation = 0
        self.transport = session.transport.kind
        self.mode = mode

    @property
    def protocol_version(self) -> str:
        return self._session.version

    @property
    def server_name(self) -> str:
        return self._session.server_name

    @property
    def server_version(self) -> str:
        return self._session.server_version

    @property
    def instructions(self) -> str:
        return self._session.instructions

    @property
    def remembered(self) -> dict[str, Any]:
        """What worked; give it back as `settings.remembered` the next time."""
        return {"transport": self.transport, "mode": self.mode}

    @property
    def stderr_tail(self) -> str:
        transport = self._session.transport
        return transport.stderr_tail if isinstance(transport, StdioTransport) else ""

    async def list_tools(self) -> ToolList:
        """All tools that can be used, and a warning for each that cannot. Raises `ServerError`."""
        self._observer.step("Listing tools")
        declared = self._session.capabilities
        if declared is not None and "tools" not in declared:
            found = ToolList([], ["The server declares that it has no tools."])
        else:
            found = await self._read_tools()
        found = self._without_bad_headers(found)
        self._tools = {tool.name: tool for tool in found.tools}
        return ToolList(found.tools, found.warnings + self._session.transport.noise)

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> CallResult:
        """Call a tool by its raw name. `timeout` (seconds) stands in for the server's own limit.

        A tool that fails and an error of the protocol are results; what happened to the call is
        unknown after `CallTimedOut` and `ConnectionLost`. Raises `ServerError`.
        """
        settings = self._settings
        limit = call_limit(
            name,
            tool_timeout=settings.tool_timeout if timeout is None else timeout,
            request_timeout=settings.request_timeout if self.transport != "stdio" else None,
        )
        headers = await self._argument_headers(name, arguments)
        start = time.monotonic()
        try:
            result = await self._request(
                "tools/call",
                {"name": name, "arguments": arguments},
                limit=limit,
                on_progress=on_progress or _ignore_progress,
                headers=headers,
            )
        except RpcError as error:
            return failed_result(f"{error.message} ({error.code})", _ms_since(start))
        if result.get("resultType") == "input_required":
            return failed_result(
                "The tool asks a person for input, which nobody can give here.", _ms_since(start)
            )
        return read_result(result, _ms_since(start))

    async def _read_tools(self) -> ToolList:
        async def fetch(cursor: str | None) -> dict[str, Any]:
            params = {} if cursor is None else {"cursor": cursor}
            limit = request_limit(self._settings.request_timeout)
            return await self._request("tools/list", params, limit=limit)

        try:
            return await read_pages(fetch)
        except RpcError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return ToolList([], ["The server does not know the request for its tools."])

    def _without_bad_headers(self, found: ToolList) -> ToolList:
        """From 2026-07-28 on schemas may ask for headers over HTTP; bad wishes spoil the tool."""
        if not self._sends_argument_headers:
            return found
        kept, warnings = [], list(found.warnings)
        for tool in found.tools:
            fault = find_invalid_x_mcp_header(tool.input_schema)
            if fault is None:
                kept.append(tool)
            else:
                warnings.append(f"Tool “{tool.name}” is left out: {fault}")
        return ToolList(kept, warnings)

    @property
    def _sends_argument_headers(self) -> bool:
        return self._session.modern and self.transport == "http"

    async def _argument_headers(self, name: str, arguments: dict[str, Any]) -> dict[str, str]:
        if not self._sends_argument_headers:
            return {}
        if self._tools is None:
            await self.list_tools()
        tool = (self._tools or {}).get(name)
        return mcp_param_headers(x_mcp_header_map(tool.input_schema), arguments) if tool else {}

    async def _request(self, method: str, params: dict[str, Any], **options: Any) -> dict[str, Any]:
        """A request that opens a new session once, if the server has forgotten ours (B01)."""
        generation = self._generation
        try:
            return await self._session.request(method, params, **options)
        except SessionExpired:
            await self._renew(generation)
        return await self._session.request(method, params, **options)

    async def _renew(self, generation: int) -> None:
        async with self._renewal:
            if self._generation == generation:
                limit = request_limit(self._settings.request_timeout)
                await negotiate(self._session, mode=HANDSHAKE, limit=limit)
                self._generation += 1


@contextlib.asynccontextmanager
async def connect(
    settings: ConnectionSettings,
    *,
    spawn: Spawner | None = None,
    observer: Observer | None = None,
) -> AsyncIterator[Connection]:
    """Connect, and close when the block is left. stdio servers need `spawn`.

    Raises `LoginRequired` or `ServerUnavailable`.
    """
    owner = _Owner(check_settings(settings), spawn, observer or _Nobody())
    try:
        yield await owner.open()
    finally:
        await owner.close()


class _Owner:
    """The task that opens and closes everything."""

    def __init__(
        self, settings: ConnectionSettings, spawn: Spawner | None, observer: Observer
    ) -> None:
        self._settings = settings
        self._spawn = spawn
        self._observer = observer
        self._leaving = asyncio.Event()
        self._ready: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"mcp {settings.name}")

    async def open(self) -> Connection:
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        """Ends the task and waits for it, also if the caller is being cancelled meanwhile."""
        self._leaving.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait({self._task})
        if not self._ready.cancelled() and self._ready.done():
            self._ready.exception()  # seen, so that nothing is reported as never retrieved

    async def _run(self) -> None:
        try:
            await self._connect_somehow()
        except asyncio.CancelledError:
            self._ready.cancel()
            raise
        except BaseException as error:
            if self._ready.done():  # while closing: the caller has left
                logger.warning("Closing %s: %s", self._settings.name, words_of(error))
                return
            self._ready.set_exception(self._unavailable(flatten(error, self._settings.name)))

    def _unavailable(self, error: ServerError) -> ServerError:
        """Before the connection stands, whatever ends it means that there is none."""
        if isinstance(error, LoginRequired | ServerUnavailable):
            return error
        return ServerUnavailable(error.message, error.hint, error.stderr_tail, error.exit_code)

    async def _connect_somehow(self) -> None:
        mode = str(self._settings.remembered.get("mode", ""))
        if self._settings.transport == "stdio":
            await self._connect_stdio(mode)
        elif self._settings.remembered.get("transport") == "sse":
            await self._connect_http([self._try_sse, self._try_http], "")
        else:
            await self._connect_http([self._try_http, self._try_sse], mode)

    async def _connect_stdio(self, mode: str) -> None:
        try:
            await self._try_stdio(mode)
        except _ExitedOnProbe:
            # Some servers end on a message that they do not know: again, without it.
            await self._try_stdio(HANDSHAKE)

    async def _try_stdio(self, mode: str) -> None:
        if self._spawn is None:
            raise ServerUnavailable("This server must be started, but nothing can start it here.")
        async with open_stdio(self._settings, self._spawn, self._observer) as transport:
            self._observer.step("Connecting")
            try:
                await self._serve(transport, mode, start_limit(self._settings.start_timeout))
            except ServerError as error:
                probed = mode != HANDSHAKE and not transport.answered
                if probed and not transport.never_ran and error.exit_code is not None:
                    raise _ExitedOnProbe from None
                error.stderr_tail = error.stderr_tail or transport.stderr_tail
                raise

    async def _connect_http(self, attempts: list[Attempt], mode: str) -> None:
        """The first error is the one shown: it comes from the transport that is meant (B13)."""
        first, second = attempts
        try:
            await first(mode)
        except ServerError as error:
            if self._ready.done() or not self._worth_the_other(error, first):
                raise
            with contextlib.suppress(ServerError):
                await second("")
            if not self._ready.done():
                raise

    def _worth_the_other(self, error: ServerError, tried: Attempt) -> bool:
        if status_of(error) in SSE_STATUSES:
            return True
        # A remembered SSE address that is none any more.
        return tried == self._try_sse and isinstance(error, NotMcp)

    async def _try_http(self, mode: str) -> None:
        async with open_http(self._settings, self._observer) as transport:
            await self._serve(transport, mode, request_limit(self._settings.request_timeout))

    async def _try_sse(self, _mode: str) -> None:
        async with open_sse(self._settings, self._observer) as transport:
            await self._serve(transport, HANDSHAKE, request_limit(self._settings.request_timeout))

    async def _serve(self, transport: Transport, mode: str, limit: TimeLimit) -> None:
        """Agree on a revision, hand the connection over and wait until it is given back."""
        session = Session(transport)
        await session.start()
        try:
            found = await negotiate(session, mode=mode, limit=limit)
            self._ready.set_result(Connection(self._settings, session, found, self._observer))
            await self._leaving.wait()
        finally:
            await session.stop()


class _ExitedOnProbe(Exception):
    """The process ended without a word after the first message."""


class _Nobody:
    """An observer that looks away."""

    def step(self, label: str) -> None:
        pass

    def stderr(self, line: str) -> None:
        pass

    def notice(self, sentence: str) -> None:
        pass


async def _ignore_progress(progress: float, total: float | None, message: str | None) -> None:
    """Progress is asked for anyway: it renews the limit of a call."""


def _ms_since(start: float) -> float:
    return (time.monotonic() - start) * 1000
