"""What beat does for logins: it has those refreshed that would fall asleep or failed, ends those
whose time is over, tells the audit log of those that are about to end, and forgets logins that were
begun and not finished.

Providers take refresh tokens back that lie unused (many after a week, some after a day or two), and
a rotated one is only as old as its last use. So each is used at least once a day, whether or not
a run needed it (`store.AWAKE_FOR`).
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from servers.mcp.types import LoginRequired, ServerUnavailable
from servers.models import Login, PendingLogin, Server
from servers.oauth.state import LoginState, login_condition, login_warning, warning_condition
from servers.oauth.store import end_with_token
from umpteenth.accounts.services import record_audit

logger = logging.getLogger(__name__)

AT_MOST: Final = 50  # logins in one sweep
# If the hint is lost, or the worker dies, it is due again after this.
HINT_AGAIN: Final = timedelta(minutes=10)
# The sheet tells for a while of a login that was begun and did not come back (A29).
PENDING_KEPT: Final = timedelta(days=1)


def start_due(now: datetime) -> int:
    """Have workers refresh what is due; how many logins that are."""
    from umpteenth.celery import send_hint

    due = Login.objects.filter(refresh_due_at__lte=now).order_by("refresh_due_at")
    started = 0
    for pk, server_id, moment in list(
        due.values_list("pk", "server_id", "refresh_due_at")[:AT_MOST]
    ):
        claim = Login.objects.filter(pk=pk, refresh_due_at=moment)
        if claim.update(refresh_due_at=now + HINT_AGAIN):
            started += 1
            if not send_hint("servers.tasks.refresh_login", str(server_id)):
                break
    return started


def keep_awake(server_id: UUID) -> None:
    """Use the refresh token of a login that nobody has used for long, or whose refresh failed."""
    from servers.oauth import refresh

    server = Server.objects.filter(pk=server_id).first()
    if server is None:
        return
    try:
        refresh.renew(refresh.Place.of(server), refresh.Wish(awake=True))
    except (LoginRequired, ServerUnavailable) as error:
        # It is on the row, and from there in the list, on jobs and in the audit log.
        logger.info("the login of %s was not refreshed: %s", server.name, error)


def end_over(now: datetime) -> int:
    """End the logins that only their time has ended, so that their servers say so (P45, P48)."""
    over = Login.objects.filter(login_condition(LoginState.EXPIRED, now, prefix=""), ended="")
    return sum(end_with_token(login) for login in over[:AT_MOST])


def warn(now: datetime) -> int:
    """Tell the audit log, once each, of logins that may end soon or have ended."""
    told = 0
    logins = Login.objects.filter(
        warning_condition(now, prefix="") | ~Q(ended=""), warned_at=None
    ).select_related("server")
    for login in list(logins[:AT_MOST]):
        with transaction.atomic():
            mine = Login.objects.filter(pk=login.pk, version=login.version, warned_at=None)
            if mine.update(warned_at=now):
                _record(login, now)
                told += 1
    return told


def _record(login: Login, now: datetime) -> None:
    ended = bool(login.ended)
    record_audit(
        actor=None,
        by="Umpteenth",
        action="server.login_ended" if ended else "server.login_ending",
        kind="server",
        object_id=login.server_id,
        object_name=login.server.name,
        details={"reason": login.ended_reason if ended else login_warning(login, now)},
    )


def prune(now: datetime) -> int:
    """Forget logins that were begun long ago; how many there were."""
    deleted, _ = PendingLogin.objects.filter(expires_at__lt=now - PENDING_KEPT).delete()
    return deleted
