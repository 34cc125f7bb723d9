"""The Auth badge and the warnings of logins, from stored facts alone (P46-P51)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from secrets_vault.services import set_secret
from servers.models import Server
from servers.oauth.state import login_warning
from servers.queries import find_servers, logins_about_to_end
from servers.status import Auth, auth_condition, auth_status, login_of
from tests.fakes.login_rows import logged_in, oauth_server
from tests.fakes.server_rows import after_success, changed, http_server, unix_server

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture(autouse=True)
def still() -> Any:
    """What ends in an hour has not ended, however long the test takes."""
    with time_machine.travel(timezone.now(), tick=False) as moment:
        yield moment


def with_login(name: str, **values: Any) -> Server:
    server = oauth_server(name)
    logged_in(server, **values)
    return server


def cases() -> dict[Server, Auth]:
    """A server of every kind, with its badge."""
    set_secret(actor=None, name="THERE", value="value-of-there")
    header = http_server("header-wins", headers={"Authorization": "Bearer x"})
    logged_in(header, lasts=HOUR)
    token = http_server("token-wins", options={"token_ref": "@THERE"})
    logged_in(token, lasts=HOUR)
    socket = changed(unix_server("socket"), oauth_advertised=True)
    return {
        with_login("lasts", lasts=HOUR): Auth.OAUTH,
        with_login("lasts-without-refresh", lasts=HOUR, refresh=False): Auth.OAUTH,
        with_login("refreshed-later", lasts=-HOUR): Auth.OAUTH,
        with_login("never-ends", refresh=False): Auth.OAUTH,
        with_login("fails", lasts=HOUR, refresh_failures=2): Auth.OAUTH,
        with_login("refused", lasts=HOUR, ended="refused"): Auth.NOT_LOGGED_IN,
        with_login("over", lasts=-HOUR, refresh=False): Auth.LOGIN_EXPIRED,
        with_login("ends-now", lasts=timedelta(), refresh=False): Auth.LOGIN_EXPIRED,
        with_login("told-over", lasts=HOUR, ended="expired"): Auth.LOGIN_EXPIRED,
        oauth_server("advertises"): Auth.NOT_LOGGED_IN,
        oauth_server("advertises-and-lets-in", state="connected"): Auth.NOT_LOGGED_IN,
        changed(http_server("advertises-nothing"), oauth_advertised=False): Auth.NONE,
        changed(http_server("wants-no-login"), oauth_advertised=False, state="failed"): Auth.NONE,
        http_server("nobody-looked"): Auth.UNKNOWN,
        after_success(http_server("lets-everybody-in")): Auth.NONE,
        changed(http_server("was-not-reached"), state="failed"): Auth.UNKNOWN,
        header: Auth.BEARER_TOKEN,
        token: Auth.BEARER_TOKEN,
        socket: Auth.NONE,
    }


def test_the_badge_says_what_a_login_is_worth(django_assert_num_queries: Any) -> None:
    """P46-P51; P49 also says that a header beats a login. A list of any length asks once."""
    expected = cases()
    with django_assert_num_queries(1):
        found = {server: auth_status(server) for server in find_servers()}
    assert found == expected
    fresh = {server: auth_status(server) for server in Server.objects.all()}
    assert fresh == expected


@pytest.mark.parametrize("auth", Auth)
def test_the_filter_and_the_badge_agree(auth: Auth) -> None:
    expected = {server for server, badge in cases().items() if badge == auth}
    assert set(Server.objects.filter(auth_condition(auth, timezone.now()))) == expected
    assert set(find_servers(auth=auth)) == expected
    assert len(expected) >= 1


def test_a_word_that_is_no_badge_finds_nothing() -> None:
    http_server()
    assert not Server.objects.filter(auth_condition("nonsense", timezone.now())).exists()


def test_time_alone_ends_a_login_without_a_refresh_token(still: Any) -> None:
    """P45, P48: no check and no request is needed for it."""
    server = with_login("lasts", lasts=HOUR, refresh=False)
    assert auth_status(server) == Auth.OAUTH
    still.shift(HOUR)
    assert auth_status(server) == Auth.LOGIN_EXPIRED


def test_a_badge_reads_neither_tokens_nor_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """P46: stored facts without a request; a lost key does not hide a badge (E09)."""
    login = logged_in(oauth_server(), lasts=HOUR)
    type(login).objects.update(private=b"", key_id="gone")
    [server] = find_servers()
    assert auth_status(server) == Auth.OAUTH
    shown = login_of(server)
    assert shown is not None
    assert "private" in shown.get_deferred_fields()


def test_logins_that_are_about_to_end_are_found_soonest_first() -> None:
    """Issue 4, section 4: within three days without a refresh token, or a refresh failed."""
    with_login("in-two-days", lasts=2 * DAY, refresh=False)
    with_login("in-an-hour", lasts=HOUR, refresh=False)
    with_login("cannot-refresh", refresh_failures=1, refresh_error="503")
    with_login("in-four-days", lasts=4 * DAY, refresh=False)
    with_login("refreshes", lasts=HOUR)
    with_login("over", lasts=-HOUR, refresh=False)
    changed(with_login("off", lasts=HOUR, refresh=False), enabled=False)
    changed(with_login("header", lasts=HOUR, refresh=False), has_authorization=True)
    servers, count = logins_about_to_end(timezone.now())
    names = ["in-an-hour", "in-two-days", "cannot-refresh"]
    assert ([server.name for server in servers], count) == (names, 3)
    listed = {server.name for server in find_servers(state="login_ending")}
    assert listed == {*names, "off"}
    for server in servers:
        assert login_warning(login_of(server), timezone.now())
