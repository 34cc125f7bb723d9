"""Schedules in plain words; the same code that fires them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from jobs import schedule
from jobs.models import Job
from umpteenth.core import clock

TIMES = 5


@dataclass(frozen=True)
class Preview:
    """Plain words and the next times, or one sentence of fault.

    A time is (moment, its words in the schedule's own zone).
    """

    words: str = ""
    times: list[tuple[datetime, str]] = field(default_factory=list)
    error: str = ""


def preview(cron: str, zone: str) -> Preview:
    cron, zone = cron.strip(), zone.strip() or "UTC"
    if not cron:
        return Preview()
    try:
        times = schedule.next_times(cron, zone, clock.now(), TIMES)
        words = schedule.explain(cron)
    except schedule.ScheduleError as error:
        return Preview(error=error.message)
    local = [at.astimezone(ZoneInfo(zone)) for at in times]
    return Preview(words, [(at, f"{at:%a} {at.day} {at:%b %Y, %H:%M} {at:%Z}") for at in local])


@lru_cache(maxsize=2048)
def words_of(cron: str, zone: str) -> str:
    """`At 09:00 on Monday through Friday (Europe/Berlin)`; empty without a schedule."""
    if not cron:
        return ""
    try:
        words = schedule.explain(cron)
    except schedule.ScheduleError:
        return cron
    return words if zone == "UTC" else f"{words} ({zone})"


def describe(job: Job) -> str:
    return words_of(job.cron, job.timezone)
