"""What a login that was begun is bound to: address, session, server, settings (P40, I07, I08)."""

from __future__ import annotations

import hashlib
import json
from uuid import UUID

from django.conf import settings
from django.urls import reverse
from django.utils.crypto import salted_hmac

from servers.models import Server
from servers.oauth.types import OAuthError
from servers.private import read_private
from umpteenth.core.http import same_origin


def callback_url(base_url: str, server_id: UUID) -> str:
    """Where the provider sends the browser back to."""
    return base_url.rstrip("/") + reverse("servers_api:oauth_callback", args=[server_id])


def base_url(browser: str) -> str:
    """Umpteenth's address for a browser that has opened `browser`, its scheme, host and port.

    Without `app.url` it is just that. Raises `OAuthError` where `app.url` is another: the browser
    would come back without its session, after everything else is done (P40).
    """
    app_url: str | None = settings.OPTIONS.app.url
    if app_url is None:
        return browser
    if not same_origin(app_url, browser):
        raise OAuthError(
            f"This page was opened at {browser}, but the provider sends the browser back to "
            f"{app_url}, which is app.url in the configuration.",
            f"Open Umpteenth at {app_url} and log in there, or correct app.url.",
        )
    return app_url


def hash_of_state(state: str) -> str:
    """Of 256 random bits: what the database holds lets nobody come back."""
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()


def hash_of_session(session_key: str) -> str:
    return _keyed("session", session_key)


def hash_of_settings(server: Server) -> str:
    """Of all that decides which server and which client a login is for.

    Keyed, since a client secret may be short enough to be guessed. Raises the vault's
    `SecretError` where the secret settings cannot be opened.
    """
    private = read_private(server)
    parts = [
        server.transport,
        server.url,
        private.query,
        server.oauth_kind,
        server.oauth_client_id,
        private.client_secret,
        server.oauth_scopes,
    ]
    return _keyed("settings", json.dumps(parts))


def _keyed(what: str, text: str) -> str:
    return salted_hmac(f"servers.oauth.{what}", text, algorithm="sha256").hexdigest()
