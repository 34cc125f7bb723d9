"""Builds of environments: one a machine and content, whoever asks, whoever dies (issue 5)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from jobs.environments import build as building
from jobs.environments import builds, keeper
from jobs.environments.build import BuildFailed, Stopped, build_directory
from jobs.environments.definition import parse_definition
from jobs.environments.log import BuildLog
from jobs.environments.recipe import Step
from jobs.environments.services import create_environment
from jobs.environments.store import Store
from jobs.models import EnvironmentBuild, Worker
from jobs.presence import report, worker_name
from jobs.sandbox import base as sandbox
from tests.fakes.environments import DIGEST, TEXT, Builder, a_builder, ended
from tests.fakes.runs import start_plainly
from umpteenth.core.clock import database_now
from umpteenth.core.config import get_options

pytestmark = pytest.mark.django_db(transaction=True)
Status = EnvironmentBuild.Status


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    with a_builder(monkeypatch) as found:
        yield found


def test_a_build_ends_ready_with_its_log_and_size(builder: Builder) -> None:
    row = builds.request_here(TEXT, DIGEST)
    assert builds.begin(row)
    ended(row, Status.READY)
    assert (row.log, row.size, row.error, row.step) == (
        "== Python packages\nInstalled",
        4096,
        "",
        "",
    )
    assert row.finished_at is not None
    assert builds.store().find(DIGEST) is not None


def test_two_who_ask_at_once_start_one_build(builder: Builder) -> None:
    builder.go.clear()
    first = builds.request_here(TEXT, DIGEST)
    assert builds.begin(first)
    second = builds.request_here(TEXT, DIGEST)
    assert second.pk == first.pk
    assert not builds.begin(second)
    assert builds.work_off() == 0
    builder.go.set()
    ended(first, Status.READY)
    assert builder.built == 1


def test_the_log_and_the_step_are_seen_while_it_is_built(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.go.clear()
    row = builds.request_here(TEXT, DIGEST)
    monkeypatch.setattr(builds, "HEARTBEAT_EVERY", 0.0)
    builds.begin(row)
    assert builder.begun.wait(10)
    written = threading.Semaphore(0)
    monkeypatch.setattr(builds, "give_back", written.release)
    for _ in range(2):  # the first one may have read the log before
        assert written.acquire(timeout=10)
    row.refresh_from_db()
    assert (row.status, row.step) == (Status.BUILDING, "Python packages")
    assert row.log == "== Python packages\nInstalled"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (BuildFailed("npm packages: no such package."), "npm packages: no such package."),
        (sandbox.SandboxError("No sandbox."), "No sandbox."),
        (OSError(28, "No space left on device"), "could not be stored: No space left on device"),
        (ValueError("odd"), "The build broke: ValueError: odd"),
    ],
)
def test_a_build_that_fails_says_why_and_can_be_asked_for_again(
    builder: Builder, error: Exception, sentence: str
) -> None:
    builder.error = error
    row = builds.request_here(TEXT, DIGEST)
    builds.begin(row)
    ended(row, Status.FAILED)
    assert sentence in row.error
    builder.error = None
    builds.begin(builds.request_here(TEXT, DIGEST))
    row.refresh_from_db()
    ended(row, Status.READY)
    assert row.error == ""


def test_a_build_whose_builder_is_silent_is_taken_over(builder: Builder) -> None:
    row = builds.request_here(TEXT, DIGEST)
    token = builds.claim(row)
    assert token is not None
    assert builds.claim(row) is None
    EnvironmentBuild.objects.update(heartbeat_at=database_now() - builds.SILENCE * 2)
    assert builds.claim(row) not in (None, token)
    # The one that was thought dead writes nothing more.
    builds.build(row, token)
    row.refresh_from_db()
    assert row.status == Status.BUILDING


def test_a_worker_that_is_stopped_ends_its_builds_and_begins_no_others(builder: Builder) -> None:
    builder.go.clear()
    row = builds.request_here(TEXT, DIGEST)
    builds.begin(row)
    builds.stop_all()
    builder.go.set()
    ended(row, Status.FAILED)
    assert row.error == str(Stopped())
    assert not builds.begin(builds.request_here(TEXT, DIGEST))


def test_a_process_builds_two_at_once_and_the_others_wait(builder: Builder) -> None:
    builder.go.clear()
    texts = [f"name: x\nnpm: [a{number}]\n" for number in range(3)]
    rows = [builds.request_here(text, parse_definition(text).digest) for text in texts]
    assert builds.work_off() == 2
    builder.go.set()
    ended(rows[0], Status.READY)
    ended(rows[1], Status.READY)
    assert builds.work_off() == 1
    ended(rows[2], Status.READY)


def test_what_an_engine_is_needed_for_is_refused_by_bubblewrap(builder: Builder) -> None:
    text = "name: x\nimage: debian:12\n"
    row = builds.request_here(text, parse_definition(text).digest)
    builds.begin(row)
    ended(row, Status.FAILED)
    assert "sandboxes of this machine are made by bubblewrap" in row.error
    assert builder.built == 0


def test_another_machines_build_is_left_to_it(builder: Builder) -> None:
    builds.request(TEXT, DIGEST, "elsewhere", host="other")
    assert builds.work_off() == 0


def test_tidying_removes_what_no_environment_stands_for(builder: Builder) -> None:
    environment = create_environment(actor=None, text=TEXT)
    builds.begin(builds.request_here(TEXT, DIGEST))
    ended(EnvironmentBuild.objects.get(), Status.READY)
    assert builds.tidy() == 0
    environment.delete()
    assert builds.tidy() == 1
    assert not EnvironmentBuild.objects.exists()
    assert builds.store().find(DIGEST) is None


def test_one_that_was_unused_for_long_says_that_it_was_removed(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_environment(actor=None, text=TEXT)
    builds.begin(builds.request_here(TEXT, DIGEST))
    row = ended(EnvironmentBuild.objects.get(), Status.READY)
    later = time.time() + timedelta(days=31).total_seconds()
    monkeypatch.setattr(time, "time", lambda: later)
    assert builds.tidy() == 1
    row.refresh_from_db()
    assert (row.status, row.size) == (Status.REMOVED, 0)


def test_rows_of_machines_that_are_gone_are_forgotten(builder: Builder) -> None:
    create_environment(actor=None, text=TEXT)
    old = builds.request(TEXT, DIGEST, "gone")
    builds.request(TEXT, DIGEST, "new")
    here = builds.request_here(TEXT, DIGEST)
    day = database_now() - timedelta(days=2)
    EnvironmentBuild.objects.filter(pk__in=[old.pk, here.pk]).update(queued_at=day)
    builds.tidy()
    left = set(EnvironmentBuild.objects.values_list("machine", flat=True))
    assert left == {"new", builds.store().machine()}


def test_one_that_came_meanwhile_is_not_built_twice(builder: Builder) -> None:
    row = builds.request_here(TEXT, DIGEST)
    builds.begin(row)
    ended(row, Status.READY)
    assert builds.request(TEXT, DIGEST, row.machine).status == Status.READY
    assert builds.request_here(TEXT, DIGEST).status == Status.QUEUED


def test_a_worker_reports_its_machine_and_programs_and_builds_what_waits(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def programs() -> list[tuple[str, str]]:
        asked.append(1)
        return [("Node", "20.1"), ("jq", "")]

    monkeypatch.setattr(keeper, "default_environment", programs)
    create_environment(actor=None, text=TEXT)
    row = builds.request_here(TEXT, DIGEST)
    one = keeper.Keeper()
    assert not one.look(0.0)  # the worker has no row yet
    report(database_now(), slots=1, problem="")
    assert one.look(1.0)
    found = Worker.objects.get(name=worker_name())
    assert found.machine == builds.store().machine()
    assert found.programs == [["Node", "20.1"], ["jq", ""]]
    assert len(asked) == 1
    one.look(keeper.PROGRAMS_EVERY + 1)
    assert len(asked) == 2
    ended(row, Status.READY)


def test_a_build_that_no_thread_takes_stays_queued_and_its_place_is_free_again(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = builds.request_here(TEXT, DIGEST)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_room)
        for _ in range(builds.AT_ONCE + 1):
            assert not builds.begin(row)
    row.refresh_from_db()
    assert (row.status, row.claim_token) == (Status.QUEUED, "")
    assert builds.begin(row)
    ended(row, Status.READY)


def test_a_build_whose_log_no_thread_writes_fails_at_once(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = builds.request_here(TEXT, DIGEST)
    token = builds.claim(row)
    assert token is not None
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_room)
        builds.build(row, token)
    ended(row, Status.FAILED)
    assert row.error == "The build broke: RuntimeError: can't start new thread"


def _no_room(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def _step(script: str) -> Step:
    return Step("Hostile", script, (), "", "bash")


@contextlib.contextmanager
def _steps(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> Iterator[None]:
    monkeypatch.setattr(building, "steps_of", lambda definition: [_step(s) for s in scripts])
    monkeypatch.setattr(sandbox, "start", start_plainly)
    yield


def _build(store: Store, log: BuildLog, stopping: Callable[[], bool] = lambda: False) -> int:
    return asyncio.run(build_directory(parse_definition(TEXT), store, log, stopping))


def test_a_step_that_fails_leaves_nothing_and_quotes_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    told = pytest.raises(BuildFailed, match=r"ended with exit code 3\. no such thing")
    failing = "echo fine; echo 'error: no such thing' >&2; exit 3"
    with _steps(monkeypatch, failing, "true"), told:
        _build(store, BuildLog())
    assert list(store.place.iterdir()) == []


def test_a_build_that_takes_too_long_or_is_stopped_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = get_options()
    short = options.sandbox.model_copy(update={"environment_time_limit": 0.1})
    store = Store(tmp_path)
    with _steps(monkeypatch, "sleep 60"):
        with pytest.raises(Stopped):
            _build(store, BuildLog(), lambda: True)
        monkeypatch.setattr(
            building, "get_options", lambda: options.model_copy(update={"sandbox": short})
        )
        with pytest.raises(BuildFailed, match="not built within"):
            _build(store, BuildLog())
    assert list(store.place.iterdir()) == []


def test_one_that_is_too_large_or_has_too_many_files_to_count_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = get_options().sandbox.environment_size * 1024**2
    store = Store(tmp_path)
    for size in (limit + 1, sys.maxsize):
        monkeypatch.setattr(building, "used_bytes", lambda paths, size=size: size)
        with _steps(monkeypatch, "true"), pytest.raises(BuildFailed, match="takes more than 4,"):
            _build(store, BuildLog())
        assert store.find(DIGEST) is None
    monkeypatch.setattr(building, "used_bytes", lambda paths: limit)
    with _steps(monkeypatch, "true"):
        assert _build(store, BuildLog()) == limit


def test_a_missing_tool_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    text = parse_definition("name: x\ndebian: [jq]\n")
    with pytest.raises(BuildFailed, match="this machine has no apt-get; lists of Debian packages"):
        asyncio.run(build_directory(text, Store(tmp_path), BuildLog(), lambda: False))
