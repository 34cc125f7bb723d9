"""Beat keeps logins awake and tells of those that are about to end (P44, A20)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs import beat
from servers.models import Login, PendingLogin, Server
from servers.oauth import store, upkeep
from servers.oauth.words import NO_REFRESH
from servers.tasks import refresh_login
from tests.fakes.mcp_http import Reply
from tests.fakes.oauth_logins import access_token, change, logged_in_at, login_of, server_at
from tests.fakes.oauth_server import OAuthServer, running
from umpteenth import celery
from umpteenth.accounts.models import AuditEntry, User

pytestmark = pytest.mark.django_db(transaction=True)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer()) as server:
        yield server


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    hints: list[tuple[str, str]] = []

    def send(task: str, *args: str) -> bool:
        hints.append((task, *args))  # type: ignore[arg-type]
        return True

    monkeypatch.setattr(celery, "send_hint", send)
    return hints


def entries() -> list[tuple[str, str, str, str]]:
    return [
        (entry.actor_name, entry.words, entry.object_name, entry.facts[0])
        for entry in AuditEntry.objects.filter(action__startswith="server.login")
    ]


def test_a_refresh_token_that_nobody_needs_is_used_once_a_day(
    fake: OAuthServer, sent: list[tuple[str, str]]
) -> None:
    """P44: a monthly job finds its login awake."""
    server, now = logged_in_at(fake, lasts=30 * DAY), timezone.now()
    before = access_token(server)
    assert upkeep.start_due(now + DAY - HOUR) == 0
    assert upkeep.start_due(now + DAY + HOUR) == 1
    assert sent == [("servers.tasks.refresh_login", str(server.pk))]
    change(server, logged_in_at=now - DAY - HOUR)
    refresh_login(str(server.pk))
    refresh_login(str(server.pk))
    assert access_token(server) != before
    assert fake.grants.outcomes == [("refresh_token", "ok")]
    due = login_of(server).row.refresh_due_at
    assert due is not None
    assert due >= now + store.AWAKE_FOR


def test_a_lost_hint_is_sent_again_later_and_not_each_second(
    fake: OAuthServer, sent: list[tuple[str, str]]
) -> None:
    """H10."""
    logged_in_at(fake)
    later = timezone.now() + DAY + HOUR
    counts = [upkeep.start_due(later + timedelta(minutes=minute)) for minute in (0, 1, 9, 10)]
    assert counts == [1, 0, 0, 1]
    assert len(sent) == 2


def test_without_a_broker_the_others_wait_for_the_next_sweep(
    fake: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery, "send_hint", lambda *_: False)
    server = logged_in_at(fake)
    second = server_at(fake, "second")
    store.put_login(second.pk, login_of(server).secrets, person=None, now=timezone.now())
    later = timezone.now() + DAY + HOUR
    assert upkeep.start_due(later) == 1
    assert Login.objects.filter(refresh_due_at__lte=later).count() == 1


def test_a_refresh_that_failed_is_tried_again_by_itself(
    fake: OAuthServer, sent: list[tuple[str, str]]
) -> None:
    server, now = logged_in_at(fake, lasts=HOUR), timezone.now()
    change(server, refresh_failures=2, refresh_error="503", refresh_due_at=now)
    assert upkeep.start_due(now) == 1
    refresh_login(str(server.pk))
    row = login_of(server).row
    assert (row.refresh_failures, row.refresh_error) == (0, "")
    assert fake.count("token") == 1


def test_a_failure_of_upkeep_breaks_nothing(fake: OAuthServer) -> None:
    server = logged_in_at(fake, logged_in_at=timezone.now() - 2 * DAY)
    fake.variant.replies = {"/token": Reply(503)}
    refresh_login(str(server.pk))
    assert login_of(server).row.refresh_failures == 1
    Server.objects.all().delete()
    refresh_login(str(server.pk))
    assert fake.count("token") == 1


@pytest.mark.parametrize("columns", [{"ended": "refused", "refresh_due_at": None}, {}])
def test_what_has_ended_or_cannot_be_refreshed_is_left_alone(
    fake: OAuthServer, sent: list[tuple[str, str]], columns: dict[str, Any]
) -> None:
    logged_in_at(fake, refresh=bool(columns), **columns)
    assert upkeep.start_due(timezone.now() + 30 * DAY) == 0


def test_the_audit_log_is_told_once_of_a_login_that_ends_within_three_days(
    fake: OAuthServer,
) -> None:
    server, now = logged_in_at(fake, lasts=4 * DAY, refresh=False), timezone.now()
    assert upkeep.warn(now) == 0
    assert upkeep.warn(now + DAY + HOUR) == 1
    assert upkeep.warn(now + DAY + HOUR) == 0
    ((who, words, name, fact),) = entries()
    assert (who, words, name) == ("Umpteenth", "warned of the login of", server.name)
    assert fact.startswith("reason: The login ends at ")
    assert "cannot be refreshed" in fact


def test_the_audit_log_is_told_of_a_refresh_that_failed_and_of_the_end(fake: OAuthServer) -> None:
    server, now = logged_in_at(fake), timezone.now()
    change(server, refresh_failures=1, refresh_error="503, busy")
    assert upkeep.warn(now) == 1
    store.end_login(login_of(server).row, Login.Ended.REFUSED, "taken back", now)
    assert upkeep.warn(now) == 1
    assert upkeep.warn(now) == 0
    assert {(words, fact) for _, words, _, fact in entries()} == {
        (
            "warned of the login of",
            "reason: The login could not be refreshed: 503, busy. "
            "Runs fail once its token is over.",
        ),
        ("lost the login of", "reason: taken back"),
    }


def test_new_trouble_after_a_refresh_that_worked_is_told_anew(fake: OAuthServer) -> None:
    server, now = logged_in_at(fake), timezone.now()
    for _ in range(2):
        change(server, refresh_failures=1, refresh_error="503")
        assert upkeep.warn(now) == 1
        stored = login_of(server)
        assert store.replace_tokens(stored, stored.tokens, stored.secrets.client, now)
        assert upkeep.warn(now) == 0
    assert len(entries()) == 2


def test_a_login_that_ended_with_its_token_says_so(fake: OAuthServer) -> None:
    """P45."""
    server = logged_in_at(fake, refresh=False)
    store.end_login(login_of(server).row, Login.Ended.EXPIRED, NO_REFRESH, timezone.now())
    assert upkeep.warn(timezone.now()) == 1
    assert entries()[0][3] == f"reason: {NO_REFRESH}"


def test_a_login_that_was_begun_is_forgotten_after_a_day(fake: OAuthServer, alice: User) -> None:
    """P42, A29."""
    server, now = server_at(fake), timezone.now()
    for number, age in enumerate((HOUR, 2 * DAY)):
        PendingLogin.objects.create(
            server=server,
            person=alice,
            state_hash=str(number),
            private=b"",
            created_at=now - age,
            expires_at=now - age,
        )
    assert upkeep.prune(now) == 1
    assert PendingLogin.objects.get().state_hash == "0"


def test_each_sweep_of_beat_looks_after_logins(
    fake: OAuthServer, sent: list[tuple[str, str]]
) -> None:
    server = logged_in_at(fake, lasts=DAY, refresh=False)
    change(server, can_refresh=True, refresh_failures=1, refresh_due_at=timezone.now())
    moment = [1000.0]
    sweeper = beat.Sweeper(lambda: moment[0])
    assert sweeper.sweep(timezone.now() + HOUR)
    assert ("servers.tasks.refresh_login", str(server.pk)) in sent
    assert len(entries()) == 1
    change(server, warned_at=None)
    moment[0] += beat.WARN_EVERY - 1
    sweeper.sweep(timezone.now() + HOUR)
    assert len(entries()) == 1
    moment[0] += 1
    sweeper.sweep(timezone.now() + HOUR)
    assert len(entries()) == 2
