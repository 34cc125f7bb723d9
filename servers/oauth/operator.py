"""The secret of a client that an operator entered for a server (P57), where it is sent."""

from __future__ import annotations

from urllib.parse import urlsplit

from secrets_vault import services as vault
from servers.models import Server
from servers.private import read_private
from umpteenth.core.masking import known_values


def operator_secret(server: Server, endpoint: str) -> str:
    """The client secret for an endpoint of the provider; empty where there is none.

    Its references resolve for that host, since it is sent there and not to the server. Raises the
    vault's `SecretError`.
    """
    text = read_private(server).client_secret
    if not text:
        return ""
    target = vault.Target(host=urlsplit(endpoint).hostname, server=server.name)
    found = vault.resolve({"secret": text}, target=target)
    known = known_values()
    known.learn(found.secrets)
    value = found.values["secret"].strip()
    known.add(f"client secret of {server.name}", value)
    return value
