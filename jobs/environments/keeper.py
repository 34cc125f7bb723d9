"""A worker's care for the environments of its machine, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from django.db import connection

from jobs import presence
from jobs.environments import builds
from jobs.models import Worker
from jobs.sandbox.programs import default_environment

logger = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds between looks for builds whose hint went astray
PROGRAMS_EVERY = 3600.0  # seconds; programs are installed now and then
TIDY_EVERY = 600.0


class Keeper:
    """`look(now)` is all there is to test; `now` is on the monotonic clock."""

    def __init__(self) -> None:
        self._programs: list[list[str]] = []
        self._asked_at: float | None = None
        self._tidied_at: float | None = None

    def look(self, now: float) -> bool:
        """Report the machine, build what waits, and now and then remove what nobody needs.

        False while the worker has no row yet.
        """
        if _is_due(self._asked_at, now, PROGRAMS_EVERY):
            self._programs = [list(found) for found in asyncio.run(default_environment())]
            # Without an answer it is asked again: nothing starts here yet.
            self._asked_at = now if self._programs else None
        facts = {"machine": builds.store().machine(), "programs": self._programs}
        mine = Worker.objects.filter(name=presence.worker_name()).update(**facts)
        builds.work_off()
        if _is_due(self._tidied_at, now, TIDY_EVERY):
            builds.tidy()
            self._tidied_at = now
        return bool(mine)


def _is_due(last: float | None, now: float, every: float) -> bool:
    return last is None or now - last >= every


def keep(stopping: threading.Event) -> None:
    """Look after them until told to stop."""
    keeper = Keeper()
    is_known = True
    while True:
        try:
            is_known = keeper.look(time.monotonic())
        except Exception:  # the next look may come to more, and nobody else looks
            logger.warning("the environments could not be looked after", exc_info=True)
        finally:
            connection.close()
        # Soon at first: the worker's own row is written at the same moment.
        if stopping.wait(INTERVAL if is_known else 1.0):
            return
