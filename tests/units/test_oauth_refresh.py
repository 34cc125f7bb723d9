"""Tokens of a login are renewed in time and once for all who need them (P44, A20, A36)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from django.db import DatabaseError
from django.utils import timezone

from secrets_vault.models import Key
from servers.mcp.types import LoginRequired, ServerUnavailable
from servers.models import Login, Server
from servers.oauth import refresh, registered, store
from servers.oauth.refresh import Wish, is_due, renew
from servers.oauth.state import LoginState, login_state, login_warning
from servers.oauth.types import Client, LoginSecrets, Provider, Tokens
from servers.oauth.words import EXPIRED
from tests.fakes.mcp_http import Reply, Request
from tests.fakes.oauth_logins import (
    CLIENT_ID,
    access_token,
    change,
    logged_in_at,
    login_of,
    place_of,
)
from tests.fakes.oauth_server import OMIT, OAuthServer, Variant, running
from umpteenth.core.connections import closing

pytestmark = pytest.mark.django_db(transaction=True)

NEAR = timedelta(seconds=30)  # less than a minute before its end
OVER = timedelta(seconds=-1)
HOUR = timedelta(hours=1)


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer()) as server:
        yield server


def renewed(server: Server, wish: Wish | None = None) -> str:
    stored = renew(place_of(server), wish or Wish())
    assert stored is not None
    return stored.tokens.access_token


def refused(server: Server, *, sure: bool = True) -> Wish:
    return Wish(access_token(server), sure, "The server said no.")


def test_a_token_near_its_end_is_refreshed_and_its_successor_kept(fake: OAuthServer) -> None:
    """P44; RFC 6749, 6: the rotated refresh token with it."""
    server = logged_in_at(fake, lasts=NEAR)
    before = login_of(server)
    token = renewed(server)
    after = login_of(server)
    assert token == after.tokens.access_token != before.tokens.access_token
    assert after.tokens.refresh_token not in ("", before.tokens.refresh_token)
    assert after.row.refreshed_at is not None
    assert after.row.expires_at is not None
    assert after.row.expires_at > timezone.now() + timedelta(minutes=50)
    assert after.row.lease_token == ""
    assert fake.grants.outcomes == [("refresh_token", "ok")]
    assert fake.sent("token")[0]["resource"] == fake.url


@pytest.mark.parametrize("lasts", [HOUR, None])
def test_a_token_that_lasts_is_not_refreshed(fake: OAuthServer, lasts: timedelta | None) -> None:
    """A23: of unknown lifetime as well, until the server refuses it."""
    server = logged_in_at(fake, lasts=lasts)
    before = access_token(server)
    assert renewed(server) == before
    assert fake.count("token") == 0
    assert renewed(server, refused(server)) != before
    assert fake.count("token") == 1


@pytest.mark.parametrize(
    ("lifetime", "left", "due"),
    [(3600, 61, False), (3600, 60, True), (100, 21, False), (100, 20, True), (0, 0, True)],
)
def test_it_is_refreshed_a_minute_early_or_a_fifth_of_its_lifetime(
    lifetime: int, left: int, due: bool
) -> None:
    """P44, A24: what lives for no time is over at once."""
    now = timezone.now()
    ends = now.timestamp() + left
    tokens = Tokens("a", "r", ends, ends - lifetime)
    login = LoginSecrets(tokens, Provider("", "", ""), Client("c", "document"), "")
    row = Login(expires_at=now + timedelta(seconds=left))
    assert is_due(store.Stored(row, login), now) is due


def test_a_token_that_says_it_is_over_is_used_once_it_has_been_refreshed(
    fake: OAuthServer,
) -> None:
    """A24: `expires_in` 0 must not end in a refresh for each request."""
    fake.variant.expires_in = 0
    server = logged_in_at(fake, lasts=OVER)
    token = renewed(server)
    assert renewed(server) == token
    assert fake.count("token") == 1
    change(server, refreshed_at=timezone.now() - refresh.NEW_FOR)
    assert renewed(server) != token


def test_five_who_need_a_token_at_once_ask_for_one(fake: OAuthServer) -> None:
    """A20: a second use of the refresh token would revoke all of the login."""
    server = logged_in_at(fake, lasts=OVER)
    place, start = place_of(server), threading.Barrier(5)

    def work() -> str:
        start.wait()
        stored = renew(place, Wish())
        assert stored is not None
        return stored.tokens.access_token

    with ThreadPoolExecutor(5) as pool:
        tokens = [job.result() for job in [pool.submit(closing, work) for _ in range(5)]]
    assert set(tokens) == {access_token(server)}
    assert fake.grants.outcomes == [("refresh_token", "ok")]


def test_who_was_refused_an_older_token_takes_the_newer_one(fake: OAuthServer) -> None:
    """A20."""
    server = logged_in_at(fake)
    wish = refused(server)
    newer = renewed(server, wish)
    assert renewed(server, wish) == newer
    assert fake.count("token") == 1


def test_a_refresh_token_that_is_over_ends_the_login_in_the_providers_words(
    fake: OAuthServer,
) -> None:
    """P47, P71."""
    server = logged_in_at(fake, lasts=OVER)
    fake.grants.revoke_all()
    with pytest.raises(LoginRequired) as caught:
        renewed(server)
    assert caught.value.message == EXPIRED
    row = login_of(server).row
    assert login_state(row, timezone.now()) == LoginState.REFUSED
    assert "refused the request" in row.ended_reason
    assert caught.value.hint == row.ended_reason
    with pytest.raises(LoginRequired):
        renewed(server)
    assert fake.count("token") == 1


def test_a_loser_does_not_end_what_the_winner_has_saved(fake: OAuthServer) -> None:
    """A20: its `invalid_grant` is about a token that nobody holds any more."""
    server = logged_in_at(fake, lasts=OVER)
    winner = Tokens("winner", "r2", timezone.now().timestamp() + 3600, timezone.now().timestamp())

    def lose(_: Request) -> Reply:
        def save() -> None:
            stored = login_of(server)
            assert store.replace_tokens(stored, winner, stored.secrets.client, timezone.now())

        with ThreadPoolExecutor(1) as pool:
            pool.submit(closing, save).result()
        return Reply(400, {"content-type": "application/json"}, b'{"error": "invalid_grant"}')

    fake.variant.replies = {"/token": lose}
    assert renewed(server) == "winner"
    assert not login_of(server).row.ended


def busy(fake: OAuthServer) -> None:
    fake.variant.replies = {"/token": Reply(503, {}, b"Later, please.")}


def test_a_provider_that_does_not_answer_ends_nothing(fake: OAuthServer) -> None:
    """The token is used while it lasts, and asked for anew later on."""
    server = logged_in_at(fake, lasts=NEAR)
    busy(fake)
    before = access_token(server)
    assert renewed(server) == before
    row = login_of(server).row
    assert (row.ended, row.refresh_failures) == ("", 1)
    assert "503" in row.refresh_error
    assert row.refresh_due_at is not None
    assert row.refresh_due_at > timezone.now()
    change(server, lease_until=None)
    assert renewed(server) == before
    assert fake.count("token") == 1


def test_without_a_token_that_lasts_a_failed_refresh_is_told_with_its_reason(
    fake: OAuthServer,
) -> None:
    server = logged_in_at(fake, lasts=OVER)
    busy(fake)
    for _ in range(2):  # the second does not even ask
        with pytest.raises(ServerUnavailable, match=r"could not be refreshed: .*503") as caught:
            renewed(server)
    assert caught.value.hint == "It is tried again by itself."
    assert fake.count("token") == 1
    change(server, lease_until=timezone.now())
    fake.variant.replies = {}
    assert renewed(server) == access_token(server)
    assert login_of(server).row.refresh_failures == 0


def test_a_refresh_that_the_guard_refuses_names_the_option(
    fake: OAuthServer, set_network: Callable[..., None]
) -> None:
    """P77."""
    server = logged_in_at(fake, lasts=OVER)
    set_network(blocked_targets=["127.0.0.0/8"])
    with pytest.raises(ServerUnavailable, match=r"network\.blocked_targets"):
        renewed(server)
    row = login_of(server).row
    assert "network.blocked_targets" in row.refresh_error
    change(server, expires_at=timezone.now() + HOUR)
    assert "network.blocked_targets" in login_warning(login_of(server).row, timezone.now())
    assert fake.count("token") == 0


def test_a_refresh_that_fails_for_the_client_says_where_to_correct_it(fake: OAuthServer) -> None:
    """P57."""
    server = logged_in_at(fake, lasts=OVER, kind="operator")
    fake.forget_clients()
    with pytest.raises(ServerUnavailable, match="Check the Client ID"):
        renewed(server)


def test_failures_in_a_row_are_further_and_further_apart(fake: OAuthServer) -> None:
    server = logged_in_at(fake, lasts=OVER)
    busy(fake)
    pauses = []
    for failures in (0, 1, 2, 30):
        change(server, refresh_failures=failures, lease_until=None)
        with pytest.raises(ServerUnavailable):
            renewed(server)
        due = login_of(server).row.refresh_due_at
        assert due is not None
        pauses.append(round((due - timezone.now()).total_seconds()))
    assert pauses == [30, 60, 120, 3600]


def test_those_who_wait_for_a_refresh_that_fails_do_not_try_it_themselves(
    fake: OAuthServer,
) -> None:
    server = logged_in_at(fake, lasts=OVER)
    busy(fake)
    place, start = place_of(server), threading.Barrier(3)

    def work() -> str:
        start.wait()
        try:
            renew(place, Wish())
        except ServerUnavailable as error:
            return error.message
        return ""

    with ThreadPoolExecutor(3) as pool:
        words = [job.result() for job in [pool.submit(closing, work) for _ in range(3)]]
    assert all("503" in each for each in words)
    assert fake.count("token") == 1


def test_a_client_that_the_provider_has_forgotten_is_registered_anew_at_the_next_login(
    fake: OAuthServer,
) -> None:
    """A29: a refresh token is good for its own client alone."""
    server = logged_in_at(fake, lasts=OVER, secret="its-secret")
    callback = "https://app.example.org/callback"
    registered.keep(fake.issuer, callback, login_of(server).secrets.client)
    fake.forget_clients()
    with pytest.raises(LoginRequired):
        renewed(server)
    assert login_of(server).row.ended == Login.Ended.REFUSED
    assert registered.find(fake.issuer, callback) is None


def test_an_operators_wrong_client_can_be_mended_and_ends_nothing(fake: OAuthServer) -> None:
    """P57: the login is there again once the settings are right."""
    server = logged_in_at(fake, lasts=OVER, kind="operator")
    known = dict(fake.grants.clients)
    fake.forget_clients()
    with pytest.raises(ServerUnavailable, match="could not be refreshed"):
        renewed(server)
    assert not login_of(server).row.ended
    fake.grants.clients.update(known)
    change(server, lease_until=None)
    assert renewed(server) == access_token(server)


@pytest.mark.parametrize(
    ("lasts", "sure", "ended"),
    [
        (OVER, True, Login.Ended.EXPIRED),
        (OVER, False, Login.Ended.EXPIRED),
        (None, True, Login.Ended.EXPIRED),
        (HOUR, True, Login.Ended.REFUSED),
        (HOUR, False, ""),
        (None, False, ""),
    ],
)
def test_without_a_refresh_token_the_login_ends_with_its_token(
    fake: OAuthServer, lasts: timedelta | None, sure: bool, ended: str
) -> None:
    """P45, P47, P48; B02: what may be about a session ends nothing that may be good."""
    server = logged_in_at(fake, lasts=lasts, refresh=False)
    wish = refused(server, sure=sure)
    if ended:
        with pytest.raises(LoginRequired, match="The OAuth login expired"):
            renew(place_of(server), wish)
    else:
        assert renew(place_of(server), wish) is None
    assert login_of(server).row.ended == ended
    assert fake.count("token") == 0


def test_a_new_token_that_is_refused_is_not_followed_by_another(fake: OAuthServer) -> None:
    """A36."""
    server = logged_in_at(fake)
    renewed(server, refused(server))
    assert renew(place_of(server), refused(server, sure=False)) is None
    with pytest.raises(LoginRequired) as caught:
        renew(place_of(server), refused(server))
    assert fake.count("token") == 1
    assert caught.value.hint == "The server said no."
    assert login_of(server).row.ended == Login.Ended.REFUSED


def test_only_the_token_that_was_refused_ends_the_login(fake: OAuthServer) -> None:
    """A20, A36."""
    server = logged_in_at(fake)
    refresh.give_up(place_of(server), "an older one", "no")
    assert not login_of(server).row.ended
    refresh.give_up(place_of(server), access_token(server), "no")
    assert login_of(server).row.ended == Login.Ended.REFUSED


def test_a_lease_is_not_taken_for_tokens_that_were_replaced_meanwhile(
    fake: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A20: the refresh token that was read is used up by then."""
    server = logged_in_at(fake, lasts=OVER)
    place, look = place_of(server), refresh._shall_not_ask

    def slowly(*arguments: object) -> bool:
        monkeypatch.setattr(refresh, "_shall_not_ask", look)
        renewed(server)
        return False

    monkeypatch.setattr(refresh, "_shall_not_ask", slowly)
    stored = renew(place, Wish())
    assert stored is not None
    assert stored.tokens.access_token == access_token(server)
    assert fake.grants.outcomes == [("refresh_token", "ok")]


