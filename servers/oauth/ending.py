"""Logins end: somebody logs out, edits or deletes the server (P52, P53). What the provider gave
out is given back to it, where it takes it (RFC 7009), without anybody waiting for that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F

from secrets_vault.crypto import CryptoError
from secrets_vault.errors import SecretError
from servers import health
from servers.access import require_to_log_in
from servers.models import Login, PendingLogin, Server
from servers.oauth import registered
from servers.oauth.operator import with_secret
from servers.oauth.revoking import revoke_later
from servers.oauth.store import read_login
from umpteenth.accounts.models import User
from umpteenth.accounts.services import record_audit

logger = logging.getLogger(__name__)


def log_out(server: Server, *, actor: User | None) -> bool:
    """Remove the login, whatever the provider says to it; False if there was none (P52).

    Raises `NotAllowed`. `actor` None is the command line.
    """
    require_to_log_in(actor)
    with transaction.atomic():
        # The server first, as whoever finishes a login does; and as it is now.
        current = Server.objects.select_for_update().filter(pk=server.pk).first()
        login = Login.objects.filter(server_id=server.pk).first()
        if current is None or login is None:
            return False
        end_logins(current)
        found_anew(server, oauth_wanted="")
        record_audit(
            actor=actor,
            action="server.logout",
            kind="server",
            object_id=str(server.pk),
            object_name=server.name,
            details={"issuer": login.issuer, "client": login.client_kind},
        )
    return True


def found_anew(server: Server, **columns: Any) -> None:
    """A login came or went: what tests found before is no longer true, nor what one under way will
    find. `columns` change along with that."""
    Server.objects.filter(pk=server.pk).update(
        connection_version=F("connection_version") + 1,
        state=Server.State.UNTESTED,
        last_error="",
        failures=0,
        **columns,
    )
    health.wake(server)


def end_logins(server: Server) -> bool:
    """Within the transaction that makes them another server's, or nobody's: the login and those
    that were begun go, and after the commit the provider is told. Whether there was a login.

    `server` is as it was until now: its client's secret is needed once more.
    """
    PendingLogin.objects.filter(server=server).delete()
    tell = _prepare_revocation(server)
    deleted, _ = Login.objects.filter(server=server).delete()
    if tell is not None:
        transaction.on_commit(tell)
    return bool(deleted)


def forget_server(server: Server) -> None:
    """Before it is deleted."""
    end_logins(server)
    registered.of_server(server.pk).delete()


def _prepare_revocation(server: Server) -> Callable[[], object] | None:
    """What tells the provider; None where it cannot be told."""
    try:
        stored = read_login(server.pk)
        if stored is None or not stored.secrets.provider.revocation_endpoint:
            return None
        endpoint = stored.secrets.provider.revocation_endpoint
        client = with_secret(stored.secrets.client, server, endpoint)
    except (CryptoError, SecretError, KeyError, TypeError) as error:
        logger.warning("The login of %s is not revoked: %s", server.name, error)
        return None
    return partial(revoke_later, stored.secrets, client)
