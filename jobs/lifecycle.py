"""Every change of a run's status. Each is a conditional update, so that of several workers,
pages and sweeps that want one, exactly one gets it.

A worker claims a queued run by writing a random token; everything that it writes later is
conditional on that token. A run that has started is never executed again. Whoever changes a
job's active run locks the job's row first, then the run's: one order, no deadlock.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, QuerySet

from jobs import timeline
from jobs.models import Job, Run
from servers import inflight
from umpteenth.core.clock import database_now
from umpteenth.core.text import clean

HEARTBEAT_INTERVAL = 15.0  # seconds
SILENCE = timedelta(seconds=60)  # after which a worker counts as gone
MAX_ERROR = 4000  # characters

STOPPED_RESPONDING = "interrupted: the worker stopped responding"
CANCELLED_EARLY = "Cancelled before it started"
Status = Run.Status


class AlreadyFinished(Exception):
    """The run has ended, so that it cannot be cancelled."""


@dataclass(frozen=True)
class Outcome:
    """How a run ends. Texts and outputs are already masked."""

    status: str
    error: str = ""
    summary: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)


def lock_job(job_id: UUID) -> Job:
    """The job's row, locked until the transaction ends. Raises `Job.DoesNotExist`."""
    return _locked_jobs().get(pk=job_id)


def _locked_jobs() -> QuerySet[Job]:
    """With what decides about runs: scripts are long, and this is read three times a run."""
    return Job.objects.select_for_update(no_key=True).only("overlap", "active_run")


def claim(run_id: UUID, worker: str) -> str | None:
    """Take a queued run; its token, or None where it is not to be taken now."""
    job_id = Run.objects.filter(pk=run_id, status=Status.QUEUED).values_list("job_id", flat=True)
    found = job_id.first()
    if found is None:
        return None
    token = secrets.token_urlsafe(24)
    now = database_now()
    with transaction.atomic():
        job = _locked_jobs().filter(pk=found).first()
        if job is None or not _may_start(job, run_id):
            return None
        changed = Run.objects.filter(pk=run_id, status=Status.QUEUED, claim_token="").update(
            status=Status.PROVISIONING,
            claim_token=token,
            worker=worker[:200],
            heartbeat_at=now,
            started_at=now,
        )
        if not changed:
            return None
        if job.overlap != Job.Overlap.PARALLEL:
            Job.objects.filter(pk=job.pk).update(active_run=run_id)
        # At the time that the row names, so that the timeline begins at exactly zero.
        timeline.append(run_id, [replace(timeline.status_event(Status.PROVISIONING), at=now)])
    return token


def _may_start(job: Job, run_id: UUID) -> bool:
    """Under Skip and Queue: nothing else of the job is live, and nothing waited longer."""
    if job.overlap == Job.Overlap.PARALLEL:
        return True
    if job.active_run_id not in (None, run_id):
        return False
    others = Run.objects.filter(job=job).exclude(pk=run_id)
    if others.filter(status__in=Run.LIVE).exists():
        return False
    mine = Run.objects.filter(pk=run_id).values("number")
    return not others.filter(status=Status.QUEUED, number__lt=mine[:1]).exists()


def claimable(limit: int = 20) -> list[UUID]:
    """Queued runs that could start now, oldest first."""
    free = Q(job__overlap=Job.Overlap.PARALLEL) | Q(job__active_run=None)
    runs = Run.objects.filter(free | Q(job__active_run=F("pk")), status=Status.QUEUED)
    return list(runs.order_by("queued_at", "number").values_list("pk", flat=True)[:limit])


def begin(run_id: UUID, token: str, *events: timeline.Event) -> bool:
    """Provisioning is over, the script starts. False: the claim is lost.

    `events`, which hold no secret, led to it: they are written with it.
    """
    with transaction.atomic():
        changed = _claimed(run_id, token).update(status=Status.RUNNING)
        if changed:
            timeline.append(run_id, [*events, timeline.status_event(Status.RUNNING)])
    return bool(changed)


