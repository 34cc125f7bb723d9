"""OAuth logins as rows, and what servers advertise, without a provider."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from servers.models import Login, Server
from servers.oauth import store
from servers.oauth.types import Advertised, Client, LoginSecrets, Provider, Tokens
from tests.fakes.server_rows import http_server
from umpteenth.core.ids import new_id

ISSUER = "https://auth.example.com"
ACCESS, REFRESH = "access-token-canary", "refresh-token-canary"


def provider(**values: Any) -> Provider:
    endpoints = {
        "issuer": ISSUER,
        "authorization_endpoint": f"{ISSUER}/authorize",
        "token_endpoint": f"{ISSUER}/token",
        "registration_endpoint": f"{ISSUER}/register",
        "metadata_url": f"{ISSUER}/.well-known/oauth-authorization-server",
    }
    return Provider(**{**endpoints, **values})


def advertised(resource: str = "https://api.example.org/mcp", **values: Any) -> Advertised:
    """What a server says of its logins; `values` are the provider's."""
    return Advertised(
        provider(**values),
        resource,
        "https://api.example.org/.well-known/oauth-protected-resource/mcp",
    )


def oauth_server(name: str = "github", **values: Any) -> Server:
    """A server that wants a login and says where; `values` are columns."""
    server = http_server(name)
    columns = {
        "oauth_advertised": True,
        "oauth_found": advertised().as_json(),
        "state": Server.State.LOGIN_REQUIRED,
        "last_error": "401 Unauthorized",
        "checked_at": timezone.now(),
    }
    Server.objects.filter(pk=server.pk).update(**{**columns, **values})
    server.refresh_from_db()
    return server


def logged_in(
    server: Server, *, lasts: timedelta | None = None, refresh: bool = True, **values: Any
) -> Login:
    """A login of this server whose access token ends after `lasts`; `values` are columns."""
    now = timezone.now()
    tokens = Tokens(
        ACCESS,
        REFRESH if refresh else "",
        (now + lasts).timestamp() if lasts is not None else None,
        now.timestamp(),
        ("read", "write"),
    )
    client = Client("client-1", "registered")
    secrets = LoginSecrets(tokens, provider(), client, server.url)
    pk = new_id()
    columns = {
        **store.columns_of(pk, secrets),
        "issuer": ISSUER,
        "client_kind": client.kind,
        "logged_in_at": now,
        **values,
    }
    return Login.objects.create(pk=pk, server=server, **columns)
