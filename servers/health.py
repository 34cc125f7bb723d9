"""Looks at enabled servers by itself (U2): at start, then regularly, sooner after a failure.

`Server.next_check_at` says when; None means never. The sweep takes what is due (`start_due`) and
makes checks of kind `health`, which workers do like any other; whatever a check or a run's start
finds out sets the next time (`servers.results`). `servers.pacing` knows how long to wait.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from servers import checks, pacing
from servers.models import Check, Server
from umpteenth.core.clock import database_now

AT_ONCE = 2  # health checks under way, so that people's tests find a free worker
# A check that nobody finishes (its worker died, somebody cancelled it) is made again after this.
UNFINISHED = timedelta(minutes=10)
# A page that saves a server asks for a person's test at once; it comes first.
WAKE_AFTER = timedelta(seconds=5)
BATCH = 200


def start_due(now: datetime) -> int:
    """Ask for the checks that are due, longest due first; how many were made.

    Harmless in two processes at once: each server is taken by one conditional update.
    """
    if not pacing.is_on():
        return 0
    due = list(_due(now).order_by("next_check_at").values_list("pk", "next_check_at")[:AT_ONCE])
    if not due:
        return 0
    free = AT_ONCE - _under_way().count()
    return sum(_start(pk, moment, now) for pk, moment in due[: max(free, 0)])


def restart(now: datetime) -> int:
    """The site has started: forget every back-off and spread the first checks.

    Returns how many servers will be checked; with `mcp.auto_connect` off none, ever.
    """
    waiting = Server.objects.filter(next_check_at__isnull=False)
    if not pacing.is_on():
        waiting.update(next_check_at=None)
        _cancel(_under_way())
        return 0
    waiting.filter(enabled=False).update(next_check_at=None)
    servers = list(Server.objects.filter(enabled=True).only("pk"))
    for server in servers:
        server.failures, server.next_check_at = 0, now + pacing.spread(len(servers))
    Server.objects.bulk_update(servers, ["failures", "next_check_at"], batch_size=BATCH)
    return len(servers)


def wake(server: Server) -> None:
    """Call it after a server was made, switched, or changed in how it is reached.

    An enabled one is checked soon, as one that never failed. A disabled one is left alone,
    and a health check of it that is under way ends.
    """
    row = Server.objects.filter(pk=server.pk)
    if pacing.is_on():
        row.filter(enabled=True).update(failures=0, next_check_at=database_now() + WAKE_AFTER)
    if row.filter(enabled=False).update(next_check_at=None):
        # After the commit: whoever finishes a check locks its row first, then the server's.
        transaction.on_commit(partial(_cancel, _under_way().filter(server_id=server.pk)))


def _due(now: datetime) -> QuerySet[Server]:
    # The clock may have been set back since a time was written.
    due = Q(next_check_at__lte=now) | Q(next_check_at__gt=now + pacing.FARTHEST)
    return Server.objects.filter(due, enabled=True)


def _under_way() -> QuerySet[Check]:
    return Check.objects.filter(kind=Check.Kind.HEALTH).exclude(status=Check.Status.DONE)


def _start(server_id: UUID, moment: datetime | None, now: datetime) -> bool:
    """False where another process was faster, or a person's test is under way anyway."""
    due = Server.objects.filter(pk=server_id, enabled=True, next_check_at=moment)
    with transaction.atomic():
        server = due.only("connection_version").first()
        if server is None:
            return False
        # The check comes before the server, as for whoever finishes one: else both wait for ever.
        made = checks.make_check(server, kind=Check.Kind.HEALTH)
        taken = due.update(next_check_at=now + UNFINISHED)
        if not taken:
            transaction.set_rollback(True)
        return bool(made and taken)


def _cancel(health_checks: QuerySet[Check]) -> None:
    for check in health_checks:
        checks.cancel_check(check)
