"""Transitions of a run: claimed once, ended once, never executed twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import time_machine

from jobs import lifecycle, timeline, triggers
from jobs.lifecycle import Outcome, Status
from jobs.models import Job, Run, RunEvent
from tests.fakes.runs import kinds, make_job, make_run, old_run, payloads_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    sent: list[UUID] = []
    monkeypatch.setattr(triggers, "hint_run", sent.append)
    return sent


@pytest.fixture(autouse=True)
def clock(hints: list[UUID]) -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOW, tick=False) as traveller:
        yield traveller


def claim(run: Run) -> str:
    token = lifecycle.claim(run.pk, "worker-1")
    assert token is not None
    run.refresh_from_db()
    return token


class TestClaim:
    def test_a_queued_run_is_claimed_once(self) -> None:
        """H01: a second delivery of the same message finds it taken."""
        run = make_run(make_job())
        token = claim(run)
        assert (run.status, run.worker, run.started_at) == (Status.PROVISIONING, "worker-1", NOW)
        assert run.claim_token == token
        assert lifecycle.claim(run.pk, "worker-2") is None

    @pytest.mark.parametrize("status", [Status.RUNNING, Status.FAILED, Status.SKIPPED])
    def test_a_run_that_started_or_ended_is_never_claimed(self, status: str) -> None:
        assert lifecycle.claim(old_run(make_job(), status).pk, "w") is None

    def test_a_run_that_does_not_exist_is_not_claimed(self) -> None:
        """H13: a hint that overtook its commit, or whose row was rolled back."""
        assert lifecycle.claim(uuid4(), "w") is None

    def test_under_queue_the_second_waits_for_the_first(self) -> None:
        job = make_job(overlap=Job.Overlap.QUEUE)
        first, second, third = (make_run(job) for _ in range(3))
        assert lifecycle.claim(second.pk, "w") is None  # first come, first served
        token = claim(first)
        assert lifecycle.claim(second.pk, "w") is None
        assert lifecycle.claimable() == []
        lifecycle.finish(first.pk, token, Outcome(Status.SUCCEEDED))
        assert lifecycle.claimable()[0] == second.pk
        assert lifecycle.claim(third.pk, "w") is None
        claim(second)

    def test_parallel_runs_are_free(self) -> None:
        job = make_job(overlap=Job.Overlap.PARALLEL)
        for run in [make_run(job), make_run(job)]:
            claim(run)

    def test_a_job_that_was_parallel_finishes_its_live_runs_first(self) -> None:
        job = make_job(overlap=Job.Overlap.PARALLEL)
        claim(make_run(job))
        second = make_run(job)
        Job.objects.filter(pk=job.pk).update(overlap=Job.Overlap.QUEUE)
        assert lifecycle.claim(second.pk, "w") is None


class TestFinish:
    def test_final_event_and_status_come_together(self) -> None:
        job = make_job()
        run = make_run(job)
        token = claim(run)
        assert lifecycle.begin(run.pk, token)
        outcome = Outcome(Status.FAILED, "it broke", "a summary", {"n": 1})
        assert lifecycle.finish(run.pk, token, outcome)
        run.refresh_from_db()
        job.refresh_from_db()
        assert (run.status, run.error, run.summary, run.outputs) == (
            Status.FAILED,
            "it broke",
            "a summary",
            {"n": 1},
        )
        assert run.finished_at == NOW
        assert job.active_run is None
        assert payloads_of(run, "run.status")[-1] == {"status": "failed", "error": "it broke"}
        assert run.last_seq == len(kinds(run)) == 4

    def test_a_late_worker_changes_nothing(self) -> None:
        """H08: the state guard."""
        run = make_run(make_job())
        token = claim(run)
        Run.objects.update(heartbeat_at=NOW - timedelta(seconds=61))
        assert lifecycle.reap(NOW) == 1
        assert not lifecycle.finish(run.pk, token, Outcome(Status.SUCCEEDED))
        assert not lifecycle.heartbeat(run.pk, token)
        assert not lifecycle.begin(run.pk, token)
        with pytest.raises(timeline.LostClaim):
            lifecycle.is_cancelled(run.pk, token)
        with pytest.raises(timeline.LostClaim):
            timeline.append(run.pk, [timeline.Event("step", {"name": "late"})], token=token)
        run.refresh_from_db()
        assert run.status == Status.FAILED

    def test_another_token_changes_nothing(self) -> None:
        run = make_run(make_job())
        claim(run)
        assert not lifecycle.finish(run.pk, "guessed", Outcome(Status.SUCCEEDED))

    def test_the_next_in_the_queue_is_hinted(
        self, hints: list[UUID], django_capture_on_commit_callbacks: object
    ) -> None:
        job = make_job(overlap=Job.Overlap.QUEUE)
        first, second = make_run(job), make_run(job)
        token = claim(first)
        hints.clear()
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
            lifecycle.finish(first.pk, token, Outcome(Status.SUCCEEDED))
        assert hints == [second.pk]

    def test_a_nul_in_the_error_does_not_keep_the_run_alive(self) -> None:
        """H16"""
        run = make_run(make_job())
        token = claim(run)
        assert lifecycle.finish(run.pk, token, Outcome(Status.FAILED, "a\0b\ud800" + "x" * 9000))
        run.refresh_from_db()
        assert run.error.startswith("ab\ufffdx")
        assert len(run.error) == lifecycle.MAX_ERROR


class TestCancel:
    def test_a_queued_run_ends_at_once(self) -> None:
        job = make_job()
        run = make_run(job)
        lifecycle.request_cancel(run.pk)
        run.refresh_from_db()
        job.refresh_from_db()
        assert (run.status, run.error) == (Status.CANCELLED, "Cancelled before it started")
        assert job.active_run is None
        assert lifecycle.claim(run.pk, "w") is None

    def test_a_live_run_is_asked_to_end(self) -> None:
        run = make_run(make_job())
        token = claim(run)
        assert not lifecycle.is_cancelled(run.pk, token)
        lifecycle.request_cancel(run.pk)
        lifecycle.request_cancel(run.pk)  # twice is the same
        assert lifecycle.is_cancelled(run.pk, token)
        assert kinds(run).count("log") == 1

    def test_a_run_whose_worker_is_silent_ends_here(self) -> None:
        """H07: cancel ends any row that is not finished."""
        job = make_job()
        run = make_run(job)
        claim(run)
        Run.objects.update(heartbeat_at=NOW - timedelta(minutes=20))
        lifecycle.request_cancel(run.pk)
        run.refresh_from_db()
        job.refresh_from_db()
        assert run.status == Status.CANCELLED
        assert job.active_run is None

    def test_a_finished_run_cannot_be_cancelled(self) -> None:
        with pytest.raises(lifecycle.AlreadyFinished):
            lifecycle.request_cancel(old_run(make_job(), Status.SUCCEEDED).pk)


class TestReap:
    def test_only_silent_runs_are_ended_and_only_once(self) -> None:
        """H08: queued for an hour, alive for three, silent for twenty minutes."""
        queued = old_run(make_job("queued"), Status.QUEUED, queued_at=NOW - timedelta(hours=1))
        alive = old_run(
            make_job("alive"),
            Status.RUNNING,
            started_at=NOW - timedelta(hours=3),
            heartbeat_at=NOW - timedelta(seconds=59),
        )
        job = make_job("silent")
        silent = old_run(job, Status.RUNNING, heartbeat_at=NOW - timedelta(minutes=20))
        Job.objects.filter(pk=job.pk).update(active_run=silent)
        assert (lifecycle.reap(NOW), lifecycle.reap(NOW)) == (1, 0)
        for run in (queued, alive, silent):
            run.refresh_from_db()
        job.refresh_from_db()
        assert (queued.status, alive.status) == (Status.QUEUED, Status.RUNNING)
        assert silent.status == Status.FAILED
        assert silent.error == "interrupted: the worker stopped responding"
        assert job.active_run is None
        last = RunEvent.objects.filter(run=silent).last()
        assert last is not None
        assert last.payload["status"] == "failed"

    def test_a_heartbeat_keeps_a_run_alive(self, clock: time_machine.Traveller) -> None:
        run = make_run(make_job())
        token = claim(run)
        clock.shift(timedelta(seconds=50))
        assert lifecycle.heartbeat(run.pk, token)
        clock.shift(timedelta(seconds=50))
        assert lifecycle.reap(NOW + timedelta(seconds=100)) == 0
