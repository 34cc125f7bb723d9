"""Servers are looked at by themselves: when, how many at once, and which are left alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine

from servers import checks, health, pacing, results
from servers.checks import cancel_check, request_check, run_check
from servers.mcp.types import LoginRequired, ServerError, ServerUnavailable
from servers.models import Check, Server
from servers.probe import Found, Progress
from servers.results import store_failure, store_success
from servers.services import duplicate_server, set_enabled, update_server
from tests.fakes.server_rows import (
    FoundServer,
    after_success,
    http_data,
    http_server,
    stdio_server,
    tool_list,
)
from umpteenth.accounts.models import User
from umpteenth.core.clock import database_now
from umpteenth.core.masking import Masker

pytestmark = pytest.mark.django_db
Commits = Callable[..., Any]


@pytest.fixture(autouse=True)
def hints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hints that were sent."""
    sent: list[Any] = []
    monkeypatch.setattr(checks, "_hint", sent.append)
    return sent


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pacing.delay
    monkeypatch.setattr(pacing, "delay", lambda *args: real(*args, random=lambda: 0.5))


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mcp.auto_connect: false`."""
    monkeypatch.setattr(pacing, "is_on", lambda: False)


def due(server: Server, ago: float = 1.0) -> Server:
    """The server, due since so many seconds."""
    moment = database_now() - timedelta(seconds=ago)
    Server.objects.filter(pk=server.pk).update(next_check_at=moment)
    return server


def again(server: Server) -> Server:
    return Server.objects.get(pk=server.pk)


def wait_of(server: Server) -> timedelta | None:
    """How long after the last look the next one comes."""
    row = again(server)
    if row.next_check_at is None:
        return None
    assert row.checked_at is not None
    return row.next_check_at - row.checked_at


class TestWhatIsDue:
    def test_a_server_that_is_due_gets_a_check_that_nobody_asked_for(
        self, hints: list[Any]
    ) -> None:
        """U2: the same check as Test, of its own kind."""
        server = due(http_server())
        assert health.start_due(database_now()) == 1
        check = Check.objects.get()
        assert (check.server, check.kind, check.requested_by) == (server, "health", None)
        assert check.status == "queued"
        assert hints == [check.pk]

    def test_what_is_not_due_yet_is_left_alone(self) -> None:
        due(http_server(), ago=-60)
        http_server("never")
        Server.objects.filter(name="never").update(next_check_at=None)
        assert health.start_due(database_now()) == 0

    def test_a_disabled_server_is_never_contacted(self) -> None:
        """U4, P59."""
        server = due(http_server())
        Server.objects.update(enabled=False)
        assert health.start_due(database_now()) == 0
        assert again(server).next_check_at is not None  # the filter alone must hold

    def test_two_are_under_way_at_once_and_the_longest_due_come_first(self) -> None:
        """Section 0."""
        for number in range(5):
            due(http_server(f"s{number}"), ago=10 - number)
        now = database_now()
        assert health.start_due(now) == 2
        assert health.start_due(now) == 0
        assert set(Check.objects.values_list("server__name", flat=True)) == {"s0", "s1"}
        Check.objects.filter(server__name="s0").update(status="done")
        assert health.start_due(now) == 1
        assert Check.objects.filter(server__name="s2").exists()

    def test_people_testing_do_not_hold_up_health(self) -> None:
        for number in range(4):
            request_check(http_server(f"p{number}"), actor=None)
        due(http_server())
        assert health.start_due(database_now()) == 1

    def test_it_joins_a_test_that_is_under_way(self, hints: list[Any]) -> None:
        server = due(http_server())
        check = request_check(server, actor=None)
        now = database_now()
        assert health.start_due(now) == 0
        assert health.start_due(now) == 0
        assert Check.objects.get() == check
        assert hints == [check.pk]

    def test_of_two_beats_at_once_one_takes_a_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        due(http_server())
        now = database_now()
        rows = list(health._due(now).values_list("pk", "next_check_at"))
        assert health.start_due(now) == 1
        Check.objects.update(status="done")
        assert not health._start(*rows[0], now)
        assert Check.objects.count() == 1

    @pytest.mark.parametrize("end", ["cancelled", "dead", "lost"])
    def test_a_check_that_nobody_finishes_is_made_again_later(
        self, end: str, no_jitter: None
    ) -> None:
        """H04: a server whose check kills its worker does not do so every minute."""
        server = due(http_server())
        now = database_now()
        health.start_due(now)
        if end == "cancelled":
            cancel_check(Check.objects.get())
        elif end == "dead":
            Check.objects.update(status="running", heartbeat_at=now - timedelta(seconds=61))
            checks.end_dead(now)
        else:
            Check.objects.all().delete()
        row = again(server)
        assert (row.state, row.failures) == ("untested", 0)
        assert health.start_due(now + timedelta(minutes=9)) == 0
        assert health.start_due(now + timedelta(minutes=11)) == 1

    def test_a_clock_that_was_set_back_delays_nothing(self) -> None:
        """What a wrong clock wrote lies farther ahead than any delay."""
        server = http_server()
        now = database_now()
        Server.objects.update(next_check_at=now + timedelta(days=400))
        assert health.start_due(now) == 1
        assert again(server).next_check_at == now + health.UNFINISHED

    def test_switched_off_nothing_is_checked(self, off: None) -> None:
        """U2: with `mcp.auto_connect` off nothing is connected."""
        due(http_server())
        assert health.start_due(database_now()) == 0


class TestAfterALook:
    def test_a_success_is_followed_by_the_regular_look(self, no_jitter: None) -> None:
        http, stdio = http_server(), stdio_server()
        Server.objects.update(failures=5)
        for server in (http, stdio):
            store_success(server, FoundServer(), tool_list("a"))
        assert wait_of(http) == timedelta(minutes=15)
        assert wait_of(stdio) == timedelta(hours=6)
        assert [again(server).failures for server in (http, stdio)] == [0, 0]

    def test_failures_are_counted_and_back_off(self, no_jitter: None) -> None:
        server = http_server()
        found = []
        for _ in range(3):
            store_failure(server, ServerUnavailable("No route."))
            found.append((again(server).failures, wait_of(server)))
        assert found == [(n + 1, timedelta(seconds=30 * 2**n)) for n in range(3)]
        store_success(server, FoundServer(), tool_list("a"))
        assert (again(server).failures, again(server).last_error) == (0, "")

    @pytest.mark.parametrize(
        ("error", "kept"), [(ServerUnavailable("No."), False), (LoginRequired("401"), True)]
    )
    def test_a_way_in_that_stopped_working_is_forgotten(
        self, error: ServerError, kept: bool
    ) -> None:
        """U19, U20: the next look begins with the newest revision again."""
        server = after_success(http_server(), "a")
        assert server.remembered
        store_failure(server, error)
        assert bool(again(server).remembered) is kept

    def test_a_login_that_is_missing_is_no_failure(self, no_jitter: None) -> None:
        """P31: only a person can help, so that nothing is gained by hurry."""
        server = http_server()
        store_failure(server, LoginRequired("401 Unauthorized"))
        row = again(server)
        assert (row.state, row.failures) == ("login_required", 0)
        assert wait_of(server) == timedelta(minutes=15)

    @pytest.mark.parametrize("error", [None, ServerUnavailable("No route.")])
    def test_a_disabled_server_that_a_person_tests_gets_no_next_look(
        self, error: ServerError | None
    ) -> None:
        server = http_server()
        set_enabled(server, actor=None, enabled=False)
        if error is None:
            store_success(server, FoundServer(), tool_list("a"))
        else:
            store_failure(server, error)
        assert again(server).next_check_at is None

    def test_switched_off_no_look_follows(self, off: None) -> None:
        server = after_success(http_server(), "a")
        assert (server.state, server.next_check_at) == ("connected", None)

    def test_a_result_of_older_settings_moves_no_look(self) -> None:
        old = http_server()
        update_server(old, actor=None, data=http_data(url="https://other.example/mcp"), version=1)
        before = again(old).next_check_at
        assert not store_failure(old, ServerUnavailable("No route."))
        assert store_success(old, FoundServer(), tool_list("a")) is None
        assert (again(old).next_check_at, again(old).failures) == (before, 0)


class TestRestart:
    def test_it_clears_the_back_off_and_spreads_the_first_looks(self) -> None:
        now = database_now()
        for number in range(20):
            http_server(f"s{number}")
        Server.objects.update(failures=9, next_check_at=now + timedelta(hours=1))
        assert health.restart(now) == 20
        rows = Server.objects.values_list("failures", "next_check_at")
        moments = [moment for _, moment in rows if moment is not None]
        assert {failures for failures, _ in rows} == {0}
        assert now <= min(moments) < max(moments) <= now + timedelta(seconds=20)
        assert len(set(moments)) > 10

    def test_a_server_that_was_never_looked_at_is_included(self) -> None:
        """A44: each enabled server is connected at the start. An upgrade brings rows without a
        time."""
        server = http_server()
        Server.objects.update(next_check_at=None)
        assert health.restart(database_now()) == 1
        assert again(server).next_check_at is not None

    def test_disabled_servers_have_no_next_look(self) -> None:
        server = http_server()
        Server.objects.update(enabled=False, next_check_at=database_now())
        assert health.restart(database_now()) == 0
        assert again(server).next_check_at is None

    def test_switched_off_it_forgets_all_looks_and_waiting_checks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = due(http_server())
        person = request_check(http_server("other"), actor=None)
        health.start_due(database_now())
        monkeypatch.setattr(pacing, "is_on", lambda: False)
        assert health.restart(database_now()) == 0
        assert again(server).next_check_at is None
        assert Check.objects.get(kind="health").outcome == "cancelled"
        assert Check.objects.get(pk=person.pk).status == "queued"


class TestWake:
    def test_a_new_server_is_looked_at_soon(self) -> None:
        """After the person's own test, which the page asks for at once (P13)."""
        server = http_server()
        now = database_now()
        assert health.start_due(now) == 0
        assert health.start_due(now + health.WAKE_AFTER) == 1
        assert again(server).failures == 0

    def test_an_edit_of_how_it_is_reached_forgets_the_back_off(self) -> None:
        server = http_server()
        later = database_now() + timedelta(hours=1)
        Server.objects.update(failures=7, next_check_at=later)
        data = http_data(url="https://api.example.org/other")
        server = update_server(server, actor=None, data=data, version=1)
        assert server.failures == 0
        assert server.next_check_at is not None
        assert server.next_check_at < later

    def test_another_description_changes_nothing(self) -> None:
        server = http_server()
        later = database_now() + timedelta(hours=1)
        Server.objects.update(failures=7, next_check_at=later)
        server = update_server(server, actor=None, data=http_data(description="x"), version=1)
        assert (server.failures, server.next_check_at) == (7, later)

    def test_disabling_ends_its_health_check_and_no_other(
        self, django_capture_on_commit_callbacks: Commits
    ) -> None:
        server, other = due(http_server()), due(http_server("other"))
        health.start_due(database_now())
        Check.objects.filter(server=server).update(status="running", heartbeat_at=database_now())
        with django_capture_on_commit_callbacks(execute=True):
            set_enabled(server, actor=None, enabled=False)
        assert again(server).next_check_at is None
        assert Check.objects.get(server=server).cancel_requested_at is not None
        assert Check.objects.get(server=other).cancel_requested_at is None

    def test_a_persons_test_of_a_server_outlives_its_switch(
        self, django_capture_on_commit_callbacks: Commits
    ) -> None:
        server = http_server()
        request_check(server, actor=None)
        with django_capture_on_commit_callbacks(execute=True):
            set_enabled(server, actor=None, enabled=False)
        assert Check.objects.get().status == "queued"

    def test_enabling_wakes_it(self) -> None:
        server = http_server()
        set_enabled(server, actor=None, enabled=False)
        Server.objects.update(failures=4)
        set_enabled(server, actor=None, enabled=True)
        assert again(server).failures == 0
        assert again(server).next_check_at is not None

    def test_a_copy_sleeps(self) -> None:
        assert duplicate_server(http_server(), actor=None).next_check_at is None

    def test_switched_off_nothing_wakes(self, off: None) -> None:
        assert again(http_server()).next_check_at is None


class TestRunning:
    @pytest.fixture
    def settings_asked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Whom connections were asked for; none is made."""
        asked: list[str] = []

        def settings(server: Server, *, actor: str, testing: bool) -> Any:
            assert testing
            asked.append(actor)
            raise ServerUnavailable("Not here.")

        monkeypatch.setattr(checks, "connection_settings", settings)
        return asked

    def test_one_that_waited_until_its_server_was_disabled_contacts_nobody(
        self, settings_asked: list[str]
    ) -> None:
        server = due(http_server())
        health.start_due(database_now())
        Server.objects.update(enabled=False)
        check = Check.objects.get()
        assert run_check(check.pk)
        check.refresh_from_db()
        assert (check.status, check.outcome) == ("done", "cancelled")
        assert settings_asked == []
        assert again(server).state == "untested"

    def test_a_person_may_test_a_disabled_server(
        self, settings_asked: list[str], member: User
    ) -> None:
        """U61: and connects as that person."""
        server = http_server()
        set_enabled(server, actor=None, enabled=False)
        run_check(request_check(server, actor=member).pk)
        assert settings_asked == ["bob"]

    def test_health_is_nobody(self, settings_asked: list[str]) -> None:
        due(http_server())
        health.start_due(database_now())
        run_check(Check.objects.get().pk)
        assert settings_asked == [""]

    def test_a_waiting_health_check_becomes_the_persons_who_asks(self, member: User) -> None:
        server = due(http_server())
        health.start_due(database_now())
        check = request_check(server, actor=member)
        assert (check.kind, check.requested_by) == ("person", member)
        assert Check.objects.get() == check

    def test_a_running_one_is_joined_as_it_is(self, member: User) -> None:
        server = due(http_server())
        health.start_due(database_now())
        Check.objects.update(status="running", heartbeat_at=database_now())
        check = request_check(server, actor=member)
        assert (check.kind, check.requested_by) == ("health", None)

    def test_a_server_comes_back_by_itself(
        self, monkeypatch: pytest.MonkeyPatch, no_jitter: None
    ) -> None:
        """The whole circle: it fails, is tried after 30 and 60 seconds, and works again."""
        outcomes: list[Any] = [ServerUnavailable("503 Service Unavailable")] * 2
        outcomes.append(Found(FoundServer(), tool_list("a")))  # type: ignore[arg-type]

        class Probe:
            stderr_tail = ""
            looked = None

            def __init__(self, *_: Any, looks_for_login: bool, **__: Any) -> None:
                assert not looks_for_login, "health checks never do (P36)"
                self.outcome = outcomes.pop(0)

            def start(self) -> None: ...
            def stop(self) -> None: ...
            def wait(self, timeout: float) -> bool:
                return True

            def progress(self) -> Any:
                return Progress()

        monkeypatch.setattr(checks, "Probe", Probe)
        server = http_server()
        with time_machine.travel(datetime(2026, 3, 1, 12, tzinfo=UTC), tick=False) as clock:
            health.restart(database_now())
            seen = []
            for seconds in (1, 29, 1, 59, 1):
                clock.shift(timedelta(seconds=seconds))
                if health.start_due(database_now()):
                    run_check(Check.objects.latest("created_at").pk)
                row = again(server)
                seen.append((row.state, row.failures))
        assert seen == [("failed", 1)] * 2 + [("failed", 2)] * 2 + [("connected", 0)]


def test_results_keep_what_was_found_about_the_way() -> None:
    found = FoundServer(how="It answered server/discover.")
    server = http_server()
    store_success(server, found, tool_list("a"))
    assert again(server).found_how == "It answered server/discover."
    columns = results.success_columns(found, tool_list("a"), None, Masker({}))
    assert columns["found_how"] == "It answered server/discover."
