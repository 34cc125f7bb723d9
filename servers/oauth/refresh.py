"""Renews the tokens of logins: one refresh of a login at a time, in all processes together (A20).

1. Whoever needs another token reads the login. If it holds a newer one, that is used.
2. Else one takes the login's lease by a conditional update; all others look again every moment.
3. The provider is asked in a thread of its own, which belongs to no run: a rotated refresh token
   is saved even if the run dies that asked for it (`servers.oauth.detached`).
4. Saving and ending name the version that was read. A provider that does not answer ends nothing:
   the access token is used while it lasts, and beat tries again (`servers.oauth.upkeep`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db import DatabaseError, connection
from django.db.models import Q, QuerySet

from secrets_vault import services as vault
from servers.mcp.types import LoginRequired, ServerUnavailable
from servers.models import Login, Server
from servers.oauth import store
from servers.oauth.operator import with_secret
from servers.oauth.revoking import revoke_later
from servers.oauth.store import AWAKE_FOR, Stored
from servers.oauth.types import Client, LoginSecrets, OAuthError, ProviderRefusal, Tokens
from servers.oauth.words import NO_REFRESH, NOT_LOGGED_IN, login_over
from umpteenth.core import deadlines
from umpteenth.core.clock import database_now
from umpteenth.core.connections import give_back
from umpteenth.core.masking import known_values
from umpteenth.core.text import clean, with_full_stop

logger = logging.getLogger(__name__)
T = TypeVar("T")

EARLY: Final = timedelta(seconds=60)  # before the end of the access token, or
EARLY_PART: Final = 5  # a fifth of its lifetime, if that is less
LEASE: Final = timedelta(seconds=60)
ASK_SECONDS: Final = 45.0  # of the provider, in all; less than the lease
POLL: Final = 0.2  # seconds between looks at a login that somebody else refreshes
WAIT_AT_MOST: Final = 75.0  # seconds; a lease and the time to take the next one
# A token that was refreshed so recently is new: one that says it is over at once (A24) is used all
# the same, and one that the server refuses is not followed by yet another (A36).
NEW_FOR: Final = timedelta(seconds=10)
# After a failure: nobody asks again for a moment, and beat asks at growing distances.
COOLING: Final = timedelta(seconds=10)
FIRST_PAUSE: Final = timedelta(seconds=30)
LONGEST_PAUSE: Final = timedelta(hours=1)
SAVE_PAUSES: Final = (0.0, 1.0, 5.0, 20.0)  # seconds before each try to save
# They say nothing of the refresh token (RFC 6749, 4.1.2.1 and 5.2; RFC 8707, 2; RFC 8628, 3.5).
MENDABLE: Final = (
    "", "access_denied", "invalid_client", "invalid_request", "invalid_scope", "invalid_target",
    "server_error", "slow_down", "temporarily_unavailable", "unauthorized_client",
    "unsupported_grant_type",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A server by what a login is bound to: a token never follows a server to another address."""

    server_id: UUID
    name: str
    url: str

    @classmethod
    def of(cls, server: Server) -> Place:
        return cls(server.pk, server.name, server.url)


@dataclass(frozen=True)
class Wish:
    """Why somebody wants another token: `refused` is the one that the server took no more.

    Without `sure` the refusal may mean something else, and ends nothing. `awake`: the refresh token
    has lain unused for long.
    """

    refused: str = ""
    sure: bool = True
    reason: str = ""  # in the server's words
    awake: bool = False

    def is_open(self, stored: Stored, now: datetime) -> bool:
        if self.refused and stored.tokens.access_token == self.refused:
            return True
        if self.awake and _lies_unused(stored.row, now):
            return True
        return is_due(stored, now)


def read(place: Place) -> Stored | None:
    """The login of the server as long as that is where it was. Raises `ServerUnavailable`."""
    there = Server.objects.filter(
        pk=place.server_id, url=place.url, transport=Server.Transport.HTTP
    )
    try:
        stored = store.read_login(place.server_id)
    except (vault.UnknownKey, vault.DecryptionFailed) as error:
        raise ServerUnavailable(
            f"The stored OAuth login of {place.name} cannot be decrypted: {error}",
            "Bring that key back, or log in again under MCP Servers.",
        ) from None
    except (KeyError, TypeError):  # of a version that kept other things
        raise ServerUnavailable(
            f"The stored OAuth login of {place.name} cannot be read.",
            "Log in again under MCP Servers.",
        ) from None
    return stored if stored is not None and there.exists() else None


def is_due(stored: Stored, now: datetime) -> bool:
    """Whether the access token is over, or so near its end that it is refreshed."""
    row, tokens = stored.row, stored.tokens
    if row.expires_at is None or _is_new(row, now):
        return False
    early = EARLY
    if tokens.expires_at is not None and tokens.issued_at:
        lifetime = timedelta(seconds=max(0.0, tokens.expires_at - tokens.issued_at))
        early = min(EARLY, lifetime / EARLY_PART)
    return now >= row.expires_at - early


