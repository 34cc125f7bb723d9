"""Facts about a server in the words that people read."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Exists, OuterRef, Q

from secrets_vault.models import Secret
from servers.models import Login, Server
from servers.oauth.state import LoginState, login_condition, login_state
from servers.options import OVER_HTTP
from umpteenth.core import clock


class Auth(models.TextChoices):
    # P46-P51; the docstring stands in openapi.json.
    """How requests to a server are authenticated."""

    OAUTH = "oauth", "OAuth"
    NOT_LOGGED_IN = "not_logged_in", "Not logged in"
    LOGIN_EXPIRED = "login_expired", "Login expired"
    BEARER_TOKEN = "bearer_token", "Bearer token"
    UNKNOWN = "unknown", "Unknown"
    NONE = "none", "None"


# What a login that exists shows, whatever its server advertises.
_OF_LOGIN = {
    LoginState.USABLE: Auth.OAUTH,
    LoginState.EXPIRED: Auth.LOGIN_EXPIRED,
    LoginState.REFUSED: Auth.NOT_LOGGED_IN,
}


def token_exists() -> Exists:
    """Whether the secret that `token_ref` names exists.

    Lists annotate it as `token_exists`, so that `auth_status` asks nothing for each row.
    """
    return Exists(Secret.objects.filter(name=OuterRef("token_name")))


def login_of(server: Server) -> Login | None:
    """Its login, whatever that is worth; lists read it along with the server."""
    login: Login | None = getattr(server, "login", None)
    return login


def auth_status(server: Server) -> Auth:
    """From stored facts alone: no network, no decryption."""
    if server.transport not in OVER_HTTP:
        return Auth.NONE
    if server.has_authorization or _has_token(server):
        return Auth.BEARER_TOKEN
    # A login is made in a browser, which reaches no socket of this machine.
    if server.transport == Server.Transport.UNIX:
        return Auth.NONE
    state = login_state(login_of(server), clock.now())
    return _OF_LOGIN.get(state) or _without_login(server)


def _without_login(server: Server) -> Auth:
    if server.oauth_advertised:
        return Auth.NOT_LOGGED_IN
    # Where nobody has looked yet, a server that lets everybody in wants nothing.
    lets_in = server.state == Server.State.CONNECTED
    return Auth.NONE if server.oauth_advertised is False or lets_in else Auth.UNKNOWN


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


def _bearer() -> Q:
    return Q(transport__in=OVER_HTTP) & (Q(has_authorization=True) | Q(token_exists()))


def may_log_in() -> Q:
    """Of servers whose requests carry the token of a login, where there is one."""
    return Q(transport=Server.Transport.HTTP) & ~_bearer()


def auth_condition(auth: str, now: datetime) -> Q:
    """The same rule as `auth_status`, for the database."""
    bearer, by_login = _bearer(), may_log_in()
    if auth == Auth.BEARER_TOKEN:
        return bearer
    no_login = by_login & login_condition(LoginState.NONE, now)
    nobody_looked = Q(oauth_advertised__isnull=True) & ~Q(state=Server.State.CONNECTED)
    found: dict[str, Q] = {
        Auth.OAUTH: by_login & login_condition(LoginState.USABLE, now),
        Auth.LOGIN_EXPIRED: by_login & login_condition(LoginState.EXPIRED, now),
        Auth.NOT_LOGGED_IN: (no_login & Q(oauth_advertised=True))
        | (by_login & login_condition(LoginState.REFUSED, now)),
        Auth.UNKNOWN: no_login & nobody_looked,
    }
    needs_none = Q(oauth_advertised=False) | Q(
        oauth_advertised__isnull=True, state=Server.State.CONNECTED
    )
    found[Auth.NONE] = (~Q(transport=Server.Transport.HTTP) & ~bearer) | (no_login & needs_none)
    return found.get(auth, Q(pk__in=[]))
