"""The token of a server's login, for one connection: read again now and then, refreshed in time.

A run may outlive a log-out or a new login, so that what it sends is at most a few seconds old.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from django.db import transaction

from servers.mcp.types import Challenge, LoginRequired, ServerUnavailable
from servers.models import Login, Server
from servers.oauth import machine, refresh
from servers.oauth.detached import detached
from servers.oauth.refresh import Place, Wish
from servers.oauth.state import LoginState, login_state
from servers.oauth.store import Stored, end_with_token
from servers.oauth.words import NO_REFRESH, NOT_LOGGED_IN, login_over
from umpteenth.core import clock
from umpteenth.core.clock import database_now
from umpteenth.core.connections import closing
from umpteenth.core.masking import known_values

READ_AGAIN: Final = 5.0  # seconds
MAX_WANTED: Final = 1000  # characters, of all scopes together
REFUSED: Final = "The server refuses the tokens of the login"
# RFC 6749, 3.3
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")

T = TypeVar("T")
Learn = Callable[[Mapping[str, str]], None]


class LoginCredentials:
    """`servers.mcp.types.Credentials` of one stored login; None: a machine that has none yet."""

    def __init__(self, place: Place, stored: Stored | None, *, is_machine: bool = False) -> None:
        self._place = place
        self._is_machine = is_machine
        self._stored = stored
        self._read_at = time.monotonic()
        # What the server takes no more though it is new, and why.
        self._given_up: tuple[str, str] | None = None
        self._learners: list[Learn] = []

    async def token(self) -> str:
        stored = await self._current()
        if stored is None:
            return ""
        if self._given_up is not None and stored.tokens.access_token == self._given_up[0]:
            raise login_over(self._given_up[1])
        if not stored.row.ended and not refresh.is_due(stored, clock.now()):
            return stored.tokens.access_token
        return self._keep(await self._renew(Wish()))

    async def renewed(self, refused: str, challenge: Challenge, *, sure: bool) -> str:
        if not refused and self._stored is None:
            work = partial(machine.log_in, self._place, challenge)
            return self._keep(await detached(("machine", self._place), work))
        try:
            stored = await self._renew(Wish(refused, sure, _reason(challenge)))
        except LoginRequired as error:
            error.challenge = challenge
            raise
        return self._keep(stored) if stored is not None else ""

    async def given_up(self, refused: str, challenge: Challenge) -> None:
        self._given_up = refused, _reason(challenge)
        await _in_thread(partial(refresh.give_up, self._place, *self._given_up))

    async def wants_scopes(self, challenge: Challenge) -> None:
        if challenge.scope:
            await _in_thread(partial(want_scopes, self._place, challenge.scope))

    def tell(self, learn: Learn) -> None:
        self._learners.append(learn)

    async def _current(self) -> Stored | None:
        """The login as it is stored. Raises `LoginRequired` where it is gone."""
        if time.monotonic() - self._read_at < READ_AGAIN:
            return self._stored
        found = await _in_thread(partial(refresh.read, self._place))
        if found is None and not self._is_machine:
            raise LoginRequired(NOT_LOGGED_IN)
        self._keep(found)
        return found

    async def _renew(self, wish: Wish) -> Stored | None:
        return await detached((self._place, wish), partial(refresh.renew, self._place, wish))

    def _keep(self, stored: Stored | None) -> str:
        """The token to send; empty where there is no other one."""
        if stored is not None and (self._stored is None or stored.tokens != self._stored.tokens):
            self._tell(refresh.secrets_of(self._place.name, stored.secrets))
        self._stored, self._read_at = stored, time.monotonic()
        return stored.tokens.access_token if stored is not None else ""

    def _tell(self, values: Mapping[str, str]) -> None:
        refresh.remember(values)
        for learn in self._learners:
            learn(values)


@dataclass(frozen=True)
class UsedLogin:
    """What a connection needs of a login. `is_missing`: a machine logs in once it is asked to."""

    credentials: LoginCredentials
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_missing: bool = False


def login_for(server: Server, *, testing: bool) -> UsedLogin | None:
    """The login that requests to a server use; None: there is none, and perhaps none is needed.

    One that is over raises `LoginRequired` (P71), but is left out of a test. Raises
    `ServerUnavailable` where it cannot be decrypted.
    """
    place = Place.of(server)
    try:
        stored = refresh.read(place)
    except ServerUnavailable:
        if not testing:
            raise
        stored = None
    state = login_state(stored.row if stored else None, clock.now())
    if stored is not None and state == LoginState.USABLE:
        return UsedLogin(
            LoginCredentials(place, stored), refresh.secrets_of(server.name, stored.secrets)
        )
    if stored is not None and not testing:
        if not stored.row.ended:
            end_with_token(stored.row)
        raise login_over(stored.row.ended_reason or NO_REFRESH)
    if stored is None and server.oauth_kind == Server.LoginKind.MACHINE:
        return UsedLogin(LoginCredentials(place, None, is_machine=True), is_missing=True)
    return None


def want_scopes(place: Place, scopes: str) -> None:
    """Remember what a call was refused for, for the next login; a machine makes it at once."""
    named = [scope for scope in scopes.split() if _SCOPE.fullmatch(scope) and _is_no_secret(scope)]
    with transaction.atomic():
        found = Server.objects.select_for_update().filter(pk=place.server_id, url=place.url)
        for server in found:
            before = server.oauth_wanted
            together = " ".join(dict.fromkeys([*before.split(), *named]))
            if together == before or len(together) > MAX_WANTED:
                return
            found.update(oauth_wanted=together)
            if server.oauth_kind == Server.LoginKind.MACHINE:
                mine = Login.objects.filter(server=server, ended="")
                mine.update(expires_at=database_now(), refreshed_at=None)


def _is_no_secret(word: str) -> bool:
    """A server may repeat what was sent to it."""
    return known_values().mask(word) == word


def _reason(challenge: Challenge) -> str:
    words = known_values().mask(challenge.error_description or challenge.error)
    return f"{REFUSED}: {words}" if words else f"{REFUSED}."


async def _in_thread(work: Callable[[], T]) -> T:
    """Django's database calls may not run in the thread of an event loop."""
    return await asyncio.to_thread(closing, work)
