"""What Celery workers do for runs. A message is only a hint; the database says what is to do."""

from __future__ import annotations

import threading
from functools import lru_cache
from uuid import UUID

from celery import shared_task

# Celery imports this module in the worker, where its signals must be listened to.
from jobs import worker as _worker  # noqa: F401
from umpteenth.core.connections import give_back

_stopping = threading.Event()


@lru_cache(maxsize=1)
def _slots() -> threading.BoundedSemaphore:
    """This process's run slots. Threads beyond them are for checks alone."""
    from umpteenth.core.config import get_options

    return threading.BoundedSemaphore(get_options().runs.max_concurrent)


@shared_task(name="jobs.tasks.execute_run")
def execute_run(run_id: str) -> None:
    """A hint that this run waits. Without a free slot it goes on waiting."""
    work_off(UUID(run_id))


@shared_task(name="jobs.tasks.build_environments")
def build_environments(_digest: str) -> None:
    """A hint that environments wait to be built; those of this machine begin in threads."""
    from jobs.environments import builds

    give_back()
    builds.work_off()


def work_off(run_id: UUID | None = None) -> int:
    """Execute the run, then whatever else waits; how many runs were executed.

    Returns at once where every slot of this process is taken.
    """
    done = 0
    while not _stopping.is_set() and _slots().acquire(blocking=False):
        try:
            done += _use_slot(run_id)
        finally:
            _slots().release()
        run_id = None
        # A hint that came while the slot was taken went away empty-handed.
        if not _waiting():
            break
    return done


def stop_taking() -> None:
    """Leave every queued run to other workers from now on."""
    _stopping.set()


def _use_slot(run_id: UUID | None) -> int:
    from jobs.runner import execute

    done = 0
    if run_id is not None:
        done += execute(run_id)
    while not _stopping.is_set() and any(execute(waiting) for waiting in _waiting()):
        done += 1
    return done


def _waiting() -> list[UUID]:
    from jobs import lifecycle

    give_back()
    return lifecycle.claimable()
