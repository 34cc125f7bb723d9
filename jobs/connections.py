"""The servers of one run. Each connection is opened, kept and closed by one task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from servers.mcp.types import (
    CallResult,
    ConnectionSettings,
    ServerError,
    ServerUnavailable,
    Tool,
    ToolList,
)
from servers.spawning import get_spawner
from umpteenth.core import deadlines

if TYPE_CHECKING:
    from jobs.timeline import Recorder
    from servers.mcp.client import Connection

logger = logging.getLogger(__name__)

CONNECT_LIMIT = 120.0  # seconds for connecting and listing (P70)
CLOSE_LIMIT = 5.0  # seconds for a connection to close in order
MAX_INFLIGHT = 4  # calls of one server at once; others wait in order


@dataclass(frozen=True)
class AttachedServer:
    """A server of the job when the run began. `problem`: why it is not even tried."""

    id: UUID
    name: str
    transport: str
    enabled: bool
    allowed_tools: tuple[str, ...] | None
    settings: ConnectionSettings | None = None
    problem: str = ""
    version: int = 1  # of its connection; what worked is remembered for this one only


class ServerLink:
    """One server of a run: connecting, connected or unavailable."""

    def __init__(self, server: AttachedServer, recorder: Recorder, *, network: bool = True) -> None:
        self.server = server
        self._network = network  # the job's, for stdio servers too (P22)
        self.settings = server.settings
        self.tools: dict[str, Tool] = {}
        self.slots = asyncio.Semaphore(MAX_INFLIGHT)
        self._recorder = recorder
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
    def learned(self) -> dict[str, Any] | None:
        """How it was reached, where that differs from what was known before the run."""
        if self._connection is None or self.settings is None:
            return None
        found = self._connection.remembered
        return found if found != dict(self.settings.remembered) else None

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallResult:
        """Send one call. Raises `ServerError`; the caller has checked that it may be sent."""
        assert self._connection is not None, "ready() comes first"
        return await self._connection.call_tool(tool, arguments)

    async def close(self) -> None:
        """Close in order if that is quick, else by force; the processes are gone afterwards."""
        self._closing.set()
        if self._task is None:
            return
        _, pending = await asyncio.wait({self._task}, timeout=CLOSE_LIMIT)
        if pending:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_LIMIT)

    async def _own(self) -> None:
        """The owning task: nobody else enters or leaves the connection."""
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

        spawn = get_spawner(settings=settings, server_id=self.server.id, network=self._network)
        async with (
            deadlines.timeout(CONNECT_LIMIT) as limit,
            connect(settings, spawn=spawn) as connection,
        ):
            listed = await connection.list_tools()
            limit.reschedule(None)
            self._connection = connection
            self._connected(connection, listed, (time.monotonic() - started) * 1000)
            await self._closing.wait()

    def _connected(self, connection: Connection, listed: ToolList, ms: float) -> None:
        self.tools = {tool.name: tool for tool in listed.tools}
        self._recorder.record(
            "server.connected",
            {
                "server": self.server.name,
                "tools": len(listed.tools),
                "transport": connection.transport,
                "protocol_version": connection.protocol_version,
                **({"warnings": listed.warnings} if listed.warnings else {}),
            },
            ms=ms,
        )
        self._ready.set()

    def _fail(self, reason: str, error: ServerError | None = None, *, silent: bool = False) -> None:
        """P71: on the timeline with its reason; the run goes on. After connecting: it broke."""
        if self._ready.is_set() and self._closing.is_set():
            return
        self._problem = reason
        if not silent:
            self._recorder.record(
                "server.unavailable", unavailable(self.server.name, reason, error)
            )
        self._ready.set()


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


def _title(server: str) -> str:
    return f"MCP server {server} is unavailable"
