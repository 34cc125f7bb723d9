"""Tests of servers: asked for by people or by `servers.health`, done by workers.

1. `request_check` makes the row and sends a hint on commit; a test under way is joined.
2. A worker claims it with one conditional update that writes a random token. Every later write
   names the token, so that a worker that was declared dead writes nothing more.
3. The connection lives in a thread of its own (`servers.probe`), which touches no database;
   this thread writes progress and heartbeat, and reads whether to cancel.
4. Beat ends checks whose worker died (`end_dead`) and hints again what `waiting` names.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from secrets_vault.errors import SecretError
from servers import toolcache
from servers.connecting import connection_settings
from servers.mcp.types import Asker, ConnectionSettings, ServerError, ServerUnavailable
from servers.models import Check, Server
from servers.oauth.types import Looked
from servers.probe import Found, Notes, Probe, Progress
from servers.queries import QUIET
from servers.results import (
    failure_columns,
    sentences,
    store_failure,
    store_looked,
    store_success,
    success_columns,
    with_looked,
)
from servers.spawning import get_spawner
from umpteenth.accounts.models import User
from umpteenth.core.clock import database_now
from umpteenth.core.connections import give_back
from umpteenth.core.masking import Masker
from umpteenth.core.text import clean

LIMIT = 180.0  # seconds; P34
POLL = 0.25  # seconds between looks at progress and at the cancel flag
HEARTBEAT = 5.0  # seconds
DEAD_AFTER = timedelta(seconds=60)
HINT_AFTER = timedelta(seconds=3)  # a waiting check older than this may have lost its hint
SWEEP_AT_MOST = 200  # rows in one sweep
KEEP_FOR = timedelta(days=30)
KEEP_QUIET_FOR = timedelta(days=3)
KEEP_NEWEST = 50  # of each server, however old
PRUNE_AT_MOST = 500  # rows at a time
STOPPING_AT_MOST = 30.0  # seconds that a stopped connection may take to close
INTERRUPTED = "interrupted: the worker stopped"
OUTDATED = "The server was edited during this test, so what it found was not kept. Test it again."

# Why a connection was stopped: nobody stopped it, somebody asked, its time was up, or another
# process has ended the check.
Reason = Literal["", "cancelled", "limit", "lost"]
STOPPED_BY_LIMIT = "The test was stopped after 3 minutes without an answer."


def request_check(server: Server, *, actor: User | None, hinted: bool = True) -> Check:
    """Ask for a test; anyone signed in may. Joins the one under way for the same settings.

    `hinted=False`: the caller does it itself, and at once. Should it fail to, the sweep gives
    the check to a worker. Raises `Server.DoesNotExist` if the server was deleted meanwhile.
    """
    _end_dead(Check.objects.filter(server=server), database_now())
    check = make_check(server, actor=actor, hinted=hinted)
    if check is not None:
        return check
    under_way = _under_way(server)
    if under_way is None:  # it has just ended, or the server is gone
        server = Server.objects.get(pk=server.pk)
        return request_check(server, actor=actor, hinted=hinted)
    # A health check that nobody has begun becomes the person's: it knows who asks.
    waiting = {"kind": Check.Kind.HEALTH, "status": Check.Status.QUEUED}
    if Check.objects.filter(pk=under_way.pk, **waiting).update(
        kind=Check.Kind.PERSON, requested_by=actor
    ):
        under_way.refresh_from_db()
    return under_way


def make_check(
    server: Server,
    *,
    kind: str = Check.Kind.PERSON,
    actor: User | None = None,
    hinted: bool = True,
) -> Check | None:
    """A waiting check; None where one of the same settings is under way."""
    try:
        with transaction.atomic():
            check = Check.objects.create(
                server=server,
                connection_version=server.connection_version,
                kind=kind,
                requested_by=actor,
            )
            # The sweep compares it with the database's clock, not with that of this page.
            check.created_at = database_now()
            check.save(update_fields=["created_at"])
            if hinted:
                _hint(check.pk)
    except IntegrityError:
        return None
    return check


def cancel_check(check: Check) -> None:
    """End a waiting check at once, and ask the worker to end a running one (within a second)."""
    now = database_now()
    waiting = Check.objects.filter(pk=check.pk, status=Check.Status.QUEUED)
    if waiting.update(status=Check.Status.DONE, outcome=Check.Outcome.CANCELLED, finished_at=now):
        return
    Check.objects.filter(pk=check.pk, status=Check.Status.RUNNING, cancel_requested_at=None).update(
        cancel_requested_at=now
    )


def run_check(check_id: UUID, *, ask: Asker | None = None) -> bool:
    """Do the check, unless somebody else has claimed it or it is over: then False.

    `ask` answers what the server asks meanwhile; without it questions are declined.
    """
    token = _claim(check_id)
    if token is None:
        return False
    check = Check.objects.select_related("server", "requested_by").get(pk=check_id)
    if check.kind == Check.Kind.HEALTH and not check.server.enabled:
        return _cancelled(check, token)
    try:
        settings, mask = _settings(check)
        notes = Notes(settings.command)
        spawn = get_spawner(settings=settings, server_id=check.server_id, tell=notes.notice)
    except SecretError as error:
        return _fail(check, token, ServerUnavailable(str(error)), Masker({}))
    except ServerError as error:
        return _fail(check, token, error, Masker({}))
    masker = Masker(mask)
    if settings.credentials is not None:
        settings.credentials.tell(masker.learn)
    # P36: a person's test that joined a health check under way has stayed a health check.
    looks = check.kind == Check.Kind.PERSON and settings.looks_for_login
    probe = Probe(settings, spawn, ask, notes=notes, looks_for_login=looks)
    reason = _follow(check, token, probe, masker)
    return _finish(check, token, probe, reason, masker, settings.warnings)


def _settings(check: Check) -> tuple[ConnectionSettings, dict[str, str]]:
    """A person's test connects as that person, where the server tells people apart (U61)."""
    person = check.requested_by
    actor = person.get_username() if person else ""
    return connection_settings(check.server, actor=actor, testing=True)