def test_the_lease_of_a_process_that_died_runs_out(fake: OAuthServer) -> None:
    server = logged_in_at(fake, lasts=OVER)
    change(server, lease_token="dead", lease_until=timezone.now() - timedelta(seconds=1))
    assert renewed(server) == access_token(server)


@pytest.mark.parametrize("holder", ["dead", ""])
def test_a_clock_that_is_put_back_leaves_no_lease_that_lasts_for_hours(
    fake: OAuthServer, holder: str
) -> None:
    server = logged_in_at(fake, lasts=OVER)
    change(server, lease_token=holder, lease_until=timezone.now() + HOUR)
    renewed(server)
    assert fake.grants.outcomes == [("refresh_token", "ok")]


def test_a_clock_that_is_put_back_makes_no_token_new(fake: OAuthServer) -> None:
    """A36: its refusal is no reason to end the login."""
    server = logged_in_at(fake, refreshed_at=timezone.now() + HOUR)
    before = access_token(server)
    assert renewed(server, refused(server)) != before
    assert not login_of(server).row.ended


def test_nobody_waits_for_a_lease_for_ever(
    fake: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "WAIT_AT_MOST", 0.3)
    monkeypatch.setattr(refresh, "POLL", 0.05)
    server = logged_in_at(fake, lasts=OVER)
    change(server, lease_token="busy", lease_until=timezone.now() + refresh.LEASE)
    with pytest.raises(ServerUnavailable, match="Another process has been refreshing"):
        renewed(server)
    assert fake.count("token") == 0


