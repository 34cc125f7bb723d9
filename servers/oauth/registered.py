"""Clients that authorization servers registered for us: kept and used again (A29, A30).

They are kept for an issuer and a redirect URI together: another public address, or another
server, registers anew.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse

from secrets_vault import services as vault
from secrets_vault.crypto import CryptoError
from servers.models import RegisteredClient
from servers.oauth.store import CLIENT_KIND, moment
from servers.oauth.types import Client
from umpteenth.core.clock import database_now
from umpteenth.core.ids import new_id
from umpteenth.core.masking import known_values


def find(issuer: str, redirect_uri: str) -> Client | None:
    """The client to use again; whether its secret still lasts, `clients.choose_client` asks."""
    row = RegisteredClient.objects.filter(digest=_digest(issuer, redirect_uri)).first()
    return _open(row) if row is not None else None


def keep(issuer: str, redirect_uri: str, client: Client) -> None:
    """In place of the one before."""
    pk = new_id()
    ciphertext, key_id = vault.encrypt_json(client.as_json(), kind=CLIENT_KIND, row_id=pk)
    digest = _digest(issuer, redirect_uri)
    columns = {
        "issuer": issuer,
        "redirect_uri": redirect_uri,
        "private": ciphertext,
        "key_id": key_id,
        "registered_at": database_now(),
        "expires_at": moment(client.secret_expires_at),
    }
    # The ciphertext is bound to the row's key, so that a row is replaced and not rewritten.
    RegisteredClient.objects.filter(digest=digest).delete()
    RegisteredClient.objects.bulk_create(
        [RegisteredClient(pk=pk, digest=digest, **columns)], ignore_conflicts=True
    )


def forget(issuer: str, client_id: str) -> bool:
    """The provider does not know it any more: the next login registers anew (A29)."""
    known = RegisteredClient.objects.filter(issuer=issuer)
    gone = [row.pk for row in known if (client := _open(row)) and client.client_id == client_id]
    deleted, _ = RegisteredClient.objects.filter(pk__in=gone).delete()
    return bool(deleted)


def forget_at(issuer: str, redirect_uri: str) -> None:
    """Whatever was registered for this place."""
    RegisteredClient.objects.filter(digest=_digest(issuer, redirect_uri)).delete()


def of_server(server_id: UUID) -> QuerySet[RegisteredClient]:
    """All that come back to a server, whatever Umpteenth's address was."""
    callback = reverse("servers_api:oauth_callback", args=[server_id])
    return RegisteredClient.objects.filter(redirect_uri__endswith=callback)


def _open(row: RegisteredClient) -> Client | None:
    """None where no key opens it: another one is registered, which costs nobody anything."""
    try:
        raw = vault.decrypt_json(
            bytes(row.private), key_id=row.key_id, kind=CLIENT_KIND, row_id=row.pk
        )
        client = Client.from_json(raw)
    except (CryptoError, TypeError):
        return None
    if client.secret:
        known_values().add(f"client secret at {row.issuer}", client.secret)
    return client


def _digest(issuer: str, redirect_uri: str) -> str:
    return hashlib.sha256(f"{issuer}\n{redirect_uri}".encode()).hexdigest()
