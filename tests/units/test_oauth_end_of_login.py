"""A server whose login has ended says so at once, in all places alike (P45-P48, P71)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import beat
from secrets_vault.services import set_secret
from servers.connecting import connection_settings
from servers.facts import summary
from servers.mcp.types import LoginRequired
from servers.models import Login, Server
from servers.oauth import refresh, store, upkeep
from servers.oauth.words import EXPIRED, NO_REFRESH
from servers.queries import find_servers
from servers.status import Auth
from tests.fakes.login_rows import logged_in, oauth_server
from tests.fakes.oauth_logins import access_token, logged_in_at, login_of, place_of
from tests.fakes.oauth_server import OAuthServer, running
from tests.fakes.server_rows import changed, http_server

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
OVER = timedelta(seconds=-1)


def working(server: Server) -> Server:
    return changed(server, state=Server.State.CONNECTED, last_error="", oauth_advertised=True)


def with_login(*, lasts: timedelta = OVER, refresh: bool = False, **columns: object) -> Server:
    server = working(oauth_server("hosted"))
    logged_in(server, lasts=lasts, refresh=refresh, **columns)
    return server


def state_of(server: Server) -> tuple[str, str]:
    server.refresh_from_db()
    return server.state, server.last_error


def refused_at_a_refresh(fake: OAuthServer) -> Server:
    server = working(logged_in_at(fake, lasts=OVER))
    fake.grants.revoke_all()
    with pytest.raises(LoginRequired):
        refresh.renew(place_of(server), refresh.Wish())
    return server


def refused_when_new(fake: OAuthServer) -> Server:
    server = working(logged_in_at(fake))
    refresh.give_up(place_of(server), access_token(server), "The server said no.")
    return server


def found_by_beat(fake: OAuthServer) -> Server:
    server = working(logged_in_at(fake, lasts=OVER, refresh=False))
    assert beat.Sweeper().sweep(timezone.now())
    return server


def met_by_a_run(fake: OAuthServer) -> Server:
    server = working(logged_in_at(fake, lasts=OVER, refresh=False))
    with pytest.raises(LoginRequired):
        connection_settings(server)
    return server


@pytest.mark.parametrize(
    ("end", "auth"),
    [
        (refused_at_a_refresh, Auth.NOT_LOGGED_IN),
        (refused_when_new, Auth.NOT_LOGGED_IN),
        (found_by_beat, Auth.LOGIN_EXPIRED),
        (met_by_a_run, Auth.LOGIN_EXPIRED),
    ],
)
def test_the_state_agrees_with_the_badge_as_soon_as_a_login_has_ended(
    end: Callable[[OAuthServer], Server], auth: Auth
) -> None:
    with running(OAuthServer()) as fake:
        server = end(fake)
    assert state_of(server) == ("login_required", EXPIRED)
    assert login_of(server).row.ended
    assert not find_servers(state="connected").exists()
    for filtered in ("login_required", "trouble"):
        assert [found.name for found in find_servers(state=filtered)] == ["hosted"]
    shown = summary(Server.objects.get(pk=server.pk))
    assert (shown["state"], shown["auth"]) == ("login_required", auth)


def test_a_login_that_its_time_has_ended_ended_then() -> None:
    server = with_login(lasts=-HOUR)
    assert upkeep.end_over(timezone.now()) == 1
    row = login_of(server).row
    assert (row.ended, row.ended_reason, row.ended_at) == ("expired", NO_REFRESH, row.expires_at)
    assert upkeep.end_over(timezone.now()) == 0


@pytest.mark.parametrize(("lasts", "refreshes"), [(HOUR, False), (OVER, True)])
def test_a_login_that_lasts_or_is_renewed_is_not_ended(lasts: timedelta, refreshes: bool) -> None:
    """P44."""
    server = with_login(lasts=lasts, refresh=refreshes)
    assert upkeep.end_over(timezone.now()) == 0
    assert state_of(server) == ("connected", "")


def test_a_machine_gets_its_next_token_by_itself() -> None:
    server = working(oauth_server("hosted"))
    login = logged_in(server, lasts=OVER, refresh=False)
    secrets = replace(login_of(server).secrets, machine=True)
    Login.objects.update(**store.columns_of(login.pk, secrets))
    assert upkeep.end_over(timezone.now()) == 0
    refresh.give_up(place_of(server), access_token(server), "The server said no.")
    assert state_of(server) == ("connected", "")


def test_a_server_that_has_failed_stays_so() -> None:
    server = with_login()
    changed(server, state=Server.State.FAILED, last_error="It is down.")
    assert upkeep.end_over(timezone.now()) == 1
    assert state_of(server) == ("failed", "It is down.")


def test_a_server_with_another_token_needs_no_login() -> None:
    """P49: a header and `token_ref` win over it."""
    set_secret(actor=None, name="THERE", value="value-of-there")
    header = working(http_server("header", headers={"Authorization": "Bearer x"}))
    token = working(http_server("token", options={"token_ref": "@THERE"}))
    for server in (header, token):
        logged_in(server, lasts=OVER, refresh=False)
    assert upkeep.end_over(timezone.now()) == 2
    for server in (header, token):
        assert state_of(server) == ("connected", "")


def test_who_has_read_an_older_login_changes_nothing() -> None:
    """A20."""
    server = with_login(lasts=HOUR)
    older = login_of(server)
    Login.objects.update(version=older.version + 1)
    assert not store.end_login(older.row, Login.Ended.REFUSED, "late", timezone.now())
    assert state_of(server) == ("connected", "")


def test_beat_asks_once_more_a_minute() -> None:
    """Where nothing is to be done."""
    with_login(lasts=timedelta(days=30))
    sweeper = beat.Sweeper()
    with CaptureQueriesContext(
        connection,
    ) as asked:
        sweeper.warn_of_logins(timezone.now())
        sweeper.warn_of_logins(timezone.now())
    assert len(asked) == 2
