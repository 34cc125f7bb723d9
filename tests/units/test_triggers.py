"""How runs begin: overlap, numbers, trust, schedules that fire once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import time_machine

from jobs import lifecycle, triggers
from jobs.models import Job, Run
from tests.fakes.runs import make_job, make_run, old_run, payloads_of
from umpteenth.accounts.models import User

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
DUE = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    sent: list[UUID] = []
    monkeypatch.setattr(triggers, "hint_run", sent.append)
    return sent


@pytest.fixture(autouse=True)
def _frozen(hints: list[UUID]) -> Iterator[None]:
    with time_machine.travel(NOW, tick=False):
        yield


class TestStartRun:
    def test_it_is_queued_numbered_and_hinted(self, member: User, hints: list[UUID]) -> None:
        job = make_job()
        run = make_run(job, actor=member, input={"city": "Berlin"})
        run.refresh_from_db()
        assert (run.number, run.status, run.input) == (1, Run.Status.QUEUED, {"city": "Berlin"})
        assert (run.actor, run.actor_name, run.queued_at) == (member, "bob", NOW)
        assert payloads_of(run, "run.status") == [{"status": "queued"}]
        assert hints == [run.pk]

    def test_numbers_count_per_job(self) -> None:
        first, second = make_job("a", overlap="parallel"), make_job("b", overlap="parallel")
        numbers = [make_run(job).number for job in (first, first, second, first)]
        assert numbers == [1, 2, 1, 3]

    def test_skip_records_a_skipped_run(self, hints: list[UUID]) -> None:
        job = make_job(overlap=Job.Overlap.SKIP)
        first, second = make_run(job), make_run(job)
        assert second.status == Run.Status.SKIPPED
        assert second.error == "Run #1 has not ended"
        assert second.finished_at == NOW
        assert hints == [first.pk]
        job.refresh_from_db()
        assert job.active_run == first

    def test_skip_also_counts_runs_from_before_it_was_skip(self) -> None:
        """`active_run` knows nothing of runs that were parallel."""
        job = make_job(overlap=Job.Overlap.SKIP)
        old_run(job, Run.Status.RUNNING, number=1000)
        assert make_run(job).status == Run.Status.SKIPPED

    def test_queue_lets_them_wait_up_to_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(triggers, "MAX_QUEUED", 2)
        job = make_job(overlap=Job.Overlap.QUEUE)
        statuses = [make_run(job).status for _ in range(3)]
        assert statuses == ["queued", "queued", "skipped"]

    def test_a_paused_job_can_be_started_by_hand(self) -> None:
        assert make_run(make_job(enabled=False)).status == Run.Status.QUEUED

    def test_an_input_above_a_mebibyte_is_refused(self) -> None:
        job = make_job()
        with pytest.raises(triggers.TriggerError, match="1 MiB"):
            make_run(job, input="x" * (1024 * 1024))
        assert not Run.objects.exists()

    def test_an_input_is_stored_clean(self) -> None:
        """H16"""
        run = make_run(make_job(), input={"a\0": "b\ud800"})
        run.refresh_from_db()
        assert run.input == {"a": "b\ufffd"}

    def test_a_deleted_job_says_so(self) -> None:
        job = make_job()
        Job.objects.all().delete()
        with pytest.raises(triggers.TriggerError, match="deleted"):
            make_run(job)

    def test_the_hint_waits_for_the_commit(
        self, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
    ) -> None:
        """H13: a worker must find the row; a rollback leaves no task."""
        monkeypatch.undo()
        from umpteenth import celery

        sent: list[tuple[str, ...]] = []
        monkeypatch.setattr(celery, "send_hint", lambda *words: sent.append(words))
        with time_machine.travel(NOW, tick=False), django_capture_on_commit_callbacks() as calls:
            run = make_run(make_job())
        assert sent == []
        for call in calls:
            call()
        assert sent == [("jobs.tasks.execute_run", str(run.pk))]


class TestRetry:
    @pytest.mark.parametrize(
        ("first", "second", "result"),
        [
            ("creator", "agent", "agent"),
            ("public", "creator", "public"),
            ("agent", "creator", "agent"),
            ("creator", "creator", "creator"),
        ],
    )
    def test_the_lower_trust_counts(self, first: str, second: str, result: str) -> None:
        """Requirements, section 0."""
        run = old_run(make_job(), Run.Status.FAILED, trust=first, input=[1], disable_mcp=True)
        again = triggers.retry_run(run, actor=None, trust=second)
        assert (again.trust, again.trigger, again.retry_of) == (result, "retry", run)
        assert (again.input, again.disable_mcp) == ([1], True)

    def test_a_run_that_has_not_ended_cannot_be_retried(self) -> None:
        with pytest.raises(triggers.TriggerError, match="not ended"):
            triggers.retry_run(make_run(make_job()), actor=None)

    def test_the_overlap_policy_holds_for_retries(self) -> None:
        job = make_job()
        failed = old_run(job, Run.Status.FAILED)
        make_run(job)
        assert triggers.retry_run(failed, actor=None).status == Run.Status.SKIPPED


class TestFireSchedule:
    def make_due(self, **fields: Any) -> Job:
        values: dict[str, Any] = {"cron": "0 * * * *", "next_run_at": DUE}
        return make_job(**(values | fields))

    def test_it_starts_the_run_and_arms_the_next_time(self) -> None:
        job = self.make_due()
        run = triggers.fire_schedule(job.pk, DUE, NOW)
        job.refresh_from_db()
        assert run is not None
        assert (run.trigger, run.trust, run.scheduled_for) == ("schedule", "agent", DUE)
        assert job.next_run_at == DUE + timedelta(hours=1)
        assert payloads_of(run, "log") == []

    def test_two_beats_make_one_run(self) -> None:
        """G18"""
        job = self.make_due(overlap="parallel")
        assert triggers.fire_schedule(job.pk, DUE, NOW) is not None
        assert triggers.fire_schedule(job.pk, DUE, NOW) is None
        assert Run.objects.count() == 1

    def test_an_occurrence_that_has_its_run_gets_no_second_one(self) -> None:
        """G18: a restored or edited schedule that names the same time again."""
        job = self.make_due()
        old_run(job, Run.Status.SUCCEEDED, scheduled_for=DUE)
        assert triggers.fire_schedule(job.pk, DUE, NOW) is None
        job.refresh_from_db()
        assert job.next_run_at == DUE + timedelta(hours=1)

    def test_a_night_without_beat_is_made_up_for_by_one_run(self) -> None:
        """G16"""
        job = self.make_due(next_run_at=DUE - timedelta(hours=12))
        run = triggers.fire_schedule(job.pk, DUE - timedelta(hours=12), NOW)
        job.refresh_from_db()
        assert run is not None
        assert Run.objects.count() == 1
        assert job.next_run_at == DUE + timedelta(hours=1)
        [log] = payloads_of(run, "log")
        assert "Due at 2026-03-01 00:00 UTC; 12 later times passed" in log["message"]

    def test_many_missed_times_are_not_counted_for_ever(self) -> None:
        due = DUE - timedelta(days=90)
        job = self.make_due(cron="* * * * *", next_run_at=due)
        run = triggers.fire_schedule(job.pk, due, NOW)
        assert run is not None
        assert "1000 or more later times" in payloads_of(run, "log")[0]["message"]

    @pytest.mark.parametrize("change", [{"enabled": False}, {"next_run_at": None}])
    def test_a_schedule_that_was_changed_meanwhile_does_not_fire(
        self, change: dict[str, Any]
    ) -> None:
        job = self.make_due()
        Job.objects.update(**change)
        assert triggers.fire_schedule(job.pk, DUE, NOW) is None
        assert not Run.objects.exists()

    def test_a_job_that_still_runs_skips_its_occurrence_visibly(self) -> None:
        job = self.make_due()
        assert lifecycle.claim(make_run(job).pk, "w")
        run = triggers.fire_schedule(job.pk, DUE, NOW)
        assert run is not None
        assert run.status == Run.Status.SKIPPED