def heartbeat(run_id: UUID, token: str) -> bool:
    """Say that the worker lives, and keep its calls' slots. False: the claim is lost."""
    if not _claimed(run_id, token).update(heartbeat_at=database_now()):
        return False
    inflight.renew(token)
    return True


def is_cancelled(run_id: UUID, token: str) -> bool:
    """Whether somebody asked to cancel. Raises `timeline.LostClaim`."""
    rows = _claimed(run_id, token).values_list("cancel_requested_at", flat=True)
    for requested_at in rows:
        return requested_at is not None
    raise timeline.LostClaim


def finish(run_id: UUID, token: str, outcome: Outcome) -> bool:
    """The final event and the final status, together. False: the claim is lost."""
    with transaction.atomic():
        return _end(_claimed(run_id, token), run_id, outcome)


def request_cancel(run_id: UUID) -> None:
    """End a queued run at once; tell the worker of a live one.

    A live run whose worker is silent is ended here. Raises `AlreadyFinished`.
    """
    now = database_now()
    with transaction.atomic():
        run = Run.objects.filter(pk=run_id)
        queued = run.filter(status=Status.QUEUED)
        if _end(queued, run_id, Outcome(Status.CANCELLED, CANCELLED_EARLY)):
            return
        silent = run.filter(status__in=Run.LIVE, heartbeat_at__lt=now - SILENCE)
        if _end(silent, run_id, Outcome(Status.CANCELLED, STOPPED_RESPONDING)):
            return
        live = run.filter(status__in=Run.LIVE)
        if live.filter(cancel_requested_at=None).update(cancel_requested_at=now):
            timeline.append(run_id, [timeline.Event("log", {"message": "Cancel was requested"})])
            return
        if not live.exists():
            raise AlreadyFinished


def reap(now: datetime) -> int:
    """End the runs whose worker has been silent; how many there were."""
    silent = Run.objects.filter(status__in=Run.LIVE, heartbeat_at__lt=now - SILENCE)
    ended = 0
    for run_id in list(silent.values_list("pk", flat=True)[:200]):
        with transaction.atomic():
            still = silent.filter(pk=run_id)
            ended += _end(still, run_id, Outcome(Status.FAILED, STOPPED_RESPONDING))
    return ended


def _claimed(run_id: UUID, token: str) -> QuerySet[Run]:
    return Run.objects.filter(pk=run_id, claim_token=token, status__in=Run.LIVE)


def _end(condition: QuerySet[Run], run_id: UUID, outcome: Outcome) -> bool:
    """Inside a transaction: the last change of a run, if the condition still holds."""
    claimed = condition.values_list("job_id", "claim_token").first()
    if claimed is None:
        return False
    job_id, token = claimed
    job = lock_job(job_id)
    error = clean(outcome.error, MAX_ERROR)
    # The event comes first, so that nobody sees a finished run without its last event.
    values: dict[str, Any] = {"status": outcome.status, "error": error}
    values["finished_at"] = database_now()
    if outcome.summary:
        values["summary"] = clean(outcome.summary)
    if outcome.outputs:
        values["outputs"] = dict(outcome.outputs)
    if not condition.update(**values):
        return False
    timeline.append(run_id, [timeline.status_event(outcome.status, error)])
    if job.active_run_id == run_id:
        Job.objects.filter(pk=job_id).update(active_run=None)
    if token:
        transaction.on_commit(partial(inflight.drop, token))
    # Runs in parallel wait for slots alone, and whoever has a free one looks for them.
    if job.overlap != Job.Overlap.PARALLEL:
        transaction.on_commit(partial(_hint_next, job_id))
    return True


def _hint_next(job_id: UUID) -> None:
    """What waited for this run may start now."""
    from jobs.triggers import hint_run

    waiting = Run.objects.filter(job_id=job_id, status=Status.QUEUED).order_by("number")
    run_id = waiting.values_list("pk", flat=True).first()
    if run_id is not None:
        hint_run(run_id)
