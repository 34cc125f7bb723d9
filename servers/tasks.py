"""What Celery workers do for this room."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task


@shared_task(name="servers.tasks.execute_check")
def execute_check(check_id: str) -> None:
    """A hint that this check waits; whoever claims it first does it."""
    from servers.checks import run_check

    run_check(UUID(check_id))


@shared_task(name="servers.tasks.refresh_login")
def refresh_login(server_id: str) -> None:
    """A hint that the login of this server is due; several do no harm."""
    from servers.oauth.upkeep import keep_awake

    keep_awake(UUID(server_id))
