"""Which workers live, and the warning where none does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs import presence, runner, tasks, worker
from jobs.models import Worker

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.django_db
class TestRows:
    def test_a_worker_reports_itself_in_one_row(self) -> None:
        presence.report(NOW, slots=4, problem="")
        presence.report(NOW + timedelta(seconds=10), slots=4, problem="bubblewrap is missing")
        row = Worker.objects.get()
        assert row.name == presence.worker_name()
        assert (row.started_at, row.seen_at) == (NOW, NOW + timedelta(seconds=10))
        assert (row.slots, row.sandbox_problem) == (4, "bubblewrap is missing")
        assert presence.live_workers(NOW + timedelta(seconds=20)) == [row]

    def test_no_worker_is_told_with_the_time_of_the_last(self) -> None:
        assert presence.no_worker_since(NOW) == NOW
        presence.report(NOW, slots=4, problem="")
        assert presence.no_worker_since(NOW + timedelta(seconds=30)) is None
        assert presence.no_worker_since(NOW + timedelta(seconds=31)) == NOW
        assert presence.live_workers(NOW + timedelta(seconds=31)) == []

    def test_workers_of_yesterday_are_forgotten(self) -> None:
        Worker.objects.create(name="old", started_at=NOW, seen_at=NOW - timedelta(days=2), slots=1)
        presence.report(NOW, slots=4, problem="")
        assert Worker.objects.count() == 1

    def test_a_worker_that_ends_in_order_signs_off(self) -> None:
        presence.report(NOW, slots=4, problem="")
        presence.withdraw()
        assert not Worker.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_reporter_writes_at_once_and_survives_a_broken_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jobs.sandbox import base

    answers = iter(["", "bubblewrap is missing"])

    def probe() -> str:
        try:
            return next(answers)
        except StopIteration:
            raise RuntimeError("broken probe") from None

    rounds: list[float] = []
    reporter = presence.Reporter(3)

    def wait(seconds: float) -> bool:
        rounds.append(seconds)
        return len(rounds) == 3

    monkeypatch.setattr(base, "problem", probe)
    monkeypatch.setattr(reporter._stop, "wait", wait)
    reporter.start()
    reporter._thread.join(10)
    assert rounds == [presence.INTERVAL] * 3
    assert Worker.objects.get().sandbox_problem == "bubblewrap is missing"


class TestSignals:
    def test_a_stopping_worker_interrupts_its_runs_and_takes_no_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        called: list[str] = []
        monkeypatch.setattr(tasks, "stop_taking", lambda: called.append("stop"))
        monkeypatch.setattr(runner, "interrupt_all", lambda: called.append("interrupt"))
        worker.on_shutting_down()
        assert called == ["stop", "interrupt"]

    @pytest.mark.django_db
    def test_at_the_end_it_waits_for_them_and_signs_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits: list[float] = []
        monkeypatch.setattr(runner, "wait_until_idle", limits.append)
        monkeypatch.setattr("jobs.worker.connection.close", lambda: None)
        presence.report(NOW, slots=1, problem="")
        worker.on_shutdown()
        assert limits == [worker.STOP_LIMIT]
        assert not Worker.objects.exists()
