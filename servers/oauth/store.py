"""Logins in the database: read, saved, replaced and ended, each by one conditional update.

Whoever writes names the `version` it has read. A login that was logged out or replaced meanwhile
has another id or none, so that nothing of an older one is written over it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import F

from secrets_vault import services as vault
from servers.models import Login
from servers.oauth.types import LoginSecrets, Tokens
from umpteenth.core.text import clean

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
        "expires_at": moment(tokens.expires_at),
        "can_refresh": bool(tokens.refresh_token),
        "scopes": clean(" ".join(granted), 2000),
    }


def moment(seconds: float | None) -> datetime | None:
    """Unix seconds as the database has them."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def replace_tokens(stored: Stored, tokens: Tokens, **columns: Any) -> bool:
    """Save refreshed tokens; False if the login has changed since it was read.

    An answer without a refresh token keeps the old one (RFC 6749, 6): `tokens` holds it already.
    """
    secrets = replace(stored.secrets, tokens=tokens)
    mine = Login.objects.filter(pk=stored.row.pk, version=stored.version)
    return bool(
        mine.update(version=F("version") + 1, **columns_of(stored.row.pk, secrets), **columns)
    )


def end_login(stored: Stored, ended: str, reason: str, now: datetime, **columns: Any) -> bool:
    """It is over, by the tokens that were read; False if others are stored by now."""
    mine = Login.objects.filter(pk=stored.row.pk, version=stored.version)
    return bool(
        mine.update(
            version=F("version") + 1,
            ended=ended,
            ended_at=now,
            ended_reason=clean(reason, MAX_REASON),
            refresh_due_at=None,
            **columns,
        )
    )
