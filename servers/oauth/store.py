"""Logins in the database: read, saved, replaced and ended, each by one conditional update.

Whoever writes names the `version` it has read. A login that was logged out or replaced meanwhile
has another id or none, so that nothing of an older one is written over it.

`Login.refresh_due_at` is when beat has a worker refresh a login that nobody uses: providers take
refresh tokens back that lie unused for some days, so each is used once in `AWAKE_FOR`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F

from secrets_vault import services as vault
from servers.models import Login, Server
from servers.oauth.clients import storable
from servers.oauth.types import Client, LoginSecrets, Tokens
from servers.oauth.words import EXPIRED, NO_REFRESH
from servers.status import may_log_in
from umpteenth.accounts.models import User
from umpteenth.core import clock
from umpteenth.core.text import clean

AWAKE_FOR = timedelta(days=1)
KIND, PENDING_KIND, CLIENT_KIND = "login", "pending_login", "registered_client"
MAX_REASON = 1000


@dataclass(frozen=True)
class Stored:
    """A login as it was read; `row` for its plain columns."""

    row: Login
    secrets: LoginSecrets

    @property
    def version(self) -> int:
        return self.row.version

    @property
    def tokens(self) -> Tokens:
        return self.secrets.tokens


def read_login(server_id: UUID) -> Stored | None:
    """The login of a server; None where there is none.

    Raises the vault's `UnknownKey` and `DecryptionFailed`.
    """
    row = Login.objects.filter(server_id=server_id).first()
    return _open(row) if row is not None else None


def _open(row: Login) -> Stored:
    raw = vault.decrypt_json(bytes(row.private), key_id=row.key_id, kind=KIND, row_id=row.pk)
    return Stored(row, LoginSecrets.from_json(raw))


def columns_of(login_id: UUID, secrets: LoginSecrets) -> dict[str, Any]:
    """The columns that hold, or follow from, the secrets."""
    ciphertext, key_id = vault.encrypt_json(secrets.as_json(), kind=KIND, row_id=login_id)
    tokens = secrets.tokens
    granted = secrets.scopes if tokens.scopes is None else tokens.scopes
    return {
        "private": ciphertext,
        "key_id": key_id,
        "expires_at": _by_the_database(tokens.expires_at),
        "can_refresh": secrets.can_refresh,
        "scopes": clean(" ".join(granted), 2000),
    }


def put_login(
    server_id: UUID, secrets: LoginSecrets, *, person: User | None, now: datetime
) -> Login:
    """A new login of a server, in place of the one before it. Raises `Server.DoesNotExist`."""
    login = Login(server_id=server_id, logged_in_at=now, logged_in_by=person)
    login.issuer = secrets.provider.issuer
    login.client_kind = secrets.client.kind
    login.refresh_due_at = _sleeps_at(secrets, now)
    secrets = replace(secrets, client=storable(secrets.client))
    for column, value in columns_of(login.pk, secrets).items():
        setattr(login, column, value)
    with transaction.atomic():
        # Two that come at once do so one after the other.
        Server.objects.select_for_update().only("pk").get(pk=server_id)
        Login.objects.filter(server_id=server_id).delete()
        login.save(force_insert=True)
        if secrets.client.kind == "operator":
            mine = Server.objects.filter(pk=server_id, oauth_client_id=secrets.client.client_id)
            mine.update(oauth_client_issuer=login.issuer)
    return login


def _sleeps_at(secrets: LoginSecrets, now: datetime) -> datetime | None:
    return now + AWAKE_FOR if secrets.tokens.refresh_token else None


def _by_the_database(seconds: float | None) -> datetime | None:
    """What this machine's clock said, as other machines compare it."""
    return None if seconds is None else moment(seconds + clock.ahead().total_seconds())


def moment(seconds: float | None) -> datetime | None:
    """Unix seconds as the database has them; None also for what no calendar has."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def replace_tokens(stored: Stored, tokens: Tokens, client: Client, now: datetime) -> bool:
    """Save refreshed tokens; False if the login has changed since it was read.

    An answer without a refresh token keeps the old one (RFC 6749, 6): `tokens` holds it already.
    `client` has the method that worked (A16).
    """
    secrets = replace(stored.secrets, tokens=tokens, client=storable(client))
    mine = Login.objects.filter(pk=stored.row.pk, version=stored.version)
    return bool(
        mine.update(
            version=F("version") + 1,
            refreshed_at=now,
            refresh_failures=0,
            refresh_error="",
            refresh_due_at=_sleeps_at(secrets, now),
            lease_token="",
            lease_until=None,
            warned_at=None,
            **columns_of(stored.row.pk, secrets),
        )
    )


def end_login(login: Login, ended: str, reason: str, now: datetime) -> bool:
    """It is over, as it was read, and its server wants another one (P71); False if other tokens
    are stored by now."""
    mine = Login.objects.filter(pk=login.pk, version=login.version)
    # One that has failed stays so, and with a token of its own it needs no login.
    server = Server.objects.filter(may_log_in(), pk=login.server_id)
    with transaction.atomic():
        # The server first, as whoever logs in, logs out or keeps a result does.
        server.exclude(state=Server.State.FAILED).update(
            state=Server.State.LOGIN_REQUIRED, last_error=EXPIRED
        )
        done = mine.update(
            version=F("version") + 1,
            ended=ended,
            ended_at=now,
            ended_reason=clean(reason, MAX_REASON),
            refresh_due_at=None,
            lease_token="",
            lease_until=None,
            warned_at=None,  # of its end, people are told anew
        )
        if not done:
            transaction.set_rollback(True)
    return bool(done)


def end_with_token(login: Login) -> bool:
    """The access token is over, and nothing renews it (P45, P48)."""
    when = login.expires_at or clock.database_now()
    return end_login(login, Login.Ended.EXPIRED, NO_REFRESH, when)
