"""Which workers live. Pages warn when none does, and say why one cannot start sandboxes."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from uuid import uuid4

from django.db import DatabaseError, connection

from jobs.models import Worker
from umpteenth.core.clock import database_now

logger = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds between reports
SILENT = timedelta(seconds=30)  # after which a worker counts as gone
FORGET = timedelta(days=1)


@lru_cache(maxsize=1)
def worker_name() -> str:
    """This process, unique also after a restart: host, process id and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"


def host_in(name: str) -> str:
    """The host of the worker of this name."""
    return name.rsplit("-", 2)[0]


def report(
    now: datetime, *, slots: int, problem: str, adapter: str = "", gaps: Sequence[str] = ()
) -> None:
    """Write this worker's row and forget workers that have been gone for a day.

    `problem`: why it can start no sandbox; `gaps`: which limits those would not have.
    """
    values = {
        "seen_at": now,
        "slots": slots,
        "sandbox_problem": problem,
        "sandbox_adapter": adapter,
        "sandbox_gaps": list(gaps),
    }
    if not Worker.objects.filter(name=worker_name()).update(**values):
        Worker.objects.create(name=worker_name(), started_at=now, **values)
    Worker.objects.filter(seen_at__lt=now - FORGET).delete()


def withdraw() -> None:
    """This worker ends in order."""
    Worker.objects.filter(name=worker_name()).delete()


def live_workers(now: datetime) -> list[Worker]:
    return list(Worker.objects.filter(seen_at__gte=now - SILENT).order_by("name"))


def no_worker_since(now: datetime) -> datetime | None:
    """When the last worker was seen, if none lives; None while one does.

    A site that never had a worker answers with the moment asked about.
    """
    last = Worker.objects.order_by("-seen_at").values_list("seen_at", flat=True).first()
    if last is None:
        return now
    return None if last >= now - SILENT else last


class Reporter:
    """Reports this worker every `INTERVAL` seconds from a thread of its own."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="presence", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        from jobs.sandbox import base

        while True:
            try:
                problem = base.problem()
                gaps = () if problem else base.gaps()
                report(
                    database_now(),
                    slots=self._slots,
                    problem=problem,
                    adapter=base.adapter().name,
                    gaps=gaps,
                )
            except DatabaseError as error:
                words = " ".join(str(error).split())
                logger.warning("the worker could not report itself: %s", words)
            except Exception:  # a broken probe must not silence the worker
                logger.exception("the worker could not look for its sandbox")
            finally:
                connection.close()
            if self._stop.wait(INTERVAL):
                return
