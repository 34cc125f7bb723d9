"""Runs, events and jobs as JSON, the same on the command line, in downloads and in the API."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import prefetch_related_objects

from jobs.models import Job, Run, RunEvent

# The one mode there is until agents run jobs.
MODE = "script"


def run_shape(run: Run) -> dict[str, Any]:
    """design.md, section 6: `run show --json`. Times are ISO 8601 in UTC."""
    return {
        "id": str(run.pk),
        "job": run.job.name,
        "number": run.number,
        "status": run.status,
        "trigger": run.trigger,
        "mode": MODE,
        "error": run.error,
        "summary": run.summary,
        "outputs": run.outputs,
        "queued_at": moment(run.queued_at),
        "started_at": moment(run.started_at),
        "finished_at": moment(run.finished_at),
        "duration_ms": _duration_ms(run),
    }


def run_details(run: Run) -> dict[str, Any]:
    """One run with the calls that may have changed something (P76)."""
    effects = run.side_effects or {}
    return run_shape(run) | {
        "side_effects": effects.get("calls", []),
        "side_effects_left_out": effects.get("more", 0),
    }


def event_shape(event: RunEvent) -> dict[str, Any]:
    """design.md, section 6: one line of `run events --json`."""
    return {
        "seq": event.seq,
        "at": moment(event.at),
        "kind": event.kind,
        "span": event.span,
        "parent_span": event.parent_span,
        "ms": event.ms,
        "payload": event.payload,
    }


def job_shape(job: Job) -> dict[str, Any]:
    """A job as it is stored, in the words of the job file."""
    # Does nothing where the caller has fetched them for many jobs at once.
    prefetch_related_objects([job], "attachments__server", "secrets__secret", "environment")
    return {
        "id": str(job.pk),
        "name": job.name,
        "description": job.description,
        "script": job.script,
        "servers": {
            row.server.name: "all" if row.allowed_tools is None else row.allowed_tools
            for row in job.attachments.all()
        },
        "secrets": {row.variable: row.secret.name for row in job.secrets.all()},
        "network": job.network,
        "domains": job.domains,
        "allow_private_network": job.allow_private_network,
        "schedule": {"cron": job.cron, "timezone": job.timezone} if job.cron else None,
        "overlap": job.overlap,
        "timeout": job.timeout,
        "cpus": job.cpus,
        "memory": job.memory,
        "disk": job.disk,
        "run_as_root": job.run_as_root,
        "environment": job.environment.name if job.environment else None,
        "enabled": job.enabled,
        "next_run_at": moment(job.next_run_at),
    }


def _duration_ms(run: Run) -> float | None:
    """From the claim to the end; None before either."""
    if run.started_at is None or run.finished_at is None:
        return None
    return round((run.finished_at - run.started_at).total_seconds() * 1000, 1)


def moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat(timespec="milliseconds")
