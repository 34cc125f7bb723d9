"""What a login is worth, told from its columns and by the database alike (P45-P48)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from servers.models import Login, Server
from servers.oauth.state import (
    LoginState,
    login_condition,
    login_state,
    login_warning,
    warning_condition,
)
from servers.status import login_of
from tests.fakes.server_rows import http_server

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def login(**values: Any) -> Login:
    values = {"issuer": "https://as.example.org", "private": b"", "logged_in_at": NOW, **values}
    return Login(**values)


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"expires_at": NOW + HOUR}, LoginState.USABLE),
        ({"expires_at": NOW}, LoginState.EXPIRED),
        ({"expires_at": NOW - DAY}, LoginState.EXPIRED),
        ({"expires_at": NOW - DAY, "can_refresh": True}, LoginState.USABLE),
        ({"expires_at": None}, LoginState.USABLE),
        ({"expires_at": NOW + HOUR, "ended": "refused"}, LoginState.REFUSED),
        ({"expires_at": NOW + HOUR, "can_refresh": True, "ended": "expired"}, LoginState.EXPIRED),
    ],
)
def test_a_login_without_a_way_to_renew_it_is_over_with_its_token(
    values: dict[str, Any], state: LoginState
) -> None:
    """P45, P47, P48, A23: an unknown end is no end."""
    assert login_state(login(**values), NOW) == state


def test_without_a_login_there_is_none() -> None:
    assert login_state(None, NOW) == LoginState.NONE
    assert login_warning(None, NOW) == ""


def test_a_login_that_cannot_be_refreshed_is_warned_of_three_days_before_its_end() -> None:
    ends = login(expires_at=NOW + 3 * DAY)
    assert login_warning(ends, NOW) == (
        "The login ends at 2026-12-03 12:00 UTC and cannot be refreshed. Log in again before that."
    )
    assert login_warning(login(expires_at=NOW + 3 * DAY + HOUR), NOW) == ""
    assert login_warning(login(expires_at=NOW + HOUR, can_refresh=True), NOW) == ""
    assert login_warning(login(), NOW) == ""


def test_a_refresh_that_failed_is_told_with_its_reason() -> None:
    failed = login(
        expires_at=NOW + 9 * DAY, can_refresh=True, refresh_failures=2, refresh_error="503, busy"
    )
    assert login_warning(failed, NOW) == (
        "The login could not be refreshed: 503, busy. Runs fail once its token is over."
    )


def test_a_login_that_is_over_is_not_warned_of_any_more() -> None:
    assert login_warning(login(expires_at=NOW - HOUR), NOW) == ""
    assert login_warning(login(expires_at=NOW + HOUR, ended="refused"), NOW) == ""


@pytest.mark.django_db
def test_the_database_tells_the_same_as_the_row() -> None:
    """Every combination, each a server; one more has no login."""
    ends = (None, NOW - DAY, NOW, NOW + DAY, NOW + 9 * DAY)
    rows = product(ends, (True, False), ("", *Login.Ended.values), (0, 1))
    for number, (end, can_refresh, ended, failures) in enumerate(rows):
        login(
            server=http_server(f"server-{number}"),
            expires_at=end,
            can_refresh=can_refresh,
            ended=ended,
            refresh_failures=failures,
        ).save()
    http_server("alone")
    servers = list(Server.objects.select_related("login"))
    assert len(servers) == 61
    for state in LoginState:
        told = {each.pk for each in servers if login_state(login_of(each), NOW) == state}
        found = set(Server.objects.filter(login_condition(state, NOW)).values_list("pk", flat=True))
        assert found == told
        assert told
    warned = {each.pk for each in servers if login_warning(login_of(each), NOW)}
    found = set(Server.objects.filter(warning_condition(NOW)).values_list("pk", flat=True))
    assert found == warned
    assert warned
    of_logins = Login.objects.filter(warning_condition(NOW, prefix=""))
    assert set(of_logins.values_list("server_id", flat=True)) == warned