def end_dead(now: datetime) -> int:
    """Fail all checks whose worker died; how many there were."""
    return _end_dead(_unfinished(), now)


def waiting(now: datetime) -> list[UUID]:
    """Checks that may have lost their hint, oldest first."""
    queued = _unfinished().filter(status=Check.Status.QUEUED, created_at__lt=now - HINT_AFTER)
    return list(queued.order_by("created_at").values_list("pk", flat=True)[:SWEEP_AT_MOST])


def _unfinished() -> QuerySet[Check]:
    """Said in the words of the index: SQLite reads all checks each second otherwise."""
    return Check.objects.exclude(status=Check.Status.DONE)


def prune(now: datetime) -> int:
    """Delete old checks, some at a time; how many there were.

    The newest of each server stay whatever their age. Health checks that found nothing new
    are many and say little: they go sooner.
    """
    deleted = 0
    for server_id in Server.objects.values_list("pk", flat=True):
        if deleted >= PRUNE_AT_MOST:
            break
        deleted += _prune_server(server_id, now, PRUNE_AT_MOST - deleted)
    return deleted


def _prune_server(server_id: UUID, now: datetime, at_most: int) -> int:
    checks = Check.objects.filter(server=server_id).order_by("-created_at")
    newest = checks.values_list("created_at", flat=True)[KEEP_NEWEST - 1 : KEEP_NEWEST].first()
    if newest is None:
        return 0
    old = Q(created_at__lt=now - KEEP_FOR) | QUIET & Q(created_at__lt=now - KEEP_QUIET_FOR)
    going = checks.filter(old, created_at__lt=newest, status=Check.Status.DONE)
    found = list(going.values_list("pk", flat=True)[:at_most])
    if found:
        Check.objects.filter(pk__in=found).delete()
    return len(found)


def _hint(check_id: UUID) -> None:
    # Celery is loaded by processes that use it.
    from umpteenth.celery import hint

    hint("servers.tasks.execute_check", str(check_id))


def is_under_way(server: Server) -> bool:
    """Whether these very settings are being tested, or are about to be."""
    return _under_way(server) is not None


def _under_way(server: Server) -> Check | None:
    return _unfinished().filter(server=server, connection_version=server.connection_version).first()


def _claim(check_id: UUID) -> str | None:
    token = secrets.token_urlsafe(24)
    now = database_now()
    claimed = Check.objects.filter(pk=check_id, status=Check.Status.QUEUED).update(
        status=Check.Status.RUNNING, claim_token=token, started_at=now, heartbeat_at=now
    )
    return token if claimed else None


def _mine(check: Check, token: str) -> QuerySet[Check]:
    return Check.objects.filter(pk=check.pk, claim_token=token, status=Check.Status.RUNNING)


def _follow(check: Check, token: str, probe: Probe, masker: Masker) -> Reason:
    """Write progress until the probe ends; why it was stopped, if it was."""
    reason: Reason = ""
    started = time.monotonic()
    stopped_at = 0.0
    writer = _ProgressWriter(_mine(check, token), masker)
    probe.start()
    try:
        while not _wait(probe):
            if reason:
                if time.monotonic() - stopped_at > STOPPING_AT_MOST:
                    break
                writer.write(probe.progress())
                continue
            reason = writer.write(probe.progress())
            if not reason and time.monotonic() - started > LIMIT:
                reason = "limit"
            if reason:
                stopped_at = time.monotonic()
                probe.stop()
    finally:
        probe.stop()
    return reason


