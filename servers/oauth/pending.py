"""Logins that were begun: kept while the person is at the provider, good once (P42, I07, I08)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from secrets_vault import services as vault
from secrets_vault.crypto import CryptoError
from servers.models import Login, PendingLogin, Server
from servers.oauth.binding import hash_of_session, hash_of_settings, hash_of_state
from servers.oauth.store import PENDING_KIND
from servers.oauth.types import Client, OAuthError, Provider
from umpteenth.accounts.models import User
from umpteenth.core.clock import database_now
from umpteenth.core.ids import new_id

LASTS = timedelta(minutes=10)
# Who is still away after this has perhaps met a page of the provider that leads nowhere (A29).
OVERDUE_AFTER = timedelta(minutes=1)
AGAIN = "Start the login again."


@dataclass(frozen=True)
class Begun:
    """What the last step of a login needs of its first one; encrypted where it is kept."""

    verifier: str = field(repr=False)
    provider: Provider
    client: Client  # an operator's without its secret
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...] = ()
    # Whether the scopes are what the server asks for, and not the operator's own.
    scopes_are_found: bool = True
    # Whether the client was registered for these scopes: providers hold it to those that it named.
    client_is_new: bool = False
    # Whether this very login has registered a second client: there is no third one.
    registered_again: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        return cls(
            **{
                **raw,
                "provider": Provider.from_json(raw["provider"]),
                "client": Client.from_json(raw["client"]),
                "scopes": tuple(raw["scopes"]),
            }
        )


def keep(server: Server, *, person: User, session_key: str, state: str, begun: Begun) -> None:
    now = database_now()
    pk = new_id()
    ciphertext, key_id = vault.encrypt_json(begun.as_json(), kind=PENDING_KIND, row_id=pk)
    PendingLogin.objects.create(
        pk=pk,
        server=server,
        person=person,
        state_hash=hash_of_state(state),
        session_hash=hash_of_session(session_key),
        settings_hash=hash_of_settings(server),
        private=ciphertext,
        key_id=key_id,
        created_at=now,
        expires_at=now + LASTS,
    )


def find(server_id: UUID, *, state: str, person: User, session_key: str) -> PendingLogin:
    """The login that this answer belongs to. It stays as it is, whoever asks.

    Raises `OAuthError` for an answer that nobody asked for, or somebody else did.
    """
    row = (
        PendingLogin.objects.select_related("server")
        .filter(server_id=server_id, state_hash=hash_of_state(state))
        .first()
    )
    if row is None:
        raise OAuthError(
            "No login like this one is under way here: it is finished already, was cancelled, "
            "or was not begun here.",
            AGAIN,
        )
    if row.person_id != person.pk:
        raise OAuthError("Somebody else began this login.", "Start it yourself to log in.")
    if row.session_hash != hash_of_session(session_key):
        raise OAuthError(
            "This login was begun in another browser, or before you signed in again.",
            "Start it again in this one.",
        )
    return row


def take(row: PendingLogin) -> Begun:
    """What was begun; nobody takes it twice. Raises `OAuthError` where it is over."""
    deleted, _ = PendingLogin.objects.filter(pk=row.pk).delete()
    if not deleted:  # a second callback at the same moment
        raise OAuthError("This login is finished already.")
    if row.expires_at <= database_now():
        raise OAuthError("The login took longer than 10 minutes.", AGAIN)
    if row.settings_hash != hash_of_settings(row.server):
        raise OAuthError(f"{row.server.name} was changed during the login.", AGAIN)
    try:
        raw = vault.decrypt_json(
            bytes(row.private), key_id=row.key_id, kind=PENDING_KIND, row_id=row.pk
        )
    except CryptoError as error:
        raise OAuthError(f"The login that was begun cannot be read: {error}", AGAIN) from None
    return Begun.from_json(raw)


def unfinished(server_id: UUID, now: datetime) -> PendingLogin | None:
    """The newest login that was begun and did not come back, where nobody has logged in since.

    Some providers answer a client that they have forgotten with a page of their own, from which
    no way leads back (A29): whoever began it is told of `Register again`.
    """
    rows = PendingLogin.objects.filter(server_id=server_id, created_at__lt=now - OVERDUE_AFTER)
    newest = rows.order_by("-created_at").first()
    if newest is None:
        return None
    since = Login.objects.filter(server_id=server_id, logged_in_at__gte=newest.created_at)
    return None if since.exists() else newest
