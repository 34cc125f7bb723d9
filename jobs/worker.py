"""Ties this room to a Celery worker's life: presence, waiting runs, a quick end."""

from __future__ import annotations

import logging
import threading
from importlib import import_module
from typing import Any

from celery import signals
from django.db import DatabaseError, connection

logger = logging.getLogger(__name__)

STOP_LIMIT = 4.0  # seconds that runs have to end when the worker is told to stop
# Seconds between looks for directories that killed workers left. Once at the start would be too
# early: a run counts as live until its worker has been silent for a minute.
TIDY_INTERVAL = 120.0
_reporters: list[Any] = []
_stopping = threading.Event()


@signals.worker_ready.connect(dispatch_uid="jobs.worker.ready")
def on_ready(**_kwargs: Any) -> None:
    """Report this worker, and take what has been waiting since before it started."""
    from jobs.environments.keeper import keep
    from jobs.presence import Reporter
    from umpteenth.core.config import get_options
    from umpteenth.core.process import give_memory_back, take_descriptors

    give_memory_back()
    take_descriptors()  # one sandbox may have 256 connections open, which are two each
    reporter = Reporter(get_options().runs.max_concurrent)
    reporter.start()
    _reporters.append(reporter)
    threading.Thread(target=_take_waiting, name="waiting-runs", daemon=True).start()
    threading.Thread(target=tidy, args=(_stopping,), name="tidy", daemon=True).start()
    threading.Thread(target=keep, args=(_stopping,), name="environments", daemon=True).start()


@signals.worker_shutting_down.connect(dispatch_uid="jobs.worker.shutting-down")
def on_shutting_down(**_kwargs: Any) -> None:
    """Runs end as interrupted now; a stop must not wait for scripts that last hours."""
    from jobs import runner, tasks
    from jobs.environments import builds

    _stopping.set()
    builds.stop_all()
    tasks.stop_taking()
    runner.interrupt_all()


@signals.worker_shutdown.connect(dispatch_uid="jobs.worker.shutdown")
def on_shutdown(**_kwargs: Any) -> None:
    from jobs import presence, runner
    from jobs.environments import builds

    for reporter in _reporters:
        reporter.stop()
    runner.wait_until_idle(STOP_LIMIT)
    builds.wait_until_idle(STOP_LIMIT)
    try:
        presence.withdraw()
    except DatabaseError:
        logger.warning("the worker could not sign off", exc_info=True)
    finally:
        connection.close()


def _take_waiting() -> None:
    from jobs import tasks

    # The first run and the first check need not wait for what they import (0.4 s).
    for name in ("jobs.runner", "servers.mcp.client"):
        import_module(name)
    try:
        tasks.work_off()
    except DatabaseError:
        logger.warning("waiting runs could not be looked for", exc_info=True)
    finally:
        connection.close()


def tidy(stopping: threading.Event) -> None:
    """Remove what killed workers and deleted servers left, now and then, until told to stop."""
    from jobs.leftovers import remove_leftovers

    while True:
        try:
            remove_leftovers()
        except Exception:  # the next look may come to more, and nobody else looks
            logger.warning("leftovers could not be removed", exc_info=True)
        finally:
            connection.close()
        if stopping.wait(TIDY_INTERVAL):
            return
