"""Runs that have an environment of their own, or wait for it (issue 5, section 1)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from django.db import connection

from jobs import lifecycle
from jobs.environments import builds
from jobs.environments.build import BuildFailed
from jobs.environments.provide import GaveUp, NotProvided, Wanted, provided
from jobs.environments.services import create_environment
from jobs.models import EnvironmentBuild, Job
from jobs.sandbox import base as sandbox
from tests.fakes.environments import DIGEST, TEXT, Builder, a_builder, ended
from tests.fakes.executions import execute, start, without_a_machine
from tests.fakes.runs import kinds, make_job, make_run, start_plainly
from umpteenth.core.connections import closing

pytestmark = pytest.mark.django_db(transaction=True)
Status = EnvironmentBuild.Status


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    with a_builder(monkeypatch) as found:
        yield found


# Whether this is the thread of a run that asks the database.
_asking: ContextVar[bool] = ContextVar("asking", default=False)


_asked: list[str] = []


def _noting(work: Callable[[], Any]) -> Any:
    def note(execute: Any, sql: str, *others: Any) -> Any:
        _asked.append(sql)
        return execute(sql, *others)

    with connection.execute_wrapper(note):
        return closing(work)


async def _provide(
    wanted: Wanted | None, *, seconds: float = 10, stopped: bool = False
) -> tuple[str, list[dict[str, Any]]]:
    """What a run gets, and the events that it is told of; its queries are in `_asked`."""
    _asked.clear()
    events: list[dict[str, Any]] = []
    stop = asyncio.Event()
    if stopped:
        stop.set()

    async def database(work: Callable[[], Any]) -> Any:
        asking = _asking.set(True)
        try:
            return await asyncio.to_thread(_noting, work)
        finally:
            _asking.reset(asking)

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
    ended(EnvironmentBuild.objects.get(), Status.READY)
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
    assert builder.begun.wait(10)
    lifecycle.request_cancel(run.pk)
    thread.join(10)
    run.refresh_from_db()
    assert run.status == "cancelled"
    assert not thread.is_alive()


def test_what_is_on_the_disk_is_not_looked_at_by_the_thread_of_the_database(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It carries the run's heartbeat, and a lock or an engine may take a minute."""
    looked: list[bool] = []
    hold = builds.hold

    @contextlib.contextmanager
    def noted(digest: str) -> Iterator[str | None]:
        looked.append(_asking.get())
        with hold(digest) as base:
            yield base

    monkeypatch.setattr(builds, "hold", noted)
    asyncio.run(_provide(WANTED))
    assert looked
    assert not any(looked)


def test_a_run_that_is_cancelled_while_it_waits_for_a_lock_leaves_none(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, go = threading.Event(), threading.Event()
    held: list[str] = []

    class Lock:  # not a generator, which would let go when it is forgotten
        def __enter__(self) -> str:
            waiting.set()
            assert go.wait(10)
            held.append("a lock")
            return "/base"

        def __exit__(self, *error: object) -> None:
            held.remove("a lock")

    async def cancelled() -> None:
        run = asyncio.create_task(_provide(WANTED))
        assert await asyncio.to_thread(waiting.wait, 10)
        run.cancel()
        for _ in range(20):
            await asyncio.sleep(0)  # the cancellation goes as far as it can before the lock comes
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await run

    monkeypatch.setattr(builds, "hold", lambda digest: Lock())
    asyncio.run(cancelled())
    assert held == []


def test_a_run_that_waits_does_not_read_the_log_again_and_again(builder: Builder) -> None:
    asyncio.run(_provide(WANTED))
    logs = [query for query in _asked if query.startswith("SELECT") and '"log"' in query]
    assert len(_asked) > len(logs) == 1
