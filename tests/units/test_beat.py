"""The sweep: what is due, what lost its hint, what went silent; and who sweeps."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import time_machine
from django.db import OperationalError
from django.utils import timezone

from jobs import beat, services, triggers
from jobs.definition import JobData
from jobs.models import Job, Lease, Run
from servers import checks, health, inflight
from servers.models import Check, Server
from tests.fakes.runs import make_job, make_run, old_run
from tests.fakes.server_rows import http_server
from umpteenth import celery
from umpteenth.core.clock import database_now

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    hints: list[str] = []

    def send(_task: str, *args: str) -> bool:
        hints.extend(args)
        return True

    monkeypatch.setattr(celery, "send_hint", send)
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)
    return hints


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def sweeper(sent: list[str], clock: list[float]) -> beat.Sweeper:
    return beat.Sweeper(lambda: clock[0])


class TestSchedules:
    def test_what_is_due_runs_and_nothing_else(self, sweeper: beat.Sweeper) -> None:
        due = make_job("due", cron="* * * * *", next_run_at=NOW - timedelta(seconds=1))
        make_job("later", cron="* * * * *", next_run_at=NOW + timedelta(seconds=1))
        make_job("paused", cron="* * * * *", next_run_at=NOW, enabled=False)
        make_job("none")
        assert sweeper.sweep(NOW)
        assert sweeper.sweep(NOW)
        assert list(Run.objects.values_list("job", flat=True)) == [due.pk]

    def test_a_day_without_beat_starts_each_job_once(self, sweeper: beat.Sweeper) -> None:
        """G16"""
        for number in range(10):
            make_job(f"j{number}", cron="0 * * * *", next_run_at=NOW - timedelta(hours=12))
        sweeper.sweep(NOW)
        sweeper.sweep(NOW + timedelta(seconds=1))
        assert Run.objects.count() == 10
        assert not Job.objects.filter(next_run_at__lte=NOW).exists()

    def test_editing_pausing_and_resuming_fire_nothing(self, sweeper: beat.Sweeper) -> None:
        """G13: nothing but what the new schedule says from now on."""
        with time_machine.travel(NOW, tick=False):
            data = JobData(name="digest", script="true", cron="0 9 * * *")
            jobs = [
                services.create_job(actor=None, data=data.replace(name=f"d{number}"))
                for number in range(3)
            ]
            Job.objects.update(created_at=NOW - timedelta(days=90))
            services.update_job(
                jobs[0], actor=None, data=data.replace(name="d0", cron="0 1 * * *"), version=1
            )
            services.set_enabled(jobs[1], actor=None, enabled=False)
            services.set_enabled(jobs[1], actor=None, enabled=True)
            sweeper.sweep(NOW)
        assert not Run.objects.exists()
        times = {job.name: job.next_run_at for job in Job.objects.all()}
        assert times == {
            "d0": datetime(2026, 3, 2, 1, tzinfo=UTC),
            "d1": datetime(2026, 3, 2, 9, tzinfo=UTC),
            "d2": datetime(2026, 3, 2, 9, tzinfo=UTC),
        }

    def test_a_schedule_that_no_longer_holds_is_put_aside(
        self, sweeper: beat.Sweeper, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = make_job("broken", cron="99 * * * *", next_run_at=NOW)
        make_job("good", cron="* * * * *", next_run_at=NOW)
        sweeper.sweep(NOW)
        broken.refresh_from_db()
        assert broken.next_run_at is None
        assert "cannot be used any more" in caplog.text
        assert Run.objects.get().job.name == "good"


class TestHints:
    def test_a_queued_run_is_hinted_again_but_not_all_the_time(
        self, sweeper: beat.Sweeper, sent: list[str], clock: list[float]
    ) -> None:
        """H10, H11: the broker was away, or forgot."""
        run = old_run(make_job(), Run.Status.QUEUED, queued_at=NOW)
        counts = []
        for seconds in (1, 4, 5, 13, 14, 25):
            clock[0] = 1000.0 + seconds
            sweeper.sweep(NOW + timedelta(seconds=seconds))
            counts.append(len(sent))
        assert counts == [0, 1, 1, 1, 2, 3]
        assert set(sent) == {str(run.pk)}

    def test_a_run_that_must_wait_is_not_hinted(
        self, sweeper: beat.Sweeper, sent: list[str]
    ) -> None:
        job = make_job(overlap=Job.Overlap.QUEUE)
        live = old_run(job, Run.Status.RUNNING, number=1, heartbeat_at=NOW)
        Job.objects.update(active_run=live)
        old_run(job, Run.Status.QUEUED, number=2, queued_at=NOW - timedelta(hours=1))
        sweeper.sweep(NOW)
        assert sent == []

    def test_a_broker_that_is_down_ends_the_round(
        self, sweeper: beat.Sweeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[str] = []

        def refuse(_task: str, *args: str) -> bool:
            tried.extend(args)
            return False

        monkeypatch.setattr(celery, "send_hint", refuse)
        for number in range(3):
            old_run(make_job(f"j{number}"), Run.Status.QUEUED, queued_at=NOW - timedelta(hours=1))
        assert sweeper.sweep(NOW)
        assert len(tried) == 1
        assert sweeper._hinted == {}


def watch(sweeper: beat.Sweeper, until: datetime) -> None:
    """Sweep for as long as it takes until somebody's silence counts."""
    for seconds in (30, 20, 10, 0):
        sweeper.sweep(until - timedelta(seconds=seconds))


