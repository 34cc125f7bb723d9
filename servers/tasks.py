"""What Celery workers do for this room."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task


@shared_task(name="servers.tasks.execute_check")
def execute_check(check_id: str) -> None:
    """A hint that this check waits; whoever claims it first does it."""
    from servers.checks import run_check

    run_check(UUID(check_id))
