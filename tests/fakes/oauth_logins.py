"""Servers with a login at the fake provider, as they are after somebody has approved."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from servers.models import Login, Server
from servers.oauth import store
from servers.oauth.refresh import Place
from servers.oauth.types import Client, ClientKind, LoginSecrets, Provider, Tokens
from tests.fakes.oauth_server import OAuthServer
from tests.fakes.server_rows import http_server

CLIENT_ID = "ours"


def provider_of(fake: OAuthServer) -> Provider:
    return Provider(
        fake.issuer,
        fake.endpoint("authorize"),
        fake.endpoint("token"),
        revocation_endpoint=fake.endpoint("revoke"),
    )


def server_at(fake: OAuthServer, name: str = "hosted", **values: Any) -> Server:
    """`values` are columns."""
    server = http_server(name, url=fake.url)
    Server.objects.filter(pk=server.pk).update(**values)
    server.refresh_from_db()
    return server


def logged_in_at(
    fake: OAuthServer,
    *,
    lasts: timedelta | None = timedelta(hours=1),
    refresh: bool = True,
    kind: ClientKind = "registered",
    secret: str = "",
    **columns: Any,
) -> Server:
    """A server whose access token ends after `lasts` (None: unknown) at the provider's word."""
    server = server_at(fake)
    if CLIENT_ID not in fake.grants.clients:
        fake.add_client(CLIENT_ID, secret=secret)
    access, refresh_token = fake.tokens(CLIENT_ID)
    now = timezone.now()
    tokens = Tokens(
        access,
        refresh_token if refresh else "",
        None if lasts is None else (now + lasts).timestamp(),
        # As if it had been given for an hour.
        (now + (lasts or timedelta()) - timedelta(hours=1)).timestamp(),
    )
    client = Client(CLIENT_ID, kind, "client_secret_basic" if secret else "none", secret)
    secrets = LoginSecrets(tokens, provider_of(fake), client, fake.resource)
    store.put_login(server.pk, secrets, person=None, now=now)
    Login.objects.filter(server=server).update(**columns)
    return server


def login_of(server: Server) -> store.Stored:
    found = store.read_login(server.pk)
    assert found is not None, "nobody is logged in"
    return found


def access_token(server: Server) -> str:
    return login_of(server).tokens.access_token


def place_of(server: Server) -> Place:
    server.refresh_from_db()
    return Place.of(server)


def change(server: Server, **columns: Any) -> None:
    """Of its login's row, as another process might."""
    Login.objects.filter(server=server).update(**columns)