def _wait(probe: Probe) -> bool:
    """A moment without a connection in hand: a check may last minutes."""
    give_back()
    return probe.wait(POLL)


class _ProgressWriter:
    """Writes what changed, and a heartbeat at least every few seconds."""

    def __init__(self, mine: QuerySet[Check], masker: Masker) -> None:
        self._mine = mine
        self._masker = masker
        self._written = Progress()
        self._beat_at = time.monotonic()

    def write(self, progress: Progress) -> Reason:
        """`lost` if the check is no longer ours, `cancelled` if somebody asked, else nothing."""
        moment = time.monotonic()
        if progress != self._written or moment - self._beat_at >= HEARTBEAT:
            columns = _progress_columns(progress, self._masker)
            if not self._mine.update(heartbeat_at=database_now(), **columns):
                return "lost"
            self._written, self._beat_at = progress, moment
        flag = self._mine.values_list("cancel_requested_at").first()
        if flag is None:
            return "lost"
        return "cancelled" if flag[0] else ""


def _progress_columns(progress: Progress, masker: Masker) -> dict[str, Any]:
    return {
        "steps": [
            {**step, "label": clean(masker.mask(step["label"]), 200)} for step in progress.steps
        ],
        "last_stderr": clean(masker.mask(progress.last_stderr), 500),
        "notices": sentences(progress.notices, masker),
    }


def _finish(
    check: Check,
    token: str,
    probe: Probe,
    reason: Reason,
    masker: Masker,
    warnings: Sequence[str],
) -> bool:
    """Store how it ended. True also where the result was no longer ours to store."""
    columns = _progress_columns(probe.progress(), masker)
    columns["warnings"] = sentences(list(warnings), masker)
    outcome = probe.outcome
    if isinstance(outcome, Found):
        return _succeed(check, token, outcome, probe.looked, masker, columns)
    if isinstance(outcome, ServerError):
        return _fail(check, token, outcome, masker, columns, probe.looked)
    if reason == "limit":
        error = ServerUnavailable(STOPPED_BY_LIMIT, stderr_tail=probe.stderr_tail)
        return _fail(check, token, error, masker, columns)
    return _cancelled(check, token, columns)


def _succeed(
    check: Check,
    token: str,
    found: Found,
    looked: Looked | None,
    masker: Masker,
    columns: dict[str, Any],
) -> bool:
    rows = toolcache.rows_of(check.server_id, found.tools, masker)
    with transaction.atomic():
        mine = _mine(check, token)
        if not mine.update(heartbeat_at=database_now()):
            return True
        changes = store_success(
            check.server, found.connection, found.tools, masker=masker, rows=rows
        )
        if looked is not None:
            store_looked(check.server, looked, masker=masker)
        kept = success_columns(found.connection, found.tools, changes, masker)
        # The connection lists those about its settings as well.
        kept["warnings"] = list(dict.fromkeys([*columns["warnings"], *kept["warnings"]]))
        if changes is None:
            kept["warnings"].append(OUTDATED)
        mine.update(status=Check.Status.DONE, finished_at=database_now(), **{**columns, **kept})
    return True


def _fail(
    check: Check,
    token: str,
    error: ServerError,
    masker: Masker,
    columns: dict[str, Any] | None = None,
    looked: Looked | None = None,
) -> bool:
    # Nobody logs in for a client that does it by itself: its own words say what to do.
    by_itself = check.server.oauth_kind == Server.LoginKind.MACHINE
    shown = error if by_itself else with_looked(error, looked)
    with transaction.atomic():
        mine = _mine(check, token).update(
            status=Check.Status.DONE,
            finished_at=database_now(),
            **failure_columns(shown, masker),
            **(columns or {}),
        )
        if mine:
            store_failure(check.server, error, masker=masker)
            if looked is not None:
                store_looked(check.server, looked, masker=masker)
    return True


def _cancelled(check: Check, token: str, columns: dict[str, Any] | None = None) -> bool:
    _mine(check, token).update(
        status=Check.Status.DONE,
        outcome=Check.Outcome.CANCELLED,
        finished_at=database_now(),
        **(columns or {}),
    )
    return True


def _end_dead(checks: QuerySet[Check], now: datetime) -> int:
    """Fail running checks whose heartbeat stopped; the server is not to blame."""
    silent = checks.filter(status=Check.Status.RUNNING, heartbeat_at__lt=now - DEAD_AFTER)
    return silent.update(
        status=Check.Status.DONE,
        outcome=Check.Outcome.FAILED,
        error=INTERRUPTED,
        hint="Test it again. If this keeps happening, look at the worker's log.",
        finished_at=now,
    )
