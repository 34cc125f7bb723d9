"""A run's page while the run goes on: new and changed lines as server-sent events.

The same templates make the first load and what follows it. Messages: `lines` (HTML, its id is
the last event's number), `head`, `now`, at last `end` with the status; `denied` where the
person may no longer read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.views.decorators.http import require_GET

from jobs import queries
from jobs.models import Run, RunEvent
from jobs.views.lines import Fold, open_errors
from jobs.views.timeline import end_open_calls, head_context, origin_of, waiting_for
from jobs.views.words import Line
from umpteenth.core import live
from umpteenth.core.htmx import Request
from umpteenth.core.live import Batch, Message

HUB = "runs"
# Lines in one message; a reader that is far behind gets several.
BATCH = 200
# The figures cost a count over the run's events.
HEAD_SECONDS = 2.0
# Open bodies in one message.
MAX_OPEN = 10

hub = live.Hub(HUB, queries.run_marks, redis_url=live.redis_url())


def wake(run_id: UUID) -> None:
    """For `jobs.timeline.register_listener`."""
    live.wake(HUB, run_id)


@require_GET
def run_events(request: Request, pk: UUID) -> HttpResponseBase:
    """The event stream of a run, from `?after=` or Last-Event-ID on."""
    run = get_object_or_404(Run.objects.only("pk", "last_seq"), pk=pk)
    # A number from the future would hide everything until then.
    after = min(live.resume_after(request), run.last_seq)
    first = request.GET.get("first", "")
    feed = RunFeed(pk, after, int(first) if first.isascii() and first.isdigit() else 0)
    try:
        return live.event_stream(hub, str(pk), feed.read, session_check(request))
    except live.TooManyStreams:
        return live.too_many()


def session_check(request: Request) -> Callable[[], bool]:
    """Whether the session still signs in an active person; asked again while a stream is open."""
    key, person = request.session.session_key, request.user.pk

    def allowed() -> bool:
        again = HttpRequest()
        again.session = SessionStore(session_key=key)
        # Checks the session's hash as well: a changed password ends other sessions.
        user = get_user(again)
        return bool(user.is_authenticated and user.is_active and user.pk == person)

    return allowed


class RunFeed:
    """Reads what is new in a run, each time from where it stopped. One per stream."""

    def __init__(self, run_id: UUID, after: int, first: int = 0) -> None:
        self.run_id = run_id
        self.after = after
        self.first = min(first, after) if first < 2**31 else 0
        self._fold: Fold | None = None
        self._sent: dict[str, str] = {}
        self._state: Any = None
        self._head_at = 0.0

    def read(self) -> Batch:
        # The run first: if it is finished here, all its events are visible below.
        run = Run.objects.select_related("job").filter(pk=self.run_id).first()
        if run is None:
            return Batch([Message("end", "deleted")], end=True)
        events = queries.events_after(run.pk, self.after, BATCH)
        fold = self._prepare(run, events)
        messages: list[Message] = []
        if events:
            messages.append(self._lines(run, fold, events))
        more = len(events) == BATCH
        messages += self._head(run, changed=bool(events), more=more)
        if run.is_finished and not more:
            messages += [self._now(run, []), Message("end", run.status)]
            return Batch(messages, end=True)
        if not more:
            now = self._now(run, list(fold.open_calls.values()))
            if self._is_new("now", self._now_key(run, fold)):
                messages.append(now)
        return Batch(messages, more=more)

    def _prepare(self, run: Run, events: list[RunEvent]) -> Fold:
        origin = origin_of(run, events)
        if self._fold is None:
            step = queries.step_before(run.pk, self.after + 1)
            self._fold = Fold(
                origin,
                step=step.seq if step else 0,
                console=queries.console_before(run.pk, self.after + 1, self.first),
                open_calls={
                    call.span: call for call in queries.open_calls(run) if call.seq <= self.after
                },
            )
        self._fold.origin = origin
        return self._fold

    def _lines(self, run: Run, fold: Fold, events: list[RunEvent]) -> Message:
        spans = [event.span for event in events if event.kind == "tool.result"]
        lines = fold.feed(events, queries.calls_of(run.pk, spans))
        if run.is_finished:
            end_open_calls(lines)
        open_errors(lines, limit=MAX_OPEN)
        self.after = events[-1].seq
        return Message("lines", _render_lines(run, lines), str(self.after))

    def _head(self, run: Run, *, changed: bool, more: bool) -> list[Message]:
        state = (run.status, run.cancel_requested_at)
        due = changed and time.monotonic() - self._head_at >= HEAD_SECONDS
        final = run.is_finished and not more
        if state == self._state and not due and not final:
            return []
        self._state, self._head_at = state, time.monotonic()
        return [Message("head", render_to_string("runs/_head.html", head_context(run)))]

    def _now(self, run: Run, open_calls: list[RunEvent]) -> Message:
        waiting = waiting_for(run, open_calls)
        return Message("now", render_to_string("runs/_now.html", {"waiting": waiting}))

    def _now_key(self, run: Run, fold: Fold) -> str:
        return f"{run.status} {run.cancel_requested_at} {','.join(fold.open_calls)}"

    def _is_new(self, name: str, value: str) -> bool:
        if self._sent.get(name) == value:
            return False
        self._sent[name] = value
        return True


def _render_lines(run: Run, lines: list[Line]) -> str:
    return render_to_string("runs/_lines.html", {"run": run, "lines": lines, "is_live": True})
