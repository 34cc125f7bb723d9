"""The servers of one run. Each connection is opened, kept and closed by one task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from jobs.permission import Permission
from servers.changes import Changes
from servers.limits import MAX_INFLIGHT_CALLS
from servers.mcp.types import (
    CallResult,
    ConnectionSettings,
    ProgressCallback,
    ServerError,
    ServerUnavailable,
    Tool,
    ToolList,
)
from servers.spawning import get_spawner
from umpteenth.core import deadlines
from umpteenth.core.text import clean

if TYPE_CHECKING:
    from jobs.timeline import Recorder
    from servers.mcp.client import Connection

logger = logging.getLogger(__name__)

CONNECT_LIMIT = 120.0  # seconds for connecting and listing (P70)
CLOSE_LIMIT = 5.0  # seconds for a connection to close in order
MAX_NOTICES = 100  # of one server in one run
MAX_SENTENCE = 1000  # characters
NOTICES_NOTE = f"{MAX_NOTICES} notices are recorded; further ones are left out."

# Told once how connecting went: with the connection and its tools, or with the error.
Reporter = Callable[["ServerLink", "Connection | None", "ToolList | ServerError"], None]


@dataclass(frozen=True)
class AttachedServer:
    """A server of the job when the run began. `problem`: why it is not even tried."""

    id: UUID
    name: str
    transport: str
    enabled: bool
    permission: Permission
    settings: ConnectionSettings | None = None
    problem: str = ""
    version: int = 1  # of its connection; what is found out counts for this one only


class ServerLink:
    """One server of a run: connecting, connected or unavailable.

    `permission` is the last one that was read; `tools` are what the server listed last.
    """

    def __init__(
        self,
        server: AttachedServer,
        recorder: Recorder,
        *,
        network: bool = True,
        report: Reporter | None = None,
    ) -> None:
        self.server = server
        self.network = network  # the job's, for stdio servers too (P22)
        self.settings = server.settings
        self.permission = server.permission
        self.tools: dict[str, Tool] = {}
        self._listed = ToolList([])
        self._recorder = recorder
        self._report = report
        self._notices = 0
        self._connection: Connection | None = None
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._problem = server.problem
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._task = asyncio.create_task(self._own(), name=f"server {self.server.name}")

    async def ready(self) -> None:
        """Wait for this server alone. Raises `ServerUnavailable`."""
        await self._ready.wait()
        if self._problem:
            raise ServerUnavailable(f"{_title(self.server.name)}: {self._problem}")

    @property
    def max_inflight(self) -> int:
        """Calls of the server at once, of all runs together (U5)."""
        return self.settings.max_inflight if self.settings else MAX_INFLIGHT_CALLS

    async def refresh(self) -> None:
        """List the tools again if the server announced others; what changed is recorded.

        A list that fails costs nothing but its time: what was listed before still counts.
        """
        assert self._connection is not None, "ready() comes first"
        try:
            listed = await self._connection.tools()
        except ServerError as error:
            self.notice(f"The tools could not be listed again: {error.message}")
            return
        if listed is not self._listed:
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
        return await self._connection.call_tool(
            tool, arguments, deadline=deadline, on_progress=on_progress, settled=settled
        )

    async def close(self) -> None:
        """Close in order if that is quick, else by force; the processes are gone afterwards."""
        self._closing.set()
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
        self._notices += 1
        if self._notices > MAX_NOTICES + 1:
            return
        message = NOTICES_NOTE if self._notices > MAX_NOTICES else clean(sentence, MAX_SENTENCE)
        self._recorder.record("server.notice", {"server": self.server.name, "message": message})

    async def _own(self) -> None:
        """The owning task: nobody else enters or leaves the connection (F15)."""
        started = time.monotonic()
        try:
            if self.settings is None:
                raise ServerUnavailable(self.server.problem)
            await self._connect(self.settings, started)
        except ServerError as error:
            self._fail(error.message, error)
        except TimeoutError:
            self._fail(f"no answer within {CONNECT_LIMIT:.0f} seconds")
        except asyncio.CancelledError:
            self._fail("the run was ended", silent=True)
        except Exception as error:  # whatever the engine did not foresee concerns one server only
            logger.exception("The connection to %s broke", self.server.name)
            self._fail(f"{type(error).__name__}: {error}")

    async def _connect(self, settings: ConnectionSettings, started: float) -> None:
        from servers.mcp.client import connect

        spawn = get_spawner(settings=settings, server_id=self.server.id, network=self.network)
        async with (
            deadlines.timeout(CONNECT_LIMIT) as limit,
            connect(settings, spawn=spawn, observer=self) as connection,
        ):
            listed = await connection.list_tools()
            limit.reschedule(None)
            self._connection = connection
            self._connected(connection, listed, (time.monotonic() - started) * 1000)
            await self._closing.wait()

    def _connected(self, connection: Connection, listed: ToolList, ms: float) -> None:
        self._keep(listed)
        self._recorder.record(
            "server.connected",
            {
                "server": self.server.name,
                "tools": len(listed.tools),
                "transport": connection.transport,
                "protocol_version": connection.protocol_version,
                "how": connection.how,
                **({"socket": True} if self.server.transport == "unix" else {}),
                **({"warnings": listed.warnings} if listed.warnings else {}),
            },
            ms=ms,
        )
        self._ready.set()
        self._tell(connection, listed)

    def _keep(self, listed: ToolList) -> None:
        self._listed = listed
        self.tools = {tool.name: tool for tool in listed.tools}

    def _note_changes(self, listed: ToolList) -> None:
        before = _hashes(self.tools)
        self._keep(listed)
        if changes := Changes.between(before, _hashes(self.tools)):
            payload = {"server": self.server.name, **changes.as_json()}
            self._recorder.record("server.tools_changed", payload)

    def _fail(self, reason: str, error: ServerError | None = None, *, silent: bool = False) -> None:
        """P71: on the timeline with its reason; the run goes on. After connecting: it broke."""
        if self._ready.is_set() and self._closing.is_set():
            return
        self._problem = reason
        connected = self._ready.is_set()
        if not silent:
            self._recorder.record(
                "server.unavailable", unavailable(self.server.name, reason, error)
            )
        self._ready.set()
        if not (silent or connected):
            self._tell(None, error or ServerUnavailable(reason))

    def _tell(self, connection: Connection | None, outcome: ToolList | ServerError) -> None:
        # What was not even tried says nothing about the server.
        if self._report is not None and self.settings is not None:
            self._report(self, connection, outcome)


def unavailable(server: str, reason: str, error: ServerError | None = None) -> dict[str, Any]:
    """The payload of `server.unavailable`."""
    details: dict[str, Any] = {"server": server, "message": _title(server), "reason": reason}
    if error is not None:
        found = {
            "hint": error.hint,
            "exit_code": error.exit_code,
            "stderr_tail": error.stderr_tail,
        }
        details |= {key: value for key, value in found.items() if value not in ("", None)}
    return details


def _hashes(tools: Mapping[str, Tool]) -> dict[str, str]:
    return {name: tool.content_hash for name, tool in tools.items()}


def _title(server: str) -> str:
    return f"MCP server {server} is unavailable"
