"""The only way a run reaches a tool.

A call passes `jobs.permission` when tools are listed, when a name is looked up, and, read anew
with its place among the server's calls in flight (`servers.inflight`), right before it is sent.
What is denied is answered like what does not exist; the timeline says that it was refused and
why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from jobs.connections import ServerLink
from jobs.effects import FAILED, SUCCEEDED, UNKNOWN, Effect
from jobs.permission import Denied, Permission
from servers.inflight import Busy, Line
from servers.limits import TimeLimit
from servers.mcp.types import CallResult, ServerError, Tool
from umpteenth.core import clock
from umpteenth.core.text import with_full_stop

if TYPE_CHECKING:
    from jobs.timeline import Recorder

MAX_RECORDED = 1000  # calls of `ump` on the timeline (P75)
MAX_EFFECTS = 200  # further calls, of tools with side effects only
LIMIT_NOTE = (
    f"{MAX_RECORDED:,} calls are recorded. From here on only calls with side effects are, "
    f"up to {MAX_EFFECTS} more."
)
MAX_PROGRESS = 100  # reports of one call on the timeline
PROGRESS_INTERVAL = 1.0  # seconds between two of them at least
WAITING_SHOWS = 0.1  # seconds until a call that waits for a slot is on the timeline
ON_RECORD_WITHIN = 2.0  # seconds that a call with side effects waits to be on record
NOT_OURS = "the run is not this worker's any more; nothing was sent"
NEVER_ANSWERED = "the script or its run ended before the answer came"

# What may be done with a server now, from the database.
Permit = Callable[[UUID], Awaitable[Permission]]


class ToolNotFound(Exception):
    """No such tool for this run, whether it does not exist or is not allowed."""


class ToolRefused(ToolNotFound):
    """The tool exists, but this run may not use it. Whoever asked is told no more than that it
    was not found; the timeline has the reason."""


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
    """Lists and calls the tools of a run's servers. `deadline` is on the monotonic clock, `skipped`
    says of attached servers that the run does not have why.

    What `line` sees with each slot is the server's `Permission`, read right then; it raises
    `Denied` where there is nothing to call any more.
    """

    def __init__(
        self,
        links: Mapping[str, ServerLink],
        recorder: Recorder,
        permit: Permit,
        line: Line,
        meter: CallMeter,
        *,
        deadline: float | None = None,
        skipped: Mapping[str, str] | None = None,
    ) -> None:
        self._links = links
        self._skipped = {} if skipped is None else skipped
        self._recorder = recorder
        self._permit = permit
        self._line = line
        self._meter = meter
        self._deadline = deadline

    async def list_tools(self, server: str | None = None) -> list[FoundTool]:
        """The allowed tools of one server, or of all that are available.

        Waits for the servers asked about. Raises `ToolNotFound` or `ServerUnavailable`.
        """
        if server is not None:
            link = self._link(server)
            if await self._connect_again(link):
                return []
            await link.ready()
            return await self._allowed(link)
        found: list[FoundTool] = []
        for link in self._links.values():
            await self._connect_again(link)
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
        run may not call it, `ServerUnavailable` where the server is not connected.
        """
        link = self._link(server)
        found = await self._reach(link, tool)
        span = uuid4().hex[:16] if self._meter.admit(side_effects=not found.read_only) else ""
        call = _Call(link, found, arguments, self._recorder, span)
        result = None
        try:
            result = await self._send(call)
        except ToolNotFound as error:
            result = CallResult(ok=False, text="", error=str(error))
            raise
        except ServerError as error:
            call.in_doubt = error.in_doubt
            result = CallResult(ok=False, text="", error=_with_hint(error))
        finally:
            call.end(result or call.unanswered())
        return result

    async def _send(self, call: _Call) -> CallResult:
        """Wait for a slot, ask once more, send. The slot is free when the server is done (A50).

        Waiting is bounded by the call's own limit, which begins anew once the call is sent.
        """
        link, limit = call.link, call.limit
        # Written while the server works: on a file, the ticket would wait for that.
        waits = asyncio.get_running_loop().call_later(WAITING_SHOWS, call.begin)
        try:
            ticket = await self._line.enter(
                link.server.id, link.max_inflight, wait=self._patience(limit)
            )
        except Busy:
            error = f"{link.server.name} was busy with other calls{_for(limit)}; nothing was sent."
            return CallResult(ok=False, text="", error=error)
        except Denied as denied:
            call.begin()
            raise self._refused(link, call.tool.name, str(denied), span=call.span) from None
        finally:
            waits.cancel()
            call.begin()
        if link.lost:
            self._line.leave(ticket)
            call.tool = await self._reach(link, call.tool.name, call.span)
            return await self._send(call)
        link.permission = ticket.seen
        if reason := link.permission.refusal(call.tool):
            self._line.leave(ticket)
            raise self._refused(link, call.tool.name, reason, span=call.span)
        try:
            may_send = await call.announce()
        except asyncio.CancelledError:
            self._line.leave(ticket)
            raise
        if not may_send:
            self._line.leave(ticket)
            return CallResult(ok=False, text="", error=NOT_OURS)
        call.sent = True
        return await link.call(
            call.tool.name,
            call.arguments,
            deadline=self._deadline,
            on_progress=call.progress if call.span else None,
            settled=partial(self._line.leave, ticket),
        )

    def _patience(self, limit: TimeLimit) -> float | None:
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        known = [seconds for seconds in (limit.seconds, left) if seconds is not None]
        return min(known) if known else None

    def _link(self, server: str) -> ServerLink:
        link = self._links.get(server)
        if link is None and (reason := self._skipped.get(server)):
            raise ToolNotFound(f"server {server!r} was skipped: {reason}")
        if link is None:
            names = ", ".join(self._links) or "none"
            raise ToolNotFound(f"server {server!r} not found; this run's servers: {names}")
        return link

    async def _connect_again(self, link: ServerLink) -> str:
        """Begin to where the connection has ended, or never came about.

        Why not, if the run may not use the server any more: then it is not contacted either.
        """
        if not link.may_connect_again:
            return ""
        link.permission = await self._permit(link.server.id)
        if not link.permission.problem:
            link.connect_again()
        return link.permission.problem

    async def _reach(self, link: ServerLink, tool: str, span: str = "") -> Tool:
        """The tool as it is listed now, over a connection that stands."""
        if problem := await self._connect_again(link):
            raise self._refused(link, tool, problem, span)
        await link.ready(self._patience(link.call_limit(tool)))
        return await self._look_up(link, tool, span)

    async def _look_up(self, link: ServerLink, tool: str, span: str) -> Tool:
        await link.refresh()
        found = link.tools.get(tool)
        if found is None:
            raise ToolNotFound(_not_found(link.server.name, tool))
        if link.permission.refusal(found):
            # As it stands now: what was allowed meanwhile counts too.
            link.permission = await self._permit(link.server.id)
        if reason := link.permission.refusal(found):
            raise self._refused(link, tool, reason, span)
        return found

    def _refused(self, link: ServerLink, tool: str, reason: str, span: str = "") -> ToolRefused:
        if span or self._meter.admit(side_effects=False):
            payload = {"server": link.server.name, "tool": tool, "reason": reason}
            self._recorder.record("tool.refused", payload, span=span)
        return ToolRefused(_not_found(link.server.name, tool))

    async def _allowed(self, link: ServerLink) -> list[FoundTool]:
        await link.refresh()
        link.permission = await self._permit(link.server.id)
        return [
            FoundTool(link.server.name, tool)
            for tool in link.tools.values()
            if not link.permission.refusal(tool)
        ]