def test_saving_is_tried_again_where_the_database_is_away(
    fake: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old refresh token is good for nothing any more."""
    monkeypatch.setattr(refresh, "SAVE_PAUSES", (0.0, 0.0, 0.0))
    server = logged_in_at(fake, lasts=OVER)
    save, away = store.replace_tokens, iter([True, True, False])

    def sometimes(*arguments: object) -> bool:
        if next(away):
            raise DatabaseError("server closed the connection unexpectedly")
        return partial(save, *arguments)()  # type: ignore[arg-type]

    monkeypatch.setattr(store, "replace_tokens", sometimes)
    renewed(server)
    assert fake.grants.outcomes == [("refresh_token", "ok")]


def test_tokens_that_come_after_a_log_out_are_given_back(
    fake: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P52."""
    server = logged_in_at(fake, lasts=OVER)
    given_back: list[str] = []

    def note(login: LoginSecrets, _: Client) -> None:
        given_back.append(login.tokens.refresh_token)

    def log_out(_: Request) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(closing, Login.objects.all().delete).result()

    monkeypatch.setattr("servers.oauth.refresh.revoke_later", note)
    fake.variant.replies = {"/token": log_out}
    with pytest.raises(LoginRequired, match="Nobody is logged in"):
        renewed(server)
    assert given_back == [fake.grants.families[0].refresh]


def test_a_token_never_follows_a_server_to_another_address(fake: OAuthServer) -> None:
    """P53, E07: not even in the moment before the edit has ended the login."""
    server = logged_in_at(fake)
    place = place_of(server)
    Server.objects.update(url="https://elsewhere.example.org/mcp")
    assert refresh.read(place) is None
    with pytest.raises(LoginRequired):
        renew(place, Wish())


def test_a_login_that_no_key_opens_is_told_as_such(fake: OAuthServer) -> None:
    """E09."""
    server = logged_in_at(fake)
    change(server, key_id="gone")
    assert not Key.objects.filter(key_id="gone").exists()
    with pytest.raises(ServerUnavailable, match="cannot be decrypted") as caught:
        renew(place_of(server), Wish())
    assert "log in again" in caught.value.hint


def test_an_answer_without_a_refresh_token_keeps_the_one_before(fake: OAuthServer) -> None:
    """RFC 6749, 6."""
    server = logged_in_at(fake, lasts=OVER)
    fake.variant.rotates = False
    fake.variant.token_answer = {"refresh_token": OMIT}
    before = login_of(server).tokens.refresh_token
    renewed(server)
    assert login_of(server).tokens.refresh_token == before
    assert login_of(server).row.can_refresh


def test_a_server_may_want_its_resource_byte_for_byte() -> None:
    """A04: at each refresh too."""
    variant = Variant(resource="{server}", strict_resource=True)
    with running(OAuthServer(variant)) as fake:
        server = logged_in_at(fake, lasts=OVER)
        renewed(server)
        assert fake.sent("token")[0]["resource"] == fake.server_origin
        assert fake.sent("token")[0]["client_id"] == CLIENT_ID
