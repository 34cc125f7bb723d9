"""The only way a run reaches a tool.

A call passes: server enabled, attached to the job, tool on the attachment's list, each asked
when tools are listed, when a name is looked up, and from the database right before the call is
sent. What is denied is answered like what does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from jobs.connections import ServerLink
from servers.limits import call_limit
from servers.mcp.types import CallResult, ServerError, Tool
from umpteenth.core import deadlines

if TYPE_CHECKING:
    from jobs.timeline import Recorder

MAX_RECORDED = 1000  # calls of `ump` on the timeline (P75)
MAX_EFFECTS = 200  # further calls, of tools with side effects only
LIMIT_NOTE = (
    f"{MAX_RECORDED:,} calls are recorded. From here on only calls with side effects are, "
    f"up to {MAX_EFFECTS} more."
)

# Whether a server's tool may be called, from the database: (server id, tool name) -> bool.
Permit = Callable[[UUID, str], Awaitable[bool]]


class ToolNotFound(Exception):
    """No such tool for this run, whether it does not exist or is not allowed."""


@dataclass(frozen=True)
class FoundTool:
    server: str
    tool: Tool


class CallMeter:
    """Decides which calls of a script are recorded (P75)."""

    def __init__(self, recorder: Recorder) -> None:
        self.left_out = 0
        self._recorder = recorder
        self._recorded = 0
        self._effects = 0

    def admit(self, *, side_effects: bool) -> bool:
        """Whether to record the call that is about to be made."""
        if self._recorded < MAX_RECORDED:
            self._recorded += 1
            return True
        if not self.left_out and not self._effects:
            self._recorder.record("log", {"message": LIMIT_NOTE})
        if side_effects and self._effects < MAX_EFFECTS:
            self._effects += 1
            return True
        self.left_out += 1
        return False

    def close(self) -> None:
        if self.left_out:
            message = f"{self.left_out:,} further calls were made and not recorded"
            self._recorder.record("log", {"message": message})


class Toolbox:
    """Lists and calls the tools of a run's servers."""

    def __init__(
        self,
        links: Mapping[str, ServerLink],
        recorder: Recorder,
        permit: Permit,
        meter: CallMeter,
    ) -> None:
        self._links = links
        self._recorder = recorder
        self._permit = permit
        self._meter = meter

    async def list_tools(self, server: str | None = None) -> list[FoundTool]:
        """The allowed tools of one server, or of all that are available.

        Waits for the servers asked about. Raises `ToolNotFound` or `ServerUnavailable`.
        """
        if server is not None:
            link = self._link(server)
            await link.ready()
            return await self._allowed(link)
        found: list[FoundTool] = []
        for link in self._links.values():
            try:
                await link.ready()
            except ServerError:
                continue  # on the timeline already
            found += await self._allowed(link)
        return found

    async def call(self, server: str, tool: str, arguments: dict[str, Any]) -> CallResult:
        """Call a tool by the server's own name of it and record both ends.

        A failure of the server is a result with `ok` False. Raises `ToolNotFound` where the
        run may not call it, `ServerUnavailable` where the server never connected.
        """
        link = self._link(server)
        await link.ready()
        found = self._look_up(link, tool)
        span = uuid4().hex[:16] if self._meter.admit(side_effects=not found.read_only) else ""
        if span:
            payload = {"server": server, "tool": tool, "arguments": arguments}
            self._recorder.record("tool.call", payload, span=span)
        started = time.monotonic()
        result = CallResult(ok=False, text="", error="the run ended before the answer came")
        try:
            result = await self._send(link, tool, arguments)
        except ToolNotFound as error:
            result = CallResult(ok=False, text="", error=str(error))
            raise
        except ServerError as error:
            result = CallResult(ok=False, text="", error=_with_hint(error))
        finally:
            if span:
                ms = (time.monotonic() - started) * 1000
                self._recorder.record(
                    "tool.result", result_payload(server, tool, result), span=span, ms=ms
                )
        return result

    async def _send(self, link: ServerLink, tool: str, arguments: dict[str, Any]) -> CallResult:
        settings = link.settings
        limit = call_limit(
            tool,
            tool_timeout=settings.tool_timeout if settings else None,
            request_timeout=settings.request_timeout if settings else None,
        )
        try:
            # Waiting for a free slot counts against the call's own limit.
            async with deadlines.timeout(limit.seconds):
                await link.slots.acquire()
        except TimeoutError:
            error = f"{link.server.name} was busy with other calls for {limit.seconds:.0f} seconds"
            return CallResult(ok=False, text="", error=error)
        try:
            if not await self._permit(link.server.id, tool):
                raise _not_found(link.server.name, tool)
            return await link.call(tool, arguments)
        finally:
            link.slots.release()

    def _link(self, server: str) -> ServerLink:
        link = self._links.get(server)
        if link is None:
            names = ", ".join(self._links) or "none"
            raise ToolNotFound(f"server {server!r} not found; this run's servers: {names}")
        return link

    def _look_up(self, link: ServerLink, tool: str) -> Tool:
        found = link.tools.get(tool)
        allowed = link.server.allowed_tools
        if found is None or (allowed is not None and tool not in allowed):
            raise _not_found(link.server.name, tool)
        return found

    async def _allowed(self, link: ServerLink) -> list[FoundTool]:
        allowed = link.server.allowed_tools
        return [
            FoundTool(link.server.name, tool)
            for tool in link.tools.values()
            if allowed is None or tool.name in allowed
        ]


def result_payload(server: str, tool: str, result: CallResult) -> dict[str, Any]:
    payload: dict[str, Any] = {"server": server, "tool": tool, "ok": result.ok, "text": result.text}
    if result.structured is not None:
        payload["structured"] = result.structured
    if result.error:
        payload["error"] = result.error
    return payload


def _not_found(server: str, tool: str) -> ToolNotFound:
    return ToolNotFound(f"tool {tool!r} of server {server!r} not found")


def _with_hint(error: ServerError) -> str:
    return f"{error.message} {error.hint}".strip() if error.hint else error.message
