"""The scheduler of `celery beat`: every tick sweeps the database itself.

Recovery must not depend on the queue that it repairs, so nothing here is a task. Of several
beats one holds a lease and sweeps; without it they would do no harm either, since every step
is a conditional update. This module must not load the MCP SDK.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from celery.beat import Scheduler as CeleryScheduler
from django.db import DatabaseError, IntegrityError, connection
from django.db.models import Q

from jobs import lifecycle, schedule, triggers
from jobs.models import Job, Lease, Run
from umpteenth.core.clock import database_now

logger = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds between sweeps
LEASE_NAME = "beat"
LEASE_TIME = timedelta(seconds=15)
# Nobody could report while the database was away or the machine slept: after such a gap
# workers get this long before their silence counts (a heartbeat and some more).
GAP = timedelta(seconds=10)
GRACE = timedelta(seconds=20)
HINT_AFTER = timedelta(seconds=3)  # a queued run older than this may have lost its hint
HINT_AGAIN = 10.0  # seconds between two hints for the same row
AT_MOST = 100  # rows of one kind in one sweep
TIDY_EVERY = 600.0  # seconds
WARN_EVERY = 60.0  # seconds


class Sweeper:
    """One sweep after another; `sweep(now)` is all there is to test."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.holder = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self._clock = clock
        self._hinted: dict[tuple[str, UUID], float] = {}
        self._last: datetime | None = None  # sweep
        self._watching_since: datetime | None = None
        self._health_begun = False
        self._begun_at: dict[str, float] = {}  # of what is not done in each sweep

    def sweep(self, now: datetime) -> bool:
        """Do everything that is due; False where another beat holds the lease.

        One step that fails does not keep the others from being done.
        """
        if not take_lease(self.holder, now):
            return False
        steps: list[Callable[[datetime], int]] = [fire_due, self.hint_waiting]
        steps += [self.check_servers, refresh_logins, self.warn_of_logins, self.tidy]
        if self._has_watched(now):
            steps += [lifecycle.reap, end_dead_checks]
        for step in steps:
            try:
                step(now)
            except Exception:
                # Whatever is broken in one row or room, the others go on.
                logger.exception("the sweep's step %s failed", step.__name__)
                connection.close()
        return True

    def _has_watched(self, now: datetime) -> bool:
        """Whether no gap was so short ago that a worker may not have reported since."""
        if self._last is None or not timedelta() <= now - self._last <= GAP:
            self._watching_since = now
        self._last = now
        return self._watching_since is not None and now - self._watching_since >= GRACE

    def check_servers(self, now: datetime) -> int:
        """Start the health checks that are due; the first sweep begins anew with all servers."""
        from servers import health

        if not self._health_begun:
            health.restart(now)
            self._health_begun = True
        return health.start_due(now)

    def warn_of_logins(self, now: datetime) -> int:
        """Every minute: end the logins whose time is over, and tell the audit log of them and of
        those that are about to end."""
        from servers.oauth import upkeep

        if not self._is_time_to("warn", WARN_EVERY):
            return 0
        return upkeep.end_over(now) + upkeep.warn(now)

    def tidy(self, now: datetime) -> int:
        """Now and then: delete old checks, logins that were begun and not finished, and places in
        line that have expired (they count for nothing, and are only in the way)."""
        from servers import checks, inflight
        from servers.oauth import upkeep

        if not self._is_time_to("tidy", TIDY_EVERY):
            return 0
        return checks.prune(now) + inflight.sweep() + upkeep.prune(now)

    def _is_time_to(self, do: str, every: float) -> bool:
        """Whether it was last begun `every` seconds ago; then it is begun now."""
        moment = self._clock()
        if moment - self._begun_at.get(do, -math.inf) < every:
            return False
        self._begun_at[do] = moment
        return True

    def hint_waiting(self, now: datetime) -> int:
        """Tell workers again about what could start; how many hints were sent."""
        from servers import checks
        from umpteenth.celery import send_hint

        hints = [("jobs.tasks.execute_run", run_id) for run_id in waiting_runs(now)]
        hints += [("servers.tasks.execute_check", check_id) for check_id in checks.waiting(now)]
        moment = self._clock()
        self._hinted = {hint: self._hinted[hint] for hint in hints if hint in self._hinted}
        sent = 0
        for hint in hints:
            if moment - self._hinted.get(hint, -HINT_AGAIN) < HINT_AGAIN:
                continue
            task, row_id = hint
            if not send_hint(task, str(row_id)):
                break  # without a broker the next sweep is early enough
            self._hinted[hint] = moment
            sent += 1
        return sent


def waiting_runs(now: datetime) -> list[UUID]:
    """Runs that could start but may have lost their hint, oldest first."""
    claimable = lifecycle.claimable(AT_MOST)
    runs = Run.objects.filter(pk__in=claimable, queued_at__lte=now - HINT_AFTER)
    return list(runs.order_by("queued_at", "number").values_list("pk", flat=True))


def take_lease(holder: str, now: datetime) -> bool:
    """Whether this beat sweeps: it holds the lease, or the last holder's has run out."""
    lease = Lease.objects.filter(name=LEASE_NAME)
    until = now + LEASE_TIME
    if lease.filter(holder=holder).update(expires_at=until):
        return True
    # One that is longer than any was taken before the clock was put back. `now` may be old.
    is_over = Q(expires_at__lt=now) | Q(expires_at__gt=until + LEASE_TIME)
    if lease.filter(is_over).update(holder=holder, expires_at=until):
        return True
    if lease.exists():
        return False
    try:
        Lease.objects.create(name=LEASE_NAME, holder=holder, expires_at=until)
    except IntegrityError:
        return False
    return True


def release_lease(holder: str) -> None:
    Lease.objects.filter(name=LEASE_NAME, holder=holder).delete()


def fire_due(now: datetime) -> int:
    """Start what is due by schedule; how many runs were made."""
    due = Job.objects.filter(next_run_at__lte=now, enabled=True).order_by("next_run_at")
    fired = 0
    for job_id, moment in list(due.values_list("pk", "next_run_at")[:AT_MOST]):
        assert moment is not None
        try:
            fired += triggers.fire_schedule(job_id, moment, now) is not None
        except schedule.ScheduleError as error:
            # It was valid when it was saved; without this it would fail every second.
            Job.objects.filter(pk=job_id, next_run_at=moment).update(next_run_at=None)
            logger.error("the schedule of job %s cannot be used any more: %s", job_id, error)
    return fired


def refresh_logins(now: datetime) -> int:
    from servers.oauth import upkeep

    return upkeep.start_due(now)


def end_dead_checks(now: datetime) -> int:
    from servers import checks

    return checks.end_dead(now)


class Scheduler(CeleryScheduler):
    """Celery's beat with our sweep as its only work; it keeps no schedule file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sweeper = Sweeper()
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Nothing to read: the database holds the schedules."""

    def tick(self, *_args: Any, **_kwargs: Any) -> float:
        """Sweep once; seconds until the next one. Survives a database that is away."""
        started = time.monotonic()
        try:
            self.sweeper.sweep(database_now())
        except DatabaseError as error:
            logger.warning("the sweep cannot use the database: %s", " ".join(str(error).split()))
            connection.close()
        except Exception:  # beat must not end because one sweep did
            logger.exception("the sweep failed")
            connection.close()
        return max(0.1, INTERVAL - (time.monotonic() - started))

    def close(self) -> None:
        """Hand over at once instead of letting the lease run out."""
        try:
            release_lease(self.sweeper.holder)
        except DatabaseError:
            logger.warning("the lease could not be handed over", exc_info=True)
        finally:
            connection.close()
        super().close()
