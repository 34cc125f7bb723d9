"""Connecting to one MCP server. Importing this module loads the SDK: import it where it is used.

A connection is owned by one task of its own: transports, readers and the dispatcher are opened and
closed there, in order, whoever enters, uses or leaves `connect` from whichever task (F15). What
goes wrong reaches the caller as one `ServerError`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types import HEADER_MISMATCH, METHOD_NOT_FOUND

from servers.limits import PROGRESS_FACTOR, TimeLimit, request_limit
from servers.mcp.calls import Call, timed_out
from servers.mcp.clocks import Clock
from servers.mcp.errors import NothingSent, RpcError, SessionExpired
from servers.mcp.freshness import Freshness
from servers.mcp.handshake import HANDSHAKE, Agreement, negotiate
from servers.mcp.listing import FetchPage, only_as_tasks, read_pages
from servers.mcp.ongoing import Ongoing
from servers.mcp.owner import Owner
from servers.mcp.schemas import check_arguments
from servers.mcp.session import Session
from servers.mcp.stdio import StdioTransport
from servers.mcp.types import (
    Asker,
    CallResult,
    CallTimedOut,
    ConnectionLost,
    ConnectionSettings,
    InvalidArguments,
    Observer,
    ProgressCallback,
    ServerError,
    Spawner,
    Tool,
    ToolList,
)
from servers.mcp.validation import check_settings
from umpteenth.core import deadlines


class Connection:
    """A live connection. Methods may be called from any task, and at the same time."""

    def __init__(
        self,
        settings: ConnectionSettings,
        session: Session,
        agreement: Agreement,
        observer: Observer,
    ) -> None:
        self._settings = settings
        self._session = session
        self._observer = observer
        self._listed: ToolList | None = None
        self._by_name: dict[str, Tool] = {}
        self._outdated = False
        self._freshness = Freshness()
        self._listing = asyncio.Lock()
        self._renewal = asyncio.Lock()
        self._generation = 0
        self._lost_generation = -1
        self.transport = session.transport.kind
        self.mode = agreement.mode
        self.how = agreement.how
        self._remembered = agreement.remembered
        session.on_tools_changed = self._note_change
        session.on_changes_missed = self._doubt_list

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
        return {"transport": self.transport, "mode": self.mode, **self._remembered}

    @property
    def ended(self) -> bool:
        """Whether the process or the standing stream that it lived on is gone.

        Over Streamable HTTP it never is: a lost session is renewed (`_renewing`).
        """
        return self._session.transport.ended

    async def explain_end(self) -> ConnectionLost:
        """Why it has `ended`."""
        return await self._session.transport.explain_end()

    @property
    def stderr_tail(self) -> str:
        transport = self._session.transport
        return transport.stderr_tail if isinstance(transport, StdioTransport) else ""

    async def list_tools(self) -> ToolList:
        """Ask for all tools: those that can be used, and a warning for each that cannot.

        Raises `ServerError`.
        """
        async with self._listing:
            return await self._list()

    async def tools(self) -> ToolList:
        """The tools as listed last; asked for if none were, the server announced others or the
        time that it gave is over.

        Raises `ServerError`.
        """
        async with self._listing:
            if self._listed is None or self._outdated:
                return await self._list()
            if not self._freshness.over:
                return self._listed
            try:
                return await self._list()
            except ServerError:  # the old one is better than none (Caching)
                self._freshness.extend()
                return self._listed

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        on_progress: ProgressCallback | None = None,
        settled: Callable[[], None] | None = None,
    ) -> CallResult:
        """Call a tool by its raw name, once its arguments match its schema, if that is known.

        Only a tool that was listed (`tools`) is checked and, if it is read-only, called again.

        `timeout` (seconds) stands in for the server's own limit, which progress renews;
        `deadline` is a moment of `time.monotonic` that nothing moves. `settled` is called exactly
        once, when the server is done with the call: its answer came, the connection ended, or it
        stayed silent for as long as the limit again (A50). A tool that fails and an error of the
        protocol are results. Raises `InvalidArguments` (nothing was sent), `CallTimedOut`,
        `ConnectionLost` and other `ServerError`.
        """
        limit = self._settings.call_limit(name, timeout)
        cut = TimeLimit(self._settings.call_cut, "request_timeout_secs")
        clock = Clock(limit, cut=cut, deadline=deadline)
        ongoing = Ongoing(clock, limit, on_progress, settled)
        try:
            if not clock.allows(0):
                raise timed_out(clock, in_doubt=False)
            tool = await self._look_up_in_time(name, clock)
            self._check(tool, arguments)
            call = Call(
                self._settings,
                name,
                arguments,
                tool,
                partial(self._send_call, tool),
                self._session.questions,
                self._observer,
                ongoing,
            )
            return await call.run()
        finally:
            ongoing.release()

    async def _look_up_in_time(self, name: str, clock: Clock) -> Tool | None:
        """The tool as it is listed now; None where nobody has asked for the list yet.

        A server that fails to list may still be called.
        """
        if self._must_list_before_a_call:
            try:
                async with clock:
                    with contextlib.suppress(RpcError):
                        await self.tools()
            except TimeoutError:
                raise timed_out(clock, in_doubt=False) from None
        return self._by_name.get(name)

    @property
    def _must_list_before_a_call(self) -> bool:
        if self._listed is None:
            return self._sends_argument_headers
        return self._outdated or self._freshness.over

    def _check(self, tool: Tool | None, arguments: dict[str, Any]) -> None:
        schema = {} if tool is None else tool.input_schema
        fault = check_arguments(schema, arguments, self._settings.limits)
        if fault:
            raise InvalidArguments(fault, "Nothing was sent.")

    async def _send_call(
        self, tool: Tool | None, params: dict[str, Any], ongoing: Ongoing
    ) -> dict[str, Any]:
        headers = self._argument_headers(tool, params["arguments"])
        send = partial(self._session.exchange, "tools/call", params, ongoing=ongoing)
        try:
            return await self._renewing(partial(send, headers=headers), ongoing)
        except RpcError as error:
            if error.code != HEADER_MISMATCH or not self._sends_argument_headers:
                raise
            # It was refused before it ran; perhaps the schema has changed since it was listed.
            with contextlib.suppress(ServerError):
                await self.list_tools()
            tool = self._by_name.get(params["name"])
            changed = self._argument_headers(tool, params["arguments"])
            if changed == headers:
                raise
        return await self._renewing(partial(send, headers=changed), ongoing)

    def _argument_headers(self, tool: Tool | None, arguments: dict[str, Any]) -> dict[str, str]:
        if tool is None or not self._sends_argument_headers:
            return {}
        return mcp_param_headers(x_mcp_header_map(tool.input_schema), arguments)

    def _note_change(self) -> None:
        if self._outdated:
            return
        self._outdated = True
        if self._listed is not None:  # many announce at every start what the first list holds
            self._observer.notice("The server announced that its tools have changed.")

    def _doubt_list(self) -> None:
        self._outdated = True

    async def _list(self) -> ToolList:
        self._observer.step("Listing tools")
        outdated, self._outdated = self._outdated, False  # from here on for the next list
        freshness = Freshness()
        try:
            found = self._without_bad_headers(await self._read_tools(freshness))
        except BaseException:
            self._outdated = self._outdated or outdated
            raise
        self._freshness = freshness
        warnings = [*self._settings.warnings, *found.warnings, *self._session.transport.noise]
        self._listed = ToolList(found.tools, warnings)
        self._by_name = {tool.name: tool for tool in found.tools}
        return self._listed

    async def _read_tools(self, freshness: Freshness) -> ToolList:
        declared = self._session.capabilities
        if declared is not None and "tools" not in declared:
            return ToolList([], ["The server declares that it has no tools."])

        tasks: set[str] = set()
        limit = request_limit(self._settings.request_timeout)

        async def fetch(cursor: str | None) -> dict[str, Any]:
            params = {} if cursor is None else {"cursor": cursor}
            page = await self._renewing(
                partial(self._session.request, "tools/list", params, limit=limit)
            )
            freshness.add(page)
            tasks.update(only_as_tasks(page))
            return page

        try:
            found = await self._read_pages(fetch, limit)
            return _without(found, tasks) if self._session.runs_tasks else found
        except RpcError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return ToolList([], ["The server does not know the request for its tools."])

    async def _read_pages(self, fetch: FetchPage, limit: TimeLimit) -> ToolList:
        """`limit` is that of each page; there may be many, and each may take its time."""
        most = limit.seconds and limit.seconds * PROGRESS_FACTOR
        try:
            async with deadlines.timeout(most):
                return await read_pages(fetch, self._settings.limits)
        except TimeoutError:
            raise CallTimedOut(
                f"The list of tools was not complete within {most:g} seconds "
                f"({PROGRESS_FACTOR} times {limit.option}).",
                "Raise the limit if the server needs longer.",
            ) from None

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

    async def _renewing(
        self, send: Callable[[], Awaitable[dict[str, Any]]], ongoing: Ongoing | None = None
    ) -> dict[str, Any]:
        """Send in a new session where the server has forgotten ours (B01, B02, U17)."""
        generation = self._generation
        # Nothing is sent between two sessions either.
        if self._lost_generation == generation or self._renewal.locked():
            await self._renew(generation)
            generation = self._generation
        try:
            return await send()
        except SessionExpired as error:
            if not self._settings.reinit_on_expired_session:
                raise self._not_renewed(error) from None
            # Until it is renewed: what follows may fail, or be cancelled.
            self._lost_generation = max(self._lost_generation, generation)
            if not error.not_run:
                raise
            if ongoing is not None:
                ongoing.sent = False  # whatever becomes of the renewal, there is no doubt (A49)
        await self._renew(generation)
        return await send()

    def _not_renewed(self, error: SessionExpired) -> ServerError:
        hint = "It is not opened again, since reinit_on_expired_session is off."
        return (NothingSent if error.not_run else ConnectionLost)(error.message, hint)

    async def _renew(self, generation: int) -> None:
        async with self._renewal:
            if self._generation == generation:
                limit = request_limit(self._settings.request_timeout)
                try:
                    await negotiate(self._session, mode=HANDSHAKE, limit=limit)
                except RpcError as error:  # of the handshake, not of what waits for it
                    message = f"The session could not be renewed: {error.message}"
                    raise NothingSent(message, error.hint) from None
                self._generation += 1
                self._outdated = True  # a server that was restarted may have other tools
                self._observer.notice("The server had forgotten the session; it was renewed.")


def _without(found: ToolList, tasks: set[str]) -> ToolList:
    """Called in any other way, servers refuse these tools (spec 2025-11-25, Tasks)."""
    warnings = [
        f"Tool “{tool.name}” is left out: it must be called as a task, which Umpteenth does not do."
        for tool in found.tools
        if tool.name in tasks
    ]
    kept = [tool for tool in found.tools if tool.name not in tasks]
    return ToolList(kept, [*found.warnings, *warnings])


@contextlib.asynccontextmanager
async def connect(
    settings: ConnectionSettings,
    *,
    spawn: Spawner | None = None,
    observer: Observer | None = None,
    ask: Asker | None = None,
) -> AsyncIterator[Connection]:
    """Connect, and close when the block is left. stdio servers need `spawn`.

    `ask` answers the server's questions; without it they are answered with their defaults or
    declined. Raises `LoginRequired` or `ServerUnavailable`.
    """
    observer = observer or _Nobody()
    settings = check_settings(settings)

    def hand_over(session: Session, agreement: Agreement) -> Connection:
        return Connection(settings, session, agreement, observer)

    owner = Owner(settings, spawn, observer, ask, hand_over)
    try:
        yield await owner.open()
    finally:
        await owner.close()


class _Nobody:
    """An observer that looks away."""

    def step(self, label: str) -> None:
        pass

    def stderr(self, line: str) -> None:
        pass

    def notice(self, sentence: str) -> None:
        pass
