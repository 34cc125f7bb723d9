"""Builds of environments: one a machine and content, whoever asks, whoever dies (issue 5)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs import lifecycle
from jobs.environments import build as building
from jobs.environments import builds, keeper, provide
from jobs.environments.build import BuildFailed, Stopped, build_directory
from jobs.environments.definition import Definition, parse_definition
from jobs.environments.log import BuildLog
from jobs.environments.provide import GaveUp, NotProvided, Wanted, provided
from jobs.environments.recipe import Step
from jobs.environments.services import create_environment
from jobs.environments.store import Store
from jobs.models import EnvironmentBuild, Job, Worker
from jobs.presence import report, worker_name
from jobs.sandbox import base as sandbox
from tests.fakes.executions import execute, start, without_a_machine
from tests.fakes.executions import wait_for as wait_until
from tests.fakes.runs import kinds, make_job, make_run, start_plainly
from umpteenth.core.clock import database_now
from umpteenth.core.config import get_options

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "name: tools\npython: [humanize]\n"
DIGEST = parse_definition(TEXT).digest
Status = EnvironmentBuild.Status
Work = Callable[[Store, BuildLog], None]


class Builder:
    """Stands in for what needs a machine and a registry."""

    def __init__(self) -> None:
        self.built = 0
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    async def __call__(
        self, definition: Definition, store: Store, log: BuildLog, stopping: Callable[[], bool]
    ) -> int:
        self.built += 1
        log.begin("Python packages")
        log.add("Installed")
        while not self.go.is_set():
            if stopping():
                raise Stopped
            await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        with store.making() as new:
            store.keep(new, definition.digest)
        return 4096


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    found = Builder()
    # All tests of a process share a data directory.
    shutil.rmtree(builds.store().place, ignore_errors=True)
    monkeypatch.setattr(builds, "build_directory", found)
    monkeypatch.setattr(builds, "WRITE_EVERY", 0.02)
    monkeypatch.setattr(builds, "_stopping", threading.Event())
    monkeypatch.setattr(provide, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(sandbox, "problem", lambda: "")
    yield found
    found.go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("environment-"):
            thread.join(10)


def wait_for(row: EnvironmentBuild, *statuses: str) -> EnvironmentBuild:
    deadline = time.monotonic() + 10
    while row.status not in statuses:
        assert time.monotonic() < deadline, row.status
        time.sleep(0.02)  # another thread builds; nothing tells this one
        row.refresh_from_db()
    return row


def test_a_build_ends_ready_with_its_log_and_size(builder: Builder) -> None:
    row = builds.request_here(TEXT, DIGEST)
    assert builds.begin(row)
    wait_for(row, Status.READY)
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
    wait_for(first, Status.READY)
    assert builder.built == 1


def test_the_log_and_the_step_are_seen_while_it_is_built(builder: Builder) -> None:
    builder.go.clear()
    row = builds.request_here(TEXT, DIGEST)
    builds.begin(row)
    deadline = time.monotonic() + 10
    while not row.log:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        row.refresh_from_db()
    assert (row.status, row.step) == (Status.BUILDING, "Python packages")


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
    wait_for(row, Status.FAILED)
    assert sentence in row.error
    builder.error = None
    builds.begin(builds.request_here(TEXT, DIGEST))
    row.refresh_from_db()
    wait_for(row, Status.READY)
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
    wait_for(row, Status.FAILED)
    assert row.error == builds.INTERRUPTED
    assert not builds.begin(builds.request_here(TEXT, DIGEST))


def test_a_process_builds_two_at_once_and_the_others_wait(builder: Builder) -> None:
    builder.go.clear()
    texts = [f"name: x\nnpm: [a{number}]\n" for number in range(3)]
    rows = [builds.request_here(text, parse_definition(text).digest) for text in texts]
    assert builds.work_off() == 2
    builder.go.set()
    wait_for(rows[0], Status.READY)
    wait_for(rows[1], Status.READY)
    deadline = time.monotonic() + 10
    while not builds.work_off():  # a slot is free a moment after the row says so
        assert time.monotonic() < deadline
    wait_for(rows[2], Status.READY)


def test_what_an_engine_is_needed_for_is_refused_by_bubblewrap(builder: Builder) -> None:
    text = "name: x\nimage: debian:12\n"
    row = builds.request_here(text, parse_definition(text).digest)
    builds.begin(row)
    wait_for(row, Status.FAILED)
    assert "sandboxes of this machine are made by bubblewrap" in row.error
    assert builder.built == 0


def test_another_machines_build_is_left_to_it(builder: Builder) -> None:
    builds.request(TEXT, DIGEST, "elsewhere", host="other")
    assert builds.work_off() == 0


def test_tidying_removes_what_no_environment_stands_for(builder: Builder) -> None:
    environment = create_environment(actor=None, text=TEXT)
    builds.begin(builds.request_here(TEXT, DIGEST))
    wait_for(EnvironmentBuild.objects.get(), Status.READY)
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
    row = wait_for(EnvironmentBuild.objects.get(), Status.READY)
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
    wait_for(row, Status.READY)
    assert builds.request_here(TEXT, DIGEST).status == Status.READY
    assert builds.request_here(TEXT, DIGEST, again=True).status == Status.QUEUED


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
    wait_for(row, Status.READY)


async def _provide(
    wanted: Wanted | None, *, seconds: float = 10, stopped: bool = False
) -> tuple[str, list[dict[str, Any]]]:
    """What a run gets, and the events that it is told of."""
    events: list[dict[str, Any]] = []
    stop = asyncio.Event()
    if stopped:
        stop.set()

    async def database(work: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(work)

    try:
        async with provided(
            wanted,
            database=database,
            record=lambda kind, payload: events.append(dict(payload)),
            deadline=time.monotonic() + seconds,
            stopped=stop,
        ) as base:
            return base, events
    finally:
        for event in events:
            assert event["environment"] == "tools"


WANTED = Wanted("tools", TEXT, DIGEST)


def test_a_run_without_an_environment_waits_for_nothing(builder: Builder) -> None:
    assert asyncio.run(_provide(None)) == ("", [])


def test_a_run_waits_for_the_build_and_the_next_one_does_not(builder: Builder) -> None:
    base, events = asyncio.run(_provide(WANTED))
    assert base == str(builds.store().find(DIGEST))
    assert events[0]["message"] == "Built on this machine first"
    assert events[-1]["done"] is True
    assert asyncio.run(_provide(WANTED)) == (base, [])
    assert builder.built == 1


def test_a_run_whose_environment_cannot_be_built_says_why(builder: Builder) -> None:
    builder.error = BuildFailed("Python packages: gone.")
    with pytest.raises(NotProvided, match=r"^The environment tools could not be built: Python pa"):
        asyncio.run(_provide(WANTED))


def test_a_run_that_is_stopped_or_out_of_time_leaves_the_build_to_go_on(builder: Builder) -> None:
    builder.go.clear()
    for way in ({"stopped": True}, {"seconds": 0.05}):
        with pytest.raises(GaveUp):
            asyncio.run(_provide(WANTED, **way))
    builder.go.set()
    wait_for(EnvironmentBuild.objects.get(), Status.READY)
    assert builder.built == 1


def _job(script: str = "true\n", **fields: Any) -> Job:
    environment = create_environment(actor=None, text=TEXT)
    return make_job(script=script, environment=environment, **fields)


def test_the_script_of_a_run_gets_its_environment(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_a_machine(monkeypatch)
    specs: list[Any] = []

    async def begin(argv: Any, spec: Any, **options: Any) -> Any:
        specs.append(spec)
        return await start_plainly(argv, spec, **options)

    monkeypatch.setattr(sandbox, "start", begin)
    run = execute(_job())
    assert (run.status, run.error) == ("succeeded", "")
    assert [spec.base for spec in specs] == [str(builds.store().find(DIGEST))]
    assert "sandbox.image_wait" in kinds(run)


def test_a_run_without_its_environment_fails_before_its_script(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_a_machine(monkeypatch)
    builder.error = BuildFailed("Python packages: gone.")
    run = execute(_job())
    assert run.status == "failed"
    assert run.error == "The environment tools could not be built: Python packages: gone."
    assert "script.exit" not in kinds(run)


def test_waiting_is_part_of_a_runs_time(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_machine(monkeypatch)
    builder.go.clear()
    run = execute(_job(timeout=1))
    assert (run.status, run.error) == ("timed_out", "the run reached its time limit of 1 second")


def test_a_run_is_cancelled_while_it_waits(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_a_machine(monkeypatch)
    builder.go.clear()
    run = make_run(_job())
    thread = start(run)
    wait_until(lambda: builder.built == 1)
    lifecycle.request_cancel(run.pk)
    thread.join(10)
    run.refresh_from_db()
    assert run.status == "cancelled"
    assert not thread.is_alive()


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
    with _steps(monkeypatch, failing, "touch x"), told:
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


def test_a_missing_tool_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    text = parse_definition("name: x\ndebian: [jq]\n")
    with pytest.raises(BuildFailed, match="this machine has no apt-get; lists of Debian packages"):
        asyncio.run(build_directory(text, Store(tmp_path), BuildLog(), lambda: False))
