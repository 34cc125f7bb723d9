"""Directories of runs whose worker was killed, and of servers that were deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from jobs.leftovers import remove_leftovers
from jobs.models import Job, Run
from jobs.sandbox.homes import Homes
from jobs.worker import tidy
from tests.fakes.server_rows import stdio_server
from umpteenth.core.config import get_options
from umpteenth.core.ids import new_id

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_left_before() -> None:
    """Other tests share the data directory; without rows everything in it is left over."""
    remove_leftovers()


@pytest.fixture
def runs() -> Iterator[Path]:
    path = get_options().data_dir / "runs"
    yield path
    for left in path.glob("*"):
        left.rmdir()


@pytest.fixture
def homes() -> Iterator[Homes]:
    found = Homes.from_options(get_options())
    yield found
    for left in found.folder.glob("*"):
        left.rmdir()


def directory_of(runs: Path, name: object) -> Path:
    path = runs / str(name)
    path.mkdir(parents=True)
    return path


def run(number: int, status: str) -> Run:
    job, _ = Job.objects.get_or_create(name="digest", defaults={"script": "true"})
    return Run.objects.create(
        job=job,
        number=number,
        status=status,
        trigger=Run.Trigger.MANUAL,
        trust=Run.Trust.CREATOR,
        queued_at=timezone.now(),
    )


def test_directories_of_ended_and_unknown_runs_go(runs: Path) -> None:
    ended = directory_of(runs, run(1, Run.Status.FAILED).pk)
    unknown = directory_of(runs, new_id())
    (ended / "workspace").mkdir()
    assert remove_leftovers() == 2
    assert not ended.exists()
    assert not unknown.exists()
    assert remove_leftovers() == 0


@pytest.mark.parametrize("status", Run.UNFINISHED)
def test_a_run_that_somebody_executes_keeps_its_directory(runs: Path, status: str) -> None:
    kept = directory_of(runs, run(1, status).pk)
    assert remove_leftovers() == 0
    assert kept.exists()


def test_what_we_did_not_make_stays(runs: Path) -> None:
    kept = directory_of(runs, "notes")
    assert remove_leftovers() == 0
    assert kept.exists()


def test_without_any_run_there_is_nothing_to_do() -> None:
    assert remove_leftovers() == 0


def test_what_somebody_who_cleared_a_home_did_not_get_to_goes(homes: Homes) -> None:
    homes.make(new_id()).rename(homes.folder / "cleared-0123")
    assert remove_leftovers() == 1
    assert list(homes.folder.iterdir()) == []


def test_the_home_of_a_deleted_server_goes(homes: Homes) -> None:
    kept, gone = homes.make(stdio_server().pk), homes.make(new_id())
    assert remove_leftovers() == 1
    assert kept.exists()
    assert not gone.exists()


def test_a_worker_looks_again_for_what_was_still_live_at_its_start(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that takes a killed one's place starts before the sweep ends the lost run."""
    monkeypatch.setattr("jobs.worker.connection.close", lambda: None)
    lost = run(1, Run.Status.RUNNING)
    path = directory_of(runs, lost.pk)

    class Stopping(threading.Event):
        waited = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waited += 1
            if self.waited == 1:
                assert path.exists()
                Run.objects.filter(pk=lost.pk).update(status=Run.Status.FAILED)
            return self.waited == 2

    tidy(Stopping())
    assert not path.exists()