class TestReaping:
    def test_silent_runs_are_ended(self, sweeper: beat.Sweeper) -> None:
        """H07: found by the sweep, whatever the queue does."""
        run = old_run(make_job(), Run.Status.RUNNING, heartbeat_at=NOW - timedelta(seconds=61))
        watch(sweeper, NOW)
        run.refresh_from_db()
        assert run.status == Run.Status.FAILED

    def test_one_broken_step_does_not_stop_the_others(
        self, sweeper: beat.Sweeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_now: datetime) -> int:
            raise RuntimeError("poison")

        monkeypatch.setattr(beat, "fire_due", broken)
        monkeypatch.setattr("jobs.beat.connection.close", lambda: None)
        run = old_run(make_job(), Run.Status.RUNNING, heartbeat_at=NOW - timedelta(seconds=61))
        watch(sweeper, NOW)
        run.refresh_from_db()
        assert run.status == Run.Status.FAILED

    @pytest.mark.parametrize("away", [timedelta(seconds=90), timedelta(hours=8)])
    def test_nobody_is_called_silent_who_could_not_report(
        self, sweeper: beat.Sweeper, away: timedelta
    ) -> None:
        """H08: a database that was away, or a machine that slept, silences every worker."""
        watch(sweeper, NOW)
        run = old_run(make_job(), Run.Status.RUNNING, heartbeat_at=NOW)
        back = NOW + away
        sweeper.sweep(back)
        sweeper.sweep(back + timedelta(seconds=1))
        run.refresh_from_db()
        assert run.status == Run.Status.RUNNING
        watch(sweeper, back + timedelta(seconds=40))
        run.refresh_from_db()
        assert run.status == Run.Status.FAILED

    def test_a_clock_that_was_set_back_ends_nothing(self, sweeper: beat.Sweeper) -> None:
        watch(sweeper, NOW + timedelta(hours=1))
        run = old_run(make_job(), Run.Status.RUNNING, heartbeat_at=NOW - timedelta(seconds=61))
        sweeper.sweep(NOW)
        run.refresh_from_db()
        assert run.status == Run.Status.RUNNING
        watch(sweeper, NOW + timedelta(seconds=31))
        run.refresh_from_db()
        assert run.status == Run.Status.FAILED


class TestLease:
    def test_one_beat_sweeps_and_the_other_follows_when_it_is_gone(self, sent: list[str]) -> None:
        first, second = beat.Sweeper(), beat.Sweeper()
        assert first.sweep(NOW)
        assert not second.sweep(NOW + timedelta(seconds=1))
        assert first.sweep(NOW + timedelta(seconds=10))
        assert not second.sweep(NOW + timedelta(seconds=20))
        assert second.sweep(NOW + timedelta(seconds=26))
        assert not first.sweep(NOW + timedelta(seconds=27))

    def test_a_clock_that_is_put_back_leaves_no_lease_that_lasts_for_hours(
        self, sent: list[str]
    ) -> None:
        first, second = beat.Sweeper(), beat.Sweeper()
        assert first.sweep(NOW)
        assert second.sweep(NOW - timedelta(hours=1))
        assert not first.sweep(NOW - timedelta(hours=1, seconds=2))

    def test_a_beat_that_ends_hands_over_at_once(self, sent: list[str]) -> None:
        first, second = beat.Sweeper(), beat.Sweeper()
        assert first.sweep(NOW)
        beat.release_lease(first.holder)
        assert second.sweep(NOW)
        beat.release_lease(first.holder)
        assert Lease.objects.get().holder == second.holder


