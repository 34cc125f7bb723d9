"""What a login is worth at a moment, from its stored columns alone: for badges, runs and beat.

Each rule is here twice, for a row and for the database; tests hold both together.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from django.db.models import Q

from servers.models import Login
from umpteenth.core.text import with_full_stop

# How long before its end a login that cannot be refreshed is spoken of.
WARNED_BEFORE = timedelta(days=3)


class LoginState(StrEnum):
    NONE = "none"  # nobody has logged in, or somebody logged out
    USABLE = "usable"
    EXPIRED = "expired"  # P45, P48: the access token is over, and nothing renews it
    REFUSED = "refused"  # P47: the provider or the server takes it no more


def login_state(login: Login | None, now: datetime) -> LoginState:
    """`now` is `umpteenth.core.clock.now()` for what is shown, `database_now()` for the rest."""
    if login is None:
        return LoginState.NONE
    if login.ended:
        return LoginState(login.ended)
    if login.can_refresh or login.expires_at is None or login.expires_at > now:
        return LoginState.USABLE
    return LoginState.EXPIRED


def login_condition(state: LoginState, now: datetime, prefix: str = "login__") -> Q:
    """The same rule for the database: of servers, or with an empty `prefix` of logins."""
    if state == LoginState.NONE:
        return Q(**{f"{prefix}pk__isnull": True})
    if state == LoginState.REFUSED:
        return Q(**{f"{prefix}ended": Login.Ended.REFUSED})
    going_on = Q(**{f"{prefix}ended": ""})
    over = Q(**{f"{prefix}can_refresh": False, f"{prefix}expires_at__lte": now})
    if state == LoginState.EXPIRED:
        return Q(**{f"{prefix}ended": Login.Ended.EXPIRED}) | (going_on & over)
    # Spelled out, since the denial of a comparison with NULL is no truth in SQL.
    lasts = Q(**{f"{prefix}expires_at__isnull": True}) | Q(**{f"{prefix}expires_at__gt": now})
    return going_on & (Q(**{f"{prefix}can_refresh": True}) | lasts)


def login_warning(login: Login | None, now: datetime) -> str:
    """Why a login that still works may not do so for long; empty if it does or there is none."""
    if login is None or login_state(login, now) != LoginState.USABLE:
        return ""
    if login.refresh_failures:
        reason = with_full_stop(login.refresh_error or "The provider gave no reason")
        return f"The login could not be refreshed: {reason} Runs fail once its token is over."
    if login.can_refresh or login.expires_at is None or login.expires_at > now + WARNED_BEFORE:
        return ""
    end = f"{login.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return f"The login ends at {end} and cannot be refreshed. Log in again before that."


def warning_condition(now: datetime, prefix: str = "login__") -> Q:
    """Of which logins `login_warning` says something."""
    failed = Q(**{f"{prefix}refresh_failures__gt": 0})
    ends = Q(
        **{f"{prefix}can_refresh": False, f"{prefix}expires_at__lte": now + WARNED_BEFORE},
    )
    return login_condition(LoginState.USABLE, now, prefix) & (failed | ends)
