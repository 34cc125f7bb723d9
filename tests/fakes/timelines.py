"""Runs with events, written as the recorder writes them but without a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from jobs import timeline
from jobs.models import Job, Run
from jobs.timeline import Event

# I10: shown as text wherever it turns up.
HOSTILE = '<img src=x onerror=alert(1)>"></script><script>alert(2)</script>'


def run_of(job: Job, number: int = 1, status: str = "succeeded", **fields: Any) -> Run:
    """A row in any state; times are plausible for it. Numbers go on from the job's last."""
    now = timezone.now()
    values: dict[str, Any] = {"trigger": "manual", "trust": "creator", "queued_at": now}
    if status not in ("queued", "skipped"):
        values["started_at"] = values["queued_at"]
    if status not in Run.UNFINISHED:
        values["finished_at"] = values["queued_at"] + timedelta(seconds=3)
    values |= fields
    run = Run.objects.create(job=job, number=number, status=status, **values)
    Job.objects.filter(pk=job.pk, last_number__lt=number).update(last_number=number)
    return run


def add(run: Run, kind: str, payload: dict[str, Any] | None = None, **fields: Any) -> int:
    """Append one event; its number."""
    return timeline.append(run.pk, [Event(kind, payload or {}, **fields)])


def call(run: Run, span: str, tool: str = "echo", arguments: Any = None) -> int:
    payload = {"server": "everything", "tool": tool, "arguments": arguments or {"message": "hi"}}
    return add(run, "tool.call", payload, span=span)


def result(run: Run, span: str, text: str = "Echo: hi", *, ok: bool = True, **extra: Any) -> int:
    payload = {
        "server": "everything",
        "tool": "echo",
        "ok": ok,
        "text": text,
        "structured": None,
        "error": "" if ok else text,
        **extra,
    }
    return add(run, "tool.result", payload, span=span, ms=12.0)


def output(run: Run, text: str, stream: str = "stdout") -> int:
    return add(run, "output", {"stream": stream, "text": text})


def many_events(run: Run, count: int) -> None:
    timeline.append(run.pk, [Event("log", {"message": f"event {n}"}) for n in range(count)])
