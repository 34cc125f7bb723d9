"""Facts about a server in the words that people read."""

from __future__ import annotations

from django.db import models
from django.db.models import Exists, OuterRef, Q

from secrets_vault.models import Secret
from servers.models import Server
from servers.options import OVER_HTTP


class Auth(models.TextChoices):
    """How requests to a server are authenticated (P46-P51)."""

    OAUTH = "oauth", "OAuth"
    NOT_LOGGED_IN = "not_logged_in", "Not logged in"
    LOGIN_EXPIRED = "login_expired", "Login expired"
    BEARER_TOKEN = "bearer_token", "Bearer token"
    UNKNOWN = "unknown", "Unknown"
    NONE = "none", "None"


# What can be told until logins exist; the filter of the list offers these.
AUTH_IN_USE = (Auth.BEARER_TOKEN, Auth.NONE, Auth.UNKNOWN)


def token_exists() -> Exists:
    """Whether the secret that `token_ref` names exists.

    Lists annotate it as `token_exists`, so that `auth_status` asks nothing for each row.
    """
    return Exists(Secret.objects.filter(name=OuterRef("token_name")))


def auth_status(server: Server) -> Auth:
    """From stored facts alone: no network, no decryption."""
    if server.transport not in OVER_HTTP:
        return Auth.NONE
    if server.has_authorization or _has_token(server):
        return Auth.BEARER_TOKEN
    # A login is made in a browser, which reaches no socket of this machine.
    if server.transport == Server.Transport.UNIX or server.tested_at:
        return Auth.NONE
    return Auth.UNKNOWN


def _has_token(server: Server) -> bool:
    if not server.token_name:
        return False
    known: bool | None = getattr(server, "token_exists", None)
    return Secret.objects.filter(name=server.token_name).exists() if known is None else known


def credentials_words(server: Server) -> str:
    """Which credential is sent, by the order of section 0 (E15); empty if none is set."""
    if server.transport not in OVER_HTTP:
        return ""
    token = f"@{server.token_name}" if server.token_name else ""
    if server.has_authorization:
        wins = f"; it wins over token_ref {token}" if token else ""
        return f"The Authorization header is sent{wins}."
    if not token:
        return ""
    return token_problem(server) or f"The secret {server.token_name} is sent as bearer token."


def token_problem(server: Server) -> str:
    """Why the secret that `token_ref` names cannot be sent; empty if it is there or not needed."""
    unused = server.has_authorization or server.transport not in OVER_HTTP
    if unused or not server.token_name or _has_token(server):
        return ""
    return f"There is no secret named {server.token_name}, so that no token is sent."


def is_about_secret(error: str) -> bool:
    """Whether it is one of the sentences of `secrets_vault.errors`: the remedy is on that page."""
    return error.startswith("Secret ") and "under Settings, Secrets" in error


def auth_condition(auth: str) -> Q:
    """The same rule as `auth_status`, for the database."""
    bearer = Q(transport__in=OVER_HTTP) & (Q(has_authorization=True) | Q(token_exists()))
    unknown = Q(transport=Server.Transport.HTTP, tested_at__isnull=True) & ~bearer
    if auth == Auth.BEARER_TOKEN:
        return bearer
    if auth == Auth.UNKNOWN:
        return unknown
    if auth == Auth.NONE:
        return ~bearer & ~unknown
    return Q(pk__in=[])
