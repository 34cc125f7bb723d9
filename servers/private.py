"""What of a server is encrypted at rest: the address's query, headers, environment and the secret
of its OAuth client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from secrets_vault import services as vault
from secrets_vault.crypto import CryptoError
from secrets_vault.errors import SecretError
from secrets_vault.references import find_names
from servers.models import Server

KIND = "server"


class PrivateUnreadable(SecretError):
    """No key opens what is stored for the server (E09); it can be entered again."""

    def __init__(self, server: str, error: CryptoError) -> None:
        super().__init__(
            f"The stored headers, environment, address query or client secret of {server} cannot "
            f"be decrypted: {error} Bring that key back, or edit the server and enter them again."
        )


Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Private:
    """Values as people typed them, `{{secret:NAME}}` references not yet resolved."""

    query: str = ""
    headers: Pairs = ()
    env: Pairs = field(default=())
    client_secret: str = ""

    def __repr__(self) -> str:
        return f"Private({len(self.headers)} headers, {len(self.env)} variables)"

    @property
    def has_authorization(self) -> bool:
        return any(name.lower() == "authorization" for name, _ in self.headers)

    @property
    def secret_names(self) -> list[str]:
        values = [
            self.query,
            self.client_secret,
            *(value for _, value in (*self.headers, *self.env)),
        ]
        return sorted({name for value in values for name in find_names(value)})


def read_private(server: Server) -> Private:
    """Decrypt. Raises `PrivateUnreadable`."""
    try:
        raw: dict[str, Any] = vault.decrypt_json(
            bytes(server.private), key_id=server.key_id, kind=KIND, row_id=server.pk
        )
    except CryptoError as error:
        raise PrivateUnreadable(server.name, error) from None
    return Private(
        query=str(raw.get("query", "")),
        headers=tuple((str(name), str(value)) for name, value in raw.get("headers", [])),
        env=tuple((str(name), str(value)) for name, value in raw.get("env", [])),
        client_secret=str(raw.get("client_secret", "")),
    )


def private_columns(private: Private, server_id: UUID) -> dict[str, Any]:
    """The columns of a server's row that hold, or follow from, its private part."""
    raw = {
        "query": private.query,
        "headers": [list(pair) for pair in private.headers],
        "env": [list(pair) for pair in private.env],
        "client_secret": private.client_secret,
    }
    ciphertext, key_id = vault.encrypt_json(raw, kind=KIND, row_id=server_id)
    return {
        "private": ciphertext,
        "key_id": key_id,
        "has_authorization": private.has_authorization,
        "secret_names": private.secret_names,
    }
