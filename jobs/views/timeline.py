"""What the Timeline tab shows of a run: a window of its events as grouped lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs import queries
from jobs.models import Run, RunEvent
from jobs.views.lines import Fold, Group, complete, grouped, open_errors, refuse, report
from jobs.views.words import Line, describe
from umpteenth.core import clock

_ENDS = ("tool.result", "tool.refused")


@dataclass(frozen=True)
class Window:
    """Lines oldest first. `earlier` is the cursor of the events before; 0 at the beginning."""

    groups: list[Group]
    first: int
    last: int
    earlier: int
    # Newer events exist that this window does not show.
    is_past: bool


def window(run: Run, *, before: int | None = None, selected: int = 0) -> Window:
    """The newest events, those before a number, or those around a selected one."""
    if before is None and selected and selected <= run.last_seq - queries.EVENTS_A_PAGE:
        before = selected + queries.EVENTS_A_PAGE // 2
    events = queries.events_before(run.pk, before)
    if not events:
        return Window([], 0, 0, 0, False)
    first, last = events[0].seq, events[-1].seq
    if before is None or before > run.last_seq:
        # Whatever follows is progress, which stands on the lines of its calls.
        last = max(last, run.last_seq)
    step = queries.step_before(run.pk, first)
    fold = Fold(origin_of(run, events), step=step.seq if step else 0)
    lines = fold.feed(_of_this_window(run, events))
    _complete_later(run, lines)
    if run.is_finished:
        end_open_calls(lines)
    open_errors(lines, selected=selected)
    earlier_step = describe(step) if step else None
    return Window(
        grouped(lines, earlier_step), first, last, first if first > 1 else 0, last < run.last_seq
    )


def origin_of(run: Run, events: Sequence[RunEvent]) -> datetime:
    """Offsets count from the start; what came before it stands at zero.

    Whoever reads a run before its events may miss that it has started in between.
    """
    if run.started_at is None and any(event.kind == "run.status" for event in events):
        run.refresh_from_db(fields=["started_at"])
    return run.started_at or run.queued_at


def _of_this_window(run: Run, events: list[RunEvent]) -> list[RunEvent]:
    """Without what became of calls that stand on an earlier page: it completes their lines."""
    here = {event.span for event in events if event.kind == "tool.call"}
    ends = {e.span for e in events if e.kind in _ENDS and e.span not in here}
    elsewhere = queries.calls_of(run.pk, ends)
    return [e for e in events if e.kind not in _ENDS or e.span not in elsewhere]


def _complete_later(run: Run, lines: list[Line]) -> None:
    """Calls of this window whose result came after it, and how far those are that still run."""
    waiting = {line.event.span: line for line in lines if line.outcome == "running" and line.event}
    first = min((line.seq for line in waiting.values()), default=0)
    for event in queries.news_of_calls(run.pk, waiting, first):
        if event.kind == "tool.result":
            complete(waiting[event.span], event)
        else:
            report(waiting[event.span], event)
    failed = [span for span, line in waiting.items() if line.outcome == "error"]
    for span, event in queries.refusals_of(run.pk, failed).items():
        refuse(waiting[span], event)


def end_open_calls(lines: list[Line]) -> None:
    """In a finished run nothing runs any more."""
    for line in lines:
        if line.outcome == "running":
            line.outcome, line.progress = "lost", None


@dataclass(frozen=True)
class Waiting:
    """What a live run is doing right now; `elapsed` in milliseconds counts on in the page."""

    text: str
    elapsed: float
    server: str = ""
    tool: str = ""
    others: int = 0


def waiting_for(
    run: Run, open_calls: list[RunEvent], now: datetime | None = None
) -> Waiting | None:
    now = now or clock.now()
    if run.is_finished:
        return None
    if run.cancel_requested_at:
        return Waiting("Cancelling", _ms(run.cancel_requested_at, now))
    if open_calls:
        call = open_calls[0]
        server, tool = (str(call.payload.get(key) or "") for key in ("server", "tool"))
        return Waiting("Calling", _ms(call.at, now), server, tool, len(open_calls) - 1)
    if run.status == Run.Status.QUEUED:
        return Waiting("Waiting for a worker", _ms(run.queued_at, now))
    since = run.started_at or run.queued_at
    if run.status == Run.Status.PROVISIONING:
        return Waiting("Connecting servers and preparing the sandbox", _ms(since, now))
    return Waiting("The script is running", _ms(since, now))


def _ms(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds() * 1000)


def head_context(run: Run) -> dict[str, Any]:
    """Status, times and figures: the part above the tabs that changes while a run lives."""
    return {
        "run": run,
        "figures": (figures := queries.figures(run)),
        "output_count": figures.artifacts + len(run.outputs or ()),
        "duration_ms": queries.run_duration_ms(run),
        "waited_ms": _ms(run.queued_at, run.started_at) if run.started_at else None,
    }