class TestScheduler:
    @pytest.fixture
    def scheduler(self, sent: list[str], monkeypatch: pytest.MonkeyPatch) -> beat.Scheduler:
        monkeypatch.setattr("jobs.beat.connection.close", lambda: None)
        return beat.Scheduler(app=celery.app)

    def test_a_tick_sweeps_and_asks_for_the_next_within_a_second(
        self, scheduler: beat.Scheduler
    ) -> None:
        make_job(cron="* * * * *", next_run_at=database_now())
        assert 0.1 <= scheduler.tick() <= 1.0
        assert Run.objects.count() == 1
        assert scheduler.schedule == {}

    @pytest.mark.parametrize("error", [OperationalError("gone"), RuntimeError("odd")])
    def test_a_database_that_is_away_does_not_end_beat(
        self, scheduler: beat.Scheduler, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def away(*_args: Any) -> bool:
            raise error

        monkeypatch.setattr(beat, "take_lease", away)
        assert scheduler.tick() > 0

    def test_it_hands_over_at_the_end(self, scheduler: beat.Scheduler) -> None:
        scheduler.tick()
        scheduler.close()
        assert not Lease.objects.exists()


def test_beat_does_not_load_the_mcp_sdk() -> None:
    """Memory: beat connects to no server."""
    code = (
        "import os, sys, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'umpteenth.settings';"
        "django.setup(); import jobs.beat, servers.checks; print('mcp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_waiting_checks_are_hinted_again_but_not_all_the_time(
    sweeper: beat.Sweeper, sent: list[str], clock: list[float]
) -> None:
    """H10: a hint that was lost with its broker is sent again."""
    check = Check.objects.create(server=http_server(), connection_version=1)
    later = timezone.now() + timedelta(seconds=11)
    for passed, hints in [(0, 1), (5, 1), (11, 2)]:
        clock[0] = 1000.0 + passed
        sweeper.sweep(later)
        assert sent == [str(check.pk)] * hints


def test_a_check_whose_worker_died_is_ended(sweeper: beat.Sweeper, sent: list[str]) -> None:
    silent = NOW - timedelta(seconds=61)
    check = Check.objects.create(
        server=http_server(), connection_version=1, status="running", heartbeat_at=silent
    )
    watch(sweeper, NOW)
    check.refresh_from_db()
    assert (check.status, check.outcome) == ("done", "failed")


def test_a_run_made_by_hand_still_starts_beside_the_schedule(sent: list[str]) -> None:
    job = make_job(cron="0 9 * * *", next_run_at=NOW + timedelta(days=1))
    assert make_run(job).status == Run.Status.QUEUED


class TestHealth:
    """U2: servers are looked at by themselves."""

    @pytest.fixture
    def server(self, sent: list[str]) -> Server:
        return http_server()

    def test_the_first_sweep_begins_anew_and_later_ones_start_what_is_due(
        self, sweeper: beat.Sweeper, server: Server, sent: list[str]
    ) -> None:
        now = timezone.now()
        Server.objects.update(failures=9, next_check_at=now + timedelta(hours=1))
        sweeper.sweep(now)
        server.refresh_from_db()
        assert server.failures == 0
        assert server.next_check_at is not None
        assert server.next_check_at <= now + timedelta(seconds=1)
        sweeper.sweep(now + timedelta(seconds=2))
        check = Check.objects.get()
        assert (check.kind, check.server) == ("health", server)
        Server.objects.update(failures=5)
        sweeper.sweep(now + timedelta(seconds=3))
        assert Server.objects.get().failures == 5

    def test_the_hint_of_a_health_check_goes_out(
        self,
        sweeper: beat.Sweeper,
        server: Server,
        sent: list[str],
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        now = timezone.now()
        sweeper.sweep(now)
        with django_capture_on_commit_callbacks(execute=True):
            sweeper.sweep(now + timedelta(seconds=2))
        assert sent == [str(Check.objects.get().pk)]

    def test_a_beat_without_the_lease_leaves_servers_alone(
        self, sweeper: beat.Sweeper, server: Server
    ) -> None:
        now = timezone.now()
        beat.take_lease("somebody else", now)
        Server.objects.update(next_check_at=now)
        assert not sweeper.sweep(now)
        assert not Check.objects.exists()

    def test_a_beginning_that_failed_is_made_up_for(
        self, sweeper: beat.Sweeper, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jobs.beat.connection.close", lambda: None)
        begun: list[datetime] = []

        def restart(now: datetime) -> int:
            begun.append(now)
            if len(begun) == 1:
                raise OperationalError("the database is away")
            return 1

        monkeypatch.setattr(health, "restart", restart)
        for seconds in range(4):
            sweeper.sweep(NOW + timedelta(seconds=seconds))
        assert begun == [NOW, NOW + timedelta(seconds=1)]

    def test_after_a_night_asleep_two_at_a_time_are_checked(self, sweeper: beat.Sweeper) -> None:
        for number in range(6):
            http_server(f"s{number}")
        now = timezone.now()
        sweeper.sweep(now)
        sweeper.sweep(now + timedelta(hours=9))
        assert Check.objects.filter(kind="health").count() == 2


def test_old_checks_and_places_in_line_are_tidied_up_now_and_then(
    sweeper: beat.Sweeper, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def note(what: str, *_: datetime) -> int:
        done.append(what)
        return 1

    monkeypatch.setattr(checks, "prune", partial(note, "checks"))
    monkeypatch.setattr(inflight, "sweep", partial(note, "places"))
    for moment in (1000.0, 1001.0, 1599.0, 1600.0, 1601.0):
        clock[0] = moment
        sweeper.sweep(NOW)
    assert done == ["checks", "places"] * 2
