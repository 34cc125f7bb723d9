"""The client that an operator entered for a server (P56-P58): whom it is for, and its secret."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from secrets_vault import services as vault
from servers.models import Server
from servers.oauth.metadata import same_issuer
from servers.oauth.types import Client, OAuthError, Provider
from servers.private import read_private
from umpteenth.core.http import public_url
from umpteenth.core.masking import known_values


def require_its_issuer(server: Server, provider: Provider) -> None:
    """Raises `OAuthError` where the server has turned to another authorization server than the
    one that took the client: whoever changes the server's document shall not get its secret
    (MCP 2026-07-28, Authorization Server Binding)."""
    known = server.oauth_client_issuer
    if not server.oauth_client_id or not known or same_issuer(known, provider.issuer):
        return
    raise OAuthError(
        f"{server.name} now sends people to {public_url(provider.issuer)} to log in, but its "
        f"Client ID belongs to {public_url(known)}.",
        "If that is right, take the Client ID out under Edit, OAuth client, and save; then enter "
        "the one of the new authorization server.",
    )


def with_secret(client: Client, server: Server, endpoint: str) -> Client:
    """A stored client as it shows itself to this endpoint: an operator's is stored without its
    secret, which is among the server's settings. Raises the vault's `SecretError`."""
    if client.kind != "operator":
        return client
    return replace(client, secret=operator_secret(server, endpoint))


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
