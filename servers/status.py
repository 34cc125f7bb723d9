"""Facts about a server in the words that people read."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from servers.models import Server


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


def auth_status(server: Server) -> Auth:
    """From stored facts alone: no network, no decryption."""
    if server.transport == Server.Transport.STDIO:
        return Auth.NONE
    if server.has_authorization:
        return Auth.BEARER_TOKEN
    return Auth.NONE if server.tested_at else Auth.UNKNOWN


def auth_condition(auth: str) -> Q:
    """The same rule as `auth_status`, for the database."""
    http = Q(transport=Server.Transport.HTTP)
    if auth == Auth.BEARER_TOKEN:
        return http & Q(has_authorization=True)
    reached = Q(tested_at__isnull=False)
    if auth == Auth.NONE:
        return ~http | Q(has_authorization=False) & reached
    if auth == Auth.UNKNOWN:
        return http & Q(has_authorization=False) & ~reached
    return Q(pk__in=[])
