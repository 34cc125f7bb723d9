"""The servers of one run. One task for each opens, keeps and closes all of its connections.

A connection that has ended is opened again when the run uses the server next, and so is one that
never came about (`jobs.attempts`); what was under way when it ended is not sent again (F10).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from jobs.attempts import Attempts
from jobs.permission import Permission
from servers.changes import Changes
from servers.limits import MAX_INFLIGHT_CALLS, TimeLimit, call_limit
from servers.mcp.types import (
    CallResult,
    ConnectionSettings,
    LoginRequired,
    ProgressCallback,
    ServerError,
    ServerUnavailable,
    Tool,
    ToolList,
)
from servers.spawning import get_spawner
from umpteenth.core import deadlines
from umpteenth.core.text import clean, with_full_stop

if TYPE_CHECKING:
    from jobs.sandbox.terms import Terms
    from jobs.timeline import Recorder
    from servers.mcp.client import Connection

logger = logging.getLogger(__name__)

CONNECT_LIMIT = 120.0  # seconds for connecting and listing (P70)
CLOSE_LIMIT = 5.0  # seconds for a connection to close in order
MAX_NOTICES = 100  # of one server in one run
MAX_SENTENCE = 1000  # characters
NOTICES_NOTE = f"{MAX_NOTICES} notices are recorded; further ones are left out."

# Told how the first attempt to connect went: with the connection and its tools, or the error.
Reporter = Callable[["ServerLink", "Connection | None", "ToolList | ServerError"], None]


@dataclass(frozen=True)
class AttachedServer:
    """A server of the job when the run began. `problem`: why it is not even tried; `skipped`: why
    the run goes without it, as it does without one that is not `enabled`."""

    id: UUID
    name: str
    transport: str
    enabled: bool
    permission: Permission
    settings: ConnectionSettings | None = None
    problem: str = ""
    skipped: str = ""
    version: int = 1  # of its connection; what is found out counts for this one only


class ServerLink:
    """One server of a run: connecting, connected or `lost`.

    `permission` is the last one that was read; `tools` are what the server listed last.
    """

    def __init__(
        self,
        server: AttachedServer,
        recorder: Recorder,
        *,
        terms: Terms | None = None,
        report: Reporter | None = None,
        attempts: Attempts | None = None,
        advice: str = "",
    ) -> None:
        self.server = server
        self.terms = terms  # the job's, for stdio servers too (P22)
        self.settings = server.settings
        self.permission = server.permission
        self.tools: dict[str, Tool] = {}
        self._listed = ToolList([])
        self._recorder = recorder
        self._report = report
        self._advice = advice  # what to do where a stdio server cannot be started
        self._attempts = attempts or Attempts()
        self._notices = 0
        self._connection: Connection | None = None  # the last one that stood; it may have ended
        self._was_listed = False
        self._ready = asyncio.Event()  # no attempt is under way
        self._turn = asyncio.Event()  # the connection is to be left: for another one, or for good
        self._is_closing = False
        self._problem = server.problem  # why there is no connection, or was none before this one
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._task = asyncio.create_task(self._own(), name=f"server {self.server.name}")

    async def ready(self, wait: float | None = None) -> None:
        """Wait for this server alone. Raises `ServerUnavailable`.

        `wait` (seconds) bounds it where the server is connected again; the first time has a limit
        of its own (P70), which belongs to no call.
        """
        if wait is None or self._is_first_attempt:
            await self._ready.wait()
        else:
            await self._ready_within(wait)
        if self.lost:
            raise self._unavailable(await self._why_lost())

    async def _ready_within(self, seconds: float) -> None:
        try:
            async with deadlines.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            longer = f"connecting again takes longer than {seconds:,.0f} seconds; nothing was sent."
            raise self._unavailable(longer) from None

    @property
    def lost(self) -> bool:
        """Whether there is nothing to send a call over at this moment."""
        return self._connection is None or self._connection.ended

    @property
    def may_connect_again(self) -> bool:
        return self.lost and self._ready.is_set() and self._attempts.may_begin

    def connect_again(self) -> None:
        """Begin to, where that `may` be; returns at once. All who use the server wait for it."""
        if self.may_connect_again and not self._is_closing:
            self._attempts.begin()
            self._ready.clear()
            self._turn.set()

    @property
    def max_inflight(self) -> int:
        """Calls of the server at once, of all runs together (U5)."""
        return self.settings.max_inflight if self.settings else MAX_INFLIGHT_CALLS

    def call_limit(self, tool: str) -> TimeLimit:
        return self.settings.call_limit(tool) if self.settings else call_limit(tool)

    async def refresh(self) -> None:
        """List the tools again if the server announced others; what changed is recorded.

        A list that fails costs nothing but its time: what was listed before still counts.
        """
        connection = self._connection
        assert connection is not None, "ready() comes first"
        try:
            listed = await connection.tools()
        except ServerError as error:
            self.notice(f"The tools could not be listed again: {error.message}")
            return
        if listed is not self._listed and connection is self._connection:
            self._note_changes(listed)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        deadline: float | None,
        on_progress: ProgressCallback | None,
        settled: Callable[[], None],
    ) -> CallResult:
        """Send one call. Raises `ServerError`; the caller has checked that it may be sent.

        `deadline` is on the monotonic clock; `settled` is called when the call has really ended.
        """
        assert self._connection is not None, "ready() comes first"
        result = await self._connection.call_tool(
            tool, arguments, deadline=deadline, on_progress=on_progress, settled=settled
        )
        self._attempts.answered()
        return result

    async def close(self) -> None:
        """Close in order if that is quick, else by force; the processes are gone afterwards."""
        self._is_closing = True
        self._turn.set()
        if self._task is None:
            return
        _, pending = await asyncio.wait({self._task}, timeout=CLOSE_LIMIT)
        if pending:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_LIMIT)

    def step(self, label: str) -> None:
        """As an `Observer`: the timeline tells of connections once they stand."""

    def stderr(self, line: str) -> None:
        """As an `Observer`: the end of it comes with the error, if there is one."""

    def notice(self, sentence: str) -> None:
        """As an `Observer`: what happened by itself belongs on the timeline."""
        message = clean(sentence, MAX_SENTENCE)
        self._record("server.notice", {"server": self.server.name, "message": message})

    def _record(self, kind: str, payload: dict[str, Any], ms: float | None = None) -> None:
        """What may happen any number of times in a run."""
        self._notices += 1
        if self._notices > MAX_NOTICES + 1:
            return
        if self._notices > MAX_NOTICES:
            kind, payload = "server.notice", {"server": self.server.name, "message": NOTICES_NOTE}
            ms = None
        self._recorder.record(kind, payload, ms=ms)

    async def _own(self) -> None:
        """The owning task: nobody else enters or leaves a connection (F15)."""
        self._attempts.begin()
        try:
            while not self._is_closing:
                self._turn.clear()
                await self._attempt()
                await self._turn.wait()
        except asyncio.CancelledError:
            logger.debug("The connection to %s is given up", self.server.name)
        finally:
            self._is_closing = True
            if not self._ready.is_set():
                self._connection, self._problem = None, "the run was ended"
                self._ready.set()

    async def _attempt(self) -> None:
        """One connection from its beginning to its end, if it comes about."""
        self._connection = None
        try:
            if self.settings is None:
                raise ServerUnavailable(self.server.problem)
            await self._connect(self.settings)
        except ServerError as error:
            self._fail(error.message, error)
        except TimeoutError:
            self._fail(f"no answer within {CONNECT_LIMIT:.0f} seconds")
        except Exception as error:  # whatever the engine did not foresee concerns one server only
            logger.exception("The connection to %s broke", self.server.name)
            self._fail(f"{type(error).__name__}: {error}")

    async def _connect(self, settings: ConnectionSettings) -> None:
        from servers.mcp.client import connect

        started = time.monotonic()
        spawn = get_spawner(settings=settings, server_id=self.server.id, terms=self.terms)
        async with (
            deadlines.timeout(CONNECT_LIMIT) as limit,
            connect(settings, spawn=spawn, observer=self) as connection,
        ):
            listed = await connection.list_tools()
            limit.reschedule(None)
            self.settings = replace(settings, remembered=connection.remembered)
            self._connected(connection, listed, (time.monotonic() - started) * 1000)
            await self._turn.wait()
            if connection.ended:
                self._problem = (await connection.explain_end()).message

    def _connected(self, connection: Connection, listed: ToolList, ms: float) -> None:
        self._connection = connection
        self._attempts.connected()
        payload = {
            "server": self.server.name,
            "tools": len(listed.tools),
            "transport": connection.transport,
            "protocol_version": connection.protocol_version,
            "how": connection.how,
            **({"socket": True} if self.server.transport == "unix" else {}),
            **({"warnings": listed.warnings} if listed.warnings else {}),
        }
        if self._is_first_attempt:
            self._recorder.record("server.connected", payload, ms=ms)
            self._tell(connection, listed)
        else:
            self._record("server.connected", {**payload, "after": self._problem}, ms)
        if self._was_listed:
            self._note_changes(listed)
        else:
            self._keep(listed)
        self._ready.set()

    @property
    def _is_first_attempt(self) -> bool:
        return self._attempts.made <= 1

    def _keep(self, listed: ToolList) -> None:
        self._was_listed = True
        self._listed = listed
        self.tools = {tool.name: tool for tool in listed.tools}

    def _note_changes(self, listed: ToolList) -> None:
        before = _hashes(self.tools)
        self._keep(listed)
        if changes := Changes.between(before, _hashes(self.tools)):
            payload = {"server": self.server.name, **changes.as_json()}
            self._recorder.record("server.tools_changed", payload)

    def _fail(self, reason: str, error: ServerError | None = None) -> None:
        """P71: on the timeline with its reason; the run goes on."""
        if self._connection is not None:
            return  # it stood, and broke as it was left
        self._problem = reason
        # The settings are those of the run, and with them what they lack.
        self._attempts.failed(final=self.settings is None or isinstance(error, LoginRequired))
        payload = unavailable(self.server.name, reason, error, self._advice)
        if self._is_first_attempt:
            self._recorder.record("server.unavailable", payload)
            self._tell(None, error or ServerUnavailable(reason))
        else:
            self._record("server.unavailable", payload)
        self._ready.set()

    async def _why_lost(self) -> str:
        """With what was tried, where nothing is at this moment."""
        found = self._connection
        reason = self._problem if found is None else (await found.explain_end()).message
        tried = "" if self._is_closing else self._attempts.words
        return f"{with_full_stop(reason)} {tried}" if tried else reason

    def _unavailable(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(f"{_title(self.server.name)}: {reason}")

    def _tell(self, connection: Connection | None, outcome: ToolList | ServerError) -> None:
        # What was not even tried says nothing about the server.
        if self._report is not None and self.settings is not None:
            self._report(self, connection, outcome)


def unavailable(
    server: str, reason: str, error: ServerError | None = None, advice: str = ""
) -> dict[str, Any]:
    """The payload of `server.unavailable`; `advice` of the run comes before the error's hint."""
    details: dict[str, Any] = {"server": server, "message": _title(server), "reason": reason}
    if error is not None:
        found = {
            "hint": " ".join(filter(None, (advice, error.hint))),
            "exit_code": error.exit_code,
            "stderr_tail": error.stderr_tail,
        }
        details |= {key: value for key, value in found.items() if value not in ("", None)}
    return details


def _hashes(tools: Mapping[str, Tool]) -> dict[str, str]:
    return {name: tool.content_hash for name, tool in tools.items()}


def _title(server: str) -> str:
    return f"MCP server {server} is unavailable"
