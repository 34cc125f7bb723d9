"""Who we are at an authorization server: the order in which clients are preferred (P54-P57).

An operator's Client ID counts most, then the document that Umpteenth serves about itself
(draft-ietf-oauth-client-id-metadata-document), then a client that was registered (RFC 7591).
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from servers.oauth.types import CLIENT_NAME, AuthMethod, Client, ClientKind, Provider
from umpteenth.core.addresses import is_this_machine

GRANT_TYPES: Final = ("authorization_code", "refresh_token")
# A secret that ends sooner would not outlive the login that is begun with it.
SECRET_MARGIN: Final = 3600.0
PEM_MARK: Final = "-----BEGIN "
# Names that mean something else, or nothing, to an authorization server on the internet.
_OWN_NAMES: Final = (
    ".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan", ".home", ".corp",
    ".home.arpa", ".test", ".onion",
)  # fmt: skip


def choose_client(
    provider: Provider,
    *,
    operator_id: str,
    operator_secret: str,
    document_url: str | None,
    registered: Client | None,
) -> Client | None:
    """The client to log in with; None: one has to be registered first.

    `operator_secret` is the value, references resolved; `document_url` is None where no document
    can be offered; `registered` was registered with this issuer for this redirect URI (A30).
    """
    if operator_id:
        return operator_client(provider, operator_id, operator_secret)
    if provider.takes_client_documents and document_url:
        return Client(document_url, "document")
    if registered is not None and is_usable(registered):
        return registered
    return None


def operator_client(provider: Provider, client_id: str, secret: str) -> Client:
    """A client that somebody has registered by hand."""
    method = secret_method(provider.token_auth_methods, secret) if secret else "none"
    return Client(client_id, "operator", method, secret)


def secret_method(methods: Sequence[str] | None, secret: str = "") -> AuthMethod:
    """How a secret is sent. Without a word of the provider's it is Basic (RFC 8414, 2); else the
    body is preferred, since providers disagree on how Basic encodes what is no letter or digit."""
    if is_key(secret):
        return "private_key_jwt"
    return (
        "client_secret_post" if "client_secret_post" in (methods or ()) else "client_secret_basic"
    )


def is_key(secret: str) -> bool:
    """Whether it is a private key in PEM, which signs instead of being sent (RFC 7523, 2.2)."""
    return PEM_MARK in secret


def is_usable(client: Client) -> bool:
    """Whether its secret still lasts (RFC 7591, 3.2.1)."""
    ends = client.secret_expires_at
    return ends is None or ends > time.time() + SECRET_MARGIN


def storable(client: Client) -> Client:
    """As it is kept: an operator's secret stays a reference in the server's settings."""
    return replace(client, secret="") if client.kind == "operator" else client


def why_client(kind: ClientKind, provider: Provider | None = None) -> str:
    """For the sheet: which client is used, and why."""
    if kind == "operator":
        return "The Client ID in this server's settings: it is used wherever there is one."
    if kind == "document":
        return (
            "The address of Umpteenth's own client document: there is no Client ID in the "
            "settings, and the authorization server reads such documents."
        )
    reason = "the authorization server reads no client documents"
    if provider is not None and provider.takes_client_documents:
        reason = "Umpteenth has no public https address at which its client document can be read"
    return (
        "Registered by itself with the authorization server: there is no Client ID in the "
        f"settings, and {reason}."
    )


def document_url(app_url: str, server_id: UUID) -> str | None:
    """Where our document of a server can be read; None unless the internet can read it."""
    return _document_address(app_url, server_id) if is_public_https(app_url) else None


def _document_address(app_url: str, server_id: UUID) -> str:
    # Written out, since nothing here knows of routes: `servers.api_urls` has it, too.
    return f"{app_url.rstrip('/')}/api/mcp-servers/{server_id}/oauth/client.json"


def client_document(app_url: str, server_id: UUID, redirect_uri: str) -> dict[str, Any]:
    """What is served there: `client_id` is its own address, character by character."""
    return {
        "client_id": _document_address(app_url, server_id),
        "client_uri": app_url,
        **metadata(redirect_uri),
        "token_endpoint_auth_method": "none",
    }


def metadata(redirect_uri: str) -> dict[str, Any]:
    """What we say of ourselves, registered or by a document (RFC 7591, 2)."""
    return {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": list(GRANT_TYPES),
        "response_types": ["code"],
        "application_type": application_type(redirect_uri),
    }


def application_type(redirect_uri: str) -> str:
    """A web application, unless it comes back to the machine of the browser: OpenID Connect
    registers `http` and loopback addresses for native ones only."""
    return "native" if is_this_machine(urlsplit(redirect_uri).hostname or "") else "web"


def is_public_https(app_url: str) -> bool:
    """Whether strangers on the internet can be expected to read it. No name is resolved."""
    parts = urlsplit(app_url)
    host = (parts.hostname or "").rstrip(".")
    if parts.scheme != "https" or parts.username is not None or not host:
        return False
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        last = host.rpartition(".")[2]
        # Numbers of another form are addresses too, such as 127.1 (I01).
        return host != last and last[0].isalpha() and not host.endswith(_OWN_NAMES)