class _Call:
    """One call on its way, and what the timeline gets of it; nothing without a span."""

    def __init__(
        self,
        link: ServerLink,
        tool: Tool,
        arguments: dict[str, Any],
        recorder: Recorder,
        span: str,
    ) -> None:
        self.link = link
        self.tool = tool
        self.arguments = arguments
        self.span = span
        self.sent = False  # whether the server may have got it
        self.in_doubt = False  # whether it may have happened, though no answer says so
        self._recorder = recorder
        self._name = {"server": link.server.name, "tool": tool.name}
        self._key = uuid4().hex
        self._started = time.monotonic()
        self._at = clock.now()
        self._begun = False
        self._announced = False
        self._reports = 0
        self._reported_at = float("-inf")

    @property
    def limit(self) -> TimeLimit:
        return self.link.call_limit(self.tool.name)

    def begin(self) -> None:
        """Record it, at the time when it was made; a second time does nothing."""
        if self.span and not self._begun:
            self._begun = True
            payload = {**self._name, "arguments": self.arguments}
            self._recorder.record("tool.call", payload, span=self.span, at=self._at)

    async def announce(self) -> bool:
        """Have what has side effects on record before the server hears of it (P76).

        Bounded: a database or storage that hangs must not keep a script from its tools. False
        where the run belongs to somebody else, so that the call must not be made.
        """
        if self.tool.read_only:
            return True
        self._announced = True
        written = asyncio.wrap_future(self._recorder.announce(self._effect(UNKNOWN)))
        await asyncio.wait({written}, timeout=ON_RECORD_WITHIN)
        return not written.done() or written.result()

    def _effect(self, outcome: str) -> Effect:
        name = (self.link.server.name, self.tool.name)
        return Effect(self._key, *name, self.arguments, self._at, outcome)

    def unanswered(self) -> CallResult:
        """What stands in place of a result that nobody waits for any more."""
        self.in_doubt = self.sent and not self.tool.read_only
        doubt = "; the call may have happened" if self.in_doubt else ""
        return CallResult(ok=False, text="", error=NEVER_ANSWERED + doubt)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """What the server says of its progress: a word now and then is enough."""
        now = time.monotonic()
        if self._reports >= MAX_PROGRESS or now - self._reported_at < PROGRESS_INTERVAL:
            return
        self._reports += 1
        self._reported_at = now
        payload = {**self._name, "progress": progress, "total": total, "message": message}
        self._recorder.record("tool.progress", payload, span=self.span)

    def end(self, result: CallResult) -> None:
        if self._announced and not self.in_doubt:
            self._recorder.record_effect(self._effect(SUCCEEDED if result.ok else FAILED))
        if self.span:
            ms = (time.monotonic() - self._started) * 1000
            content = self._recorder.keep_media(self.span, result.content)
            payload = {**self._name, **result_payload(result, content)}
            self._recorder.record("tool.result", payload, span=self.span, ms=ms)


def result_payload(result: CallResult, content: list[dict[str, Any]]) -> dict[str, Any]:
    """What the timeline keeps of a result; `content` as `Recorder.keep_media` gives it."""
    found = {
        "structured": result.structured,
        "content": content,
        "error": result.error,
        "warnings": result.warnings,
        "attempts": result.attempts if result.attempts > 1 else None,
    }
    kept = {key: value for key, value in found.items() if value not in (None, "", [])}
    if result.structured is not None:
        kept["structured"] = result.structured
    return {"ok": result.ok, "text": result.text, **kept}


def _not_found(server: str, tool: str) -> str:
    return f"tool {tool!r} of server {server!r} not found"


def _for(limit: TimeLimit) -> str:
    return "" if limit.seconds is None else f" for {limit.seconds:,.0f} seconds"


def _with_hint(error: ServerError) -> str:
    return f"{with_full_stop(error.message)} {error.hint}" if error.hint else error.message