def secrets_of(name: str, login: LoginSecrets) -> dict[str, str]:
    """What must be masked, by what it is called."""
    values = {
        f"access token of {name}": login.tokens.access_token,
        f"refresh token of {name}": login.tokens.refresh_token,
        f"client secret of {name}": login.client.secret,
    }
    return {label: value for label, value in values.items() if value}


def remember(values: Mapping[str, str]) -> None:
    """Have the logs of this process mask them."""
    known_values().learn(values)


def renew(place: Place, wish: Wish) -> Stored | None:
    """The login with another access token, if there is reason for one; else as it is.

    None: the server refuses the token, there is no other one, and the wish is not `sure`. Waits
    for whoever refreshes already. Raises `LoginRequired` and `ServerUnavailable`.
    """
    end = time.monotonic() + WAIT_AT_MOST
    while True:
        stored, now = read(place), database_now()
        if stored is None:
            raise LoginRequired(NOT_LOGGED_IN)
        if stored.row.ended:
            raise login_over(stored.row.ended_reason)
        if not wish.is_open(stored, now):
            return stored
        if not stored.row.can_refresh or _is_refused_when_new(stored, wish, now):
            if _lasts(stored, wish, now):
                return stored
            ended, reason = _verdict(stored, wish, now)
            if not ended:
                return None
            if _end(stored, ended, reason, now):
                raise login_over(reason)
        elif _shall_not_ask(stored, wish, now):
            return _make_do(stored, wish, now)
        elif _take_lease(stored, now):
            _refresh(place, stored)
        elif time.monotonic() > end:
            raise ServerUnavailable(
                f"Another process has been refreshing the OAuth login for {WAIT_AT_MOST:g} seconds."
            )
        else:
            give_back()
            time.sleep(POLL)


def give_up(place: Place, refused: str, reason: str) -> None:
    """The server refuses a token that was just refreshed: the login ends by it (A36)."""
    stored = read(place)
    if stored is not None and stored.tokens.access_token == refused and not stored.row.ended:
        _end(stored, Login.Ended.REFUSED, reason, database_now())


def _end(stored: Stored, ended: str, reason: str, now: datetime) -> bool:
    """A machine has nobody who could log in again: its login stays, with its trouble."""
    if not stored.secrets.machine:
        return store.end_login(stored.row, ended, reason, now)
    mine = Login.objects.filter(pk=stored.row.pk, version=stored.version)
    return bool(mine.update(refresh_failures=1, refresh_error=clean(reason, store.MAX_REASON)))


def _is_new(row: Login, now: datetime) -> bool:
    # A clock that was put back makes nothing new.
    return row.refreshed_at is not None and abs(now - row.refreshed_at) < NEW_FOR


def _lies_unused(row: Login, now: datetime) -> bool:
    used = row.refreshed_at or row.logged_in_at
    return bool(row.refresh_failures) or now - used >= AWAKE_FOR


def _lasts(stored: Stored, wish: Wish, now: datetime) -> bool:
    if stored.tokens.access_token == wish.refused:
        return False
    return stored.row.expires_at is None or stored.row.expires_at > now


def _is_refused_when_new(stored: Stored, wish: Wish, now: datetime) -> bool:
    """A second refresh would be for the same failure, unless the token's time is over already."""
    refused = bool(wish.refused) and stored.tokens.access_token == wish.refused
    over = stored.row.expires_at is not None and stored.row.expires_at <= now
    return refused and not over and _is_new(stored.row, now)


def _verdict(stored: Stored, wish: Wish, now: datetime) -> tuple[str, str]:
    """How a login ends whose access token is good for nothing (P45, P47, P48), and why.

    Empty where the refusal may mean something else.
    """
    row = stored.row
    if row.expires_at is not None and row.expires_at <= now:
        return Login.Ended.EXPIRED, NO_REFRESH
    if not wish.sure:
        return "", ""
    if row.can_refresh or row.expires_at is not None:
        return Login.Ended.REFUSED, wish.reason
    return Login.Ended.EXPIRED, NO_REFRESH


def _shall_not_ask(stored: Stored, wish: Wish, now: datetime) -> bool:
    """Whether the last answer was of no use, and it is too early for the next question: those who
    waited for it make do with it as well."""
    row = stored.row
    cooling = (
        not row.lease_token
        and row.lease_until is not None
        and now < row.lease_until <= now + 2 * COOLING
    )
    pausing = row.refresh_due_at is not None and row.refresh_due_at > now
    return cooling or (
        bool(row.refresh_failures) and pausing and not wish.awake and _lasts(stored, wish, now)
    )


