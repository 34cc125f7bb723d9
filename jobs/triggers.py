"""The one door by which runs begin."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import transaction
from django.db.models import F

from jobs import lifecycle, payloads, schedule, timeline
from jobs.models import Job, Run
from umpteenth.core.clock import database_now
from umpteenth.core.text import MAX_JSON_DEPTH, is_too_deep, storable_json

if TYPE_CHECKING:
    from umpteenth.accounts.models import User

MAX_INPUT = 1024 * 1024  # bytes as JSON
MAX_QUEUED = 100  # runs of one job that may wait
MAX_COUNTED = 1000  # missed times that are counted one by one
_TRUST_ORDER = [Run.Trust.PUBLIC, Run.Trust.AGENT, Run.Trust.CREATOR]


class TriggerError(Exception):
    """A run that cannot begin as asked; one sentence for the person."""


def start_run(
    *,
    job: Job,
    trigger: str,
    trust: str,
    actor: User | None = None,
    input: Any = None,
    scheduled_for: datetime | None = None,
    disable_mcp: bool = False,
    retry_of: Run | None = None,
) -> Run:
    """Make a run and tell a worker; a skipped run where the job's overlap policy says so.

    The row is what counts: without a broker it stays queued and is picked up later. A paused
    job can be started by hand; `enabled` concerns its schedule. Raises `TriggerError`.
    """
    if is_too_deep(input):
        raise TriggerError(f"The input is nested deeper than {MAX_JSON_DEPTH} levels.")
    value = storable_json(input)
    if len(payloads.encode(value)) > MAX_INPUT:
        raise TriggerError("The input is larger than 1 MiB; hand over a reference to it instead.")
    with transaction.atomic():
        number = _next_number(job)
        policy = lifecycle.lock_job(job.pk)
        reason = _reason_to_skip(policy)
        run = Run(
            job=job,
            number=number,
            status=Run.Status.SKIPPED if reason else Run.Status.QUEUED,
            trigger=trigger,
            trust=trust,
            actor=actor,
            actor_name=actor.get_username() if actor else "",
            retry_of=retry_of,
            disable_mcp=disable_mcp,
            input=value,
            scheduled_for=scheduled_for,
            error=reason,
            queued_at=database_now(),
        )
        _insert(run, policy)
    return run


def retry_run(run: Run, *, actor: User | None, trust: str = Run.Trust.CREATOR) -> Run:
    """Run again with the same input, at the lower trust of the two.

    Raises `TriggerError` while the run has not ended.
    """
    if not run.is_finished:
        raise TriggerError("This run has not ended yet; cancel it before running it again.")
    return start_run(
        job=run.job,
        trigger=Run.Trigger.RETRY,
        trust=min(run.trust, trust, key=_trust_rank),
        actor=actor,
        input=run.input,
        disable_mcp=run.disable_mcp,
        retry_of=run,
    )


def fire_schedule(job_id: UUID, due: datetime, now: datetime) -> Run | None:
    """Start the occurrence `due` and arm the next one after `now`, together.

    None where another beat has fired it or the schedule was changed. Times that passed while
    nobody looked are made up for by this one run.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).filter(pk=job_id).first()
        if job is None or not job.enabled or job.next_run_at != due:
            return None
        plan = schedule.parse(job.cron, job.timezone)
        armed = Job.objects.filter(pk=job_id, next_run_at=due)
        if not armed.update(next_run_at=plan.next(now)):
            return None
        if Run.objects.filter(job=job, scheduled_for=due).exists():
            return None
        run = start_run(
            job=job, trigger=Run.Trigger.SCHEDULE, trust=Run.Trust.AGENT, scheduled_for=due
        )
        if missed := _missed(plan, due, now):
            note = timeline.Event("log", {"message": missed}, at=run.queued_at)
            timeline.append(run.pk, [note])
    return run


def hint_run(run_id: UUID) -> None:
    """Tell a worker about a queued run, once the open transaction has committed.

    A broker that is down costs nothing but time: the sweep repeats the hint.
    """
    from umpteenth.celery import hint

    hint("jobs.tasks.execute_run", str(run_id))


def _next_number(job: Job) -> int:
    """The update holds the job's row, so that numbers and policy are decided one by one."""
    if not Job.objects.filter(pk=job.pk).update(last_number=F("last_number") + 1):
        raise TriggerError("This job has been deleted.")
    number: int = Job.objects.values_list("last_number", flat=True).get(pk=job.pk)
    return number


def _reason_to_skip(job: Job) -> str:
    unfinished = Run.objects.filter(job=job, status__in=Run.UNFINISHED)
    if job.overlap == Job.Overlap.SKIP:
        running = unfinished.order_by("number").values_list("number", flat=True).first()
        return f"Run #{running} has not ended" if running else ""
    if unfinished.filter(status=Run.Status.QUEUED).count() >= MAX_QUEUED:
        return f"{MAX_QUEUED} runs are waiting already"
    return ""


def _insert(run: Run, job: Job) -> None:
    first = replace(timeline.status_event(run.status, run.error), at=run.queued_at)
    if run.status == Run.Status.SKIPPED:
        run.finished_at = run.queued_at
        run.save(force_insert=True)
        timeline.append(run.pk, [first])
        return
    run.save(force_insert=True)
    if job.overlap == Job.Overlap.SKIP:
        Job.objects.filter(pk=job.pk, active_run=None).update(active_run=run)
    timeline.append(run.pk, [first])
    hint_run(run.pk)


def _missed(plan: schedule.Schedule, due: datetime, now: datetime) -> str:
    later = sum(1 for at in islice(plan.after(due), MAX_COUNTED) if at <= now)
    if not later:
        return ""
    count = f"{later} later time{'s' if later > 1 else ''}"
    if later == MAX_COUNTED:
        count = f"{later} or more later times"
    return f"Due at {due:%Y-%m-%d %H:%M} UTC; {count} passed meanwhile, this run stands for all"


def _trust_rank(trust: str) -> int:
    return _TRUST_ORDER.index(Run.Trust(trust))