def _make_do(stored: Stored, wish: Wish, now: datetime) -> Stored:
    if _lasts(stored, wish, now):
        return stored
    raise ServerUnavailable(
        f"The OAuth login could not be refreshed: {with_full_stop(stored.row.refresh_error)}",
        "It is tried again by itself.",
    )


def _take_lease(stored: Stored, now: datetime) -> bool:
    token = secrets.token_urlsafe(24)
    # One that is longer than any was taken before the clock was put back. `now` may be old.
    far = now + 2 * LEASE
    is_over = Q(lease_until=None) | Q(lease_until__lte=now) | Q(lease_until__gt=far)
    mine = Login.objects.filter(
        is_over,
        pk=stored.row.pk,
        version=stored.version,
        ended="",
    )
    if not mine.update(lease_token=token, lease_until=now + LEASE):
        return False
    stored.row.lease_token = token
    return True


def _refresh(place: Place, stored: Stored) -> None:
    """Ask the provider and keep what comes of it, whatever it is. We hold the lease."""
    try:
        tokens, client = _ask(place, stored)
    except ProviderRefusal as error:
        _note_refusal(stored, error)
    except OAuthError as error:
        _note_failure(stored, error.words)
    except vault.SecretError as error:
        _note_failure(stored, str(error))
    except TimeoutError:
        _note_failure(stored, f"The provider did not answer within {ASK_SECONDS:g} seconds.")
    except BaseException:
        _mine(stored).update(lease_token="", lease_until=None)
        raise
    else:
        _save(place, stored, tokens, client)


def _ask(place: Place, stored: Stored) -> tuple[Tokens, Client]:
    from servers.oauth import grants

    login = stored.secrets
    server = Server.objects.filter(pk=place.server_id).first()
    if server is None:
        raise OAuthError("The server is gone.")
    client = with_secret(login.client, server, login.provider.token_endpoint)
    give_back()
    if login.machine:
        # With those for the lack of which a call was refused since.
        scopes = tuple(dict.fromkeys([*login.scopes, *server.oauth_wanted.split()]))
        return wait_for(
            grants.client_credentials(
                login.provider, client, resource=login.resource, scopes=scopes
            )
        )
    return wait_for(grants.refresh_tokens(login, client))


def wait_for(answer: Coroutine[Any, Any, T]) -> T:
    """In this thread, which has no event loop. Raises `TimeoutError`."""

    async def bounded() -> T:
        async with deadlines.timeout(ASK_SECONDS):
            return await answer

    return asyncio.run(bounded())


def _save(place: Place, stored: Stored, tokens: Tokens, client: Client) -> None:
    """Keep the new tokens: the old refresh token may be good for nothing any more."""
    remember(secrets_of(place.name, replace(stored.secrets, tokens=tokens)))
    for number, pause in enumerate(SAVE_PAUSES, 1):
        time.sleep(pause)
        try:
            if store.replace_tokens(stored, tokens, client, database_now()):
                return
            if not Login.objects.filter(pk=stored.row.pk).exists():
                # Somebody logged out meanwhile: what came since then shall not live on.
                revoke_later(replace(stored.secrets, tokens=tokens), client)
            return
        except DatabaseError as error:
            connection.close()
            logger.warning("refreshed tokens of %s could not be saved: %s", place.name, error)
            if number == len(SAVE_PAUSES):
                raise ServerUnavailable(
                    "The OAuth login was refreshed, but the new tokens could not be saved.",
                    "Look at the database. The login may have to be made again.",
                ) from None


def _note_refusal(stored: Stored, error: ProviderRefusal) -> None:
    """`invalid_grant` and what no standard knows are about the refresh token: it is over (P47).

    All other refusals may be mended by others: an operator's wrong secret, a scope, a document
    that cannot be read. Only a client that was registered by itself has nobody to mend it (A29).
    """
    forgotten = error.error == "invalid_client" and stored.secrets.client.kind == "registered"
    if not forgotten and (stored.secrets.machine or error.error in MENDABLE):
        _note_failure(stored, error.words)
        return
    if forgotten:
        from servers.oauth import registered

        registered.forget(stored.secrets.provider.issuer, stored.secrets.client.client_id)
    # Of the same version: nobody has put a newer refresh token in its place.
    store.end_login(stored.row, Login.Ended.REFUSED, error.message, database_now())


def _note_failure(stored: Stored, reason: str) -> None:
    now = database_now()
    failures = stored.row.refresh_failures + 1
    pause = min(FIRST_PAUSE * 2 ** min(failures - 1, 20), LONGEST_PAUSE)
    _mine(stored).update(
        refresh_failures=failures,
        refresh_error=clean(reason, store.MAX_REASON),
        refresh_due_at=now + pause,
        lease_token="",
        lease_until=now + COOLING,
    )


def _mine(stored: Stored) -> QuerySet[Login]:
    return Login.objects.filter(pk=stored.row.pk, lease_token=stored.row.lease_token)
