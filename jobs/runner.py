"""Executes one run: connects its servers, runs its script in a sandbox, collects what it left.

A run has a thread of the worker with an event loop of its own, one recorder thread and one
thread for other questions to the database. Whatever happens, the run ends with a final state:
if not by this process, then by the sweep that finds its heartbeat missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError, connection

from jobs import endings, lifecycle, sandbox_events
from jobs.broker.server import Broker, new_token
from jobs.collect import collect
from jobs.egress_events import reporter
from jobs.environments.provide import GaveUp, NotProvided, provided
from jobs.handler import WITHOUT_MCP, RunHandler
from jobs.lifecycle import Outcome, Status
from jobs.plan import Plan, PlanError, make_plan
from jobs.reach import Reach
from jobs.sandbox import base as sandbox
from jobs.sandbox.network import network_of
from jobs.sandbox.runtime import socket_path
from jobs.sandbox.terms import Terms
from jobs.streams import Budget, OutputStream, catch_up
from jobs.timeline import LostClaim, Recorder
from jobs.toolbox import CallMeter
from jobs.workplace import Workplace, command
from umpteenth.core import deadlines
from umpteenth.core.config import get_options
from umpteenth.core.connections import closing, give_back
from umpteenth.core.masking import Masker

logger = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_INTERVAL = 1.0  # seconds between looks at the cancel flag
COLLECT_LIMIT = 120.0  # seconds for outputs
COLLECT_LIMIT_STOPPED = 5.0  # where somebody waits for the end
READ_AHEAD = 256 * 1024  # bytes of output that wait in memory; then the script waits
DRAIN_LIMIT = 5.0  # seconds for the rest of the output once all processes are gone
WORKER_STOPPED = "interrupted: the worker was stopped"
FINISH_ATTEMPTS = 5

_live: set[Execution] = set()
_live_lock = threading.Lock()


def execute(run_id: UUID, worker: str | None = None) -> bool:
    """Claim the run and execute it to its end. False where it is not ours to take."""
    from jobs.presence import worker_name

    give_back()
    token = lifecycle.claim(run_id, worker or worker_name())
    if token is None:
        return False
    Execution(run_id, token).run()
    return True


def interrupt_all(reason: str = WORKER_STOPPED) -> int:
    """Stop every run of this process soon; how many there are. From any thread."""
    with _live_lock:
        running = list(_live)
    for execution in running:
        execution.stop(Status.FAILED, reason)
    return len(running)


def wait_until_idle(timeout: float) -> bool:
    """Whether no run of this process is left, at the latest after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while _live and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _live


class Execution:
    """One claimed run in this process."""

    def __init__(self, run_id: UUID, token: str) -> None:
        self.run_id = run_id
        self.token = token
        self.recorder = Recorder(run_id, token, Masker({}))
        self._stopped: Outcome | None = None
        self._lost = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: asyncio.Event | None = None
        self._room = asyncio.Event()
        self._database = ThreadPoolExecutor(1, thread_name_prefix=f"run-{run_id}")
        self._handler: RunHandler | None = None

    def run(self) -> None:
        """Execute and finish; never raises."""
        with _live_lock:
            _live.add(self)
        # The worker's thread needs its connection again only at the very end.
        give_back()
        try:
            outcome = self._execute()
            if not self._lost and not self.recorder.lost.is_set():
                self._finish(outcome)
        except Exception:  # the sweep ends what could not be finished here
            logger.exception("run %s could not be finished", self.run_id)
        finally:
            with _live_lock:
                _live.discard(self)
            self._database.submit(_close)  # that thread's own
            self._database.shutdown(wait=False)
            give_back()

    def stop(self, status: str, reason: str) -> None:
        """End the run soon with this status; the first reason counts. From any thread."""
        if self._stopped is None:
            self._stopped = Outcome(status, reason)
        loop, event = self._loop, self._stop_event
        if loop is not None and event is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(event.set)

    def _execute(self) -> Outcome:
        try:
            return asyncio.run(self._main())
        except Exception as error:
            logger.exception("run %s broke", self.run_id)
            return Outcome(Status.FAILED, f"The run broke: {type(error).__name__}: {error}")
        finally:
            self.recorder.close()

    def _finish(self, outcome: Outcome) -> None:
        """A database that is away for a moment must not leave the run without its end."""
        for attempt in range(1, FINISH_ATTEMPTS + 1):
            try:
                if not lifecycle.finish(self.run_id, self.token, self._with_results(outcome)):
                    logger.warning("run %s was ended by somebody else", self.run_id)
                return
            except DatabaseError:
                connection.close()
                if attempt == FINISH_ATTEMPTS:
                    raise
                time.sleep(attempt)

    def _with_results(self, outcome: Outcome) -> Outcome:
        """What the script set counts also where it failed afterwards."""
        handler = self._handler
        mask = self.recorder
        return Outcome(
            outcome.status,
            mask.mask(outcome.error),
            mask.mask(handler.summary_text) if handler else "",
            mask.mask_json(handler.outputs) if handler else {},
        )

    async def _main(self) -> Outcome:
        self._loop = asyncio.get_running_loop()
        self._stop_event = asyncio.Event()
        if self._stopped is not None:  # stopped before there was a loop to tell
            self._stop_event.set()
        self.recorder.start(self._tell_room)
        guard = asyncio.create_task(self._guard())
        try:
            return await self._guarded()
        finally:
            # The recorder writes what waits while the heartbeat goes on.
            await asyncio.to_thread(self.recorder.close)
            guard.cancel()
            await asyncio.wait({guard})

    async def _guarded(self) -> Outcome:
        try:
            plan = await self.database(partial(make_plan, self.run_id))
        except PlanError as error:
            self.recorder.add_secrets(error.secrets)
            return self._failed(str(error))
        self.recorder.add_secrets(plan.secrets)
        # Inside, because starting one tells the machine's remedy.
        if problem := await asyncio.to_thread(sandbox.problem):
            return self._failed(problem)
        try:
            return await self._with_environment(plan)
        except (sandbox.SandboxError, NotProvided) as error:
            return self._failed(str(error))
        except GaveUp:
            return self._stopped or self._out_of_time(plan)

    async def _with_environment(self, plan: Plan) -> Outcome:
        """What it takes to build it is part of the run's time."""
        assert self._stop_event is not None
        async with provided(
            plan.environment,
            database=self.database,
            record=self.recorder.record,
            deadline=plan.deadline,
            stopped=self._stop_event,
        ) as base:
            return await self._with_servers(replace(plan, base=base))

    def _failed(self, message: str) -> Outcome:
        if self._stopped is not None:
            return self._stopped
        self.recorder.record("error", {"message": message})
        return Outcome(Status.FAILED, message)

    async def _with_servers(self, plan: Plan) -> Outcome:
        try:
            place = await asyncio.to_thread(self._make_place, plan)
        except OSError as error:  # a full or read-only disk
            logger.exception("run %s has no place on the disk", self.run_id)
            reason = error.strerror or type(error).__name__
            return self._failed(f"The run's directory could not be made on the worker: {reason}.")
        meter = CallMeter(self.recorder)
        reach = self._reach(plan, meter)
        toolbox = reach.toolbox if reach else None
        handler = RunHandler(plan.run, toolbox, self.recorder, meter, self.database)
        self._handler = handler
        try:
            outcome = await self._with_broker(plan, place, handler)
            await self._collect(place)
            return outcome
        finally:
            if reach:
                await reach.close()
            meter.close()
            await asyncio.to_thread(place.remove)

    def _reach(self, plan: Plan, meter: CallMeter) -> Reach | None:
        """None where the run goes without MCP: nothing of it is even made (U6)."""
        if plan.run.disable_mcp:
            self.recorder.record("log", {"message": WITHOUT_MCP})
            return None
        return Reach(plan, self.token, self.recorder, meter, self.database)

    def _make_place(self, plan: Plan) -> Workplace:
        base = get_options().data_dir / "runs"
        return Workplace.make(base, self.run_id, script=plan.script, input=plan.run.input)

    async def _with_broker(self, plan: Plan, place: Workplace, handler: RunHandler) -> Outcome:
        owner = sandbox.USER_IDS["agent"]
        token = new_token()
        self.recorder.add_secrets({"UMP_TOKEN": token})
        budget = Budget()
        streams = [
            OutputStream(name, self.recorder, budget, self._wait_for_room)
            for name in ("stdout", "stderr")
        ]
        before = partial(catch_up, streams)
        async with Broker(handler, token, socket_path(), owner=owner, before=before) as broker:
            env = {**plan.env, **broker.environment()}
            network = network_of(plan.network, reporter(self.recorder))
            spec = place.spec(env=env, socket=broker.socket_path, root=plan.run.job.run_as_root)
            spec = Terms(network, plan.base, plan.limits).applied_to(spec)
            started = time.monotonic()
            process = await sandbox.start(command(plan.script), spec, limit=READ_AHEAD)
            try:
                created = sandbox_events.created(
                    process.facts, plan, self.recorder, _ms_since(started)
                )
                begin = partial(lifecycle.begin, self.run_id, self.token, created)
                if not await self.database(begin):
                    self._lose()
                return await self._follow(process, streams, plan, handler)
            finally:
                ending = time.monotonic()
                await process.kill()
                self.recorder.record(sandbox_events.DESTROYED, ms=_ms_since(ending))

    async def _follow(
        self,
        process: sandbox.SandboxProcess,
        streams: Sequence[OutputStream],
        plan: Plan,
        handler: RunHandler,
    ) -> Outcome:
        process.stdin.close()
        started = time.monotonic()
        readers = (process.stdout, process.stderr)
        pumps = [
            asyncio.create_task(stream.follow(reader))
            for stream, reader in zip(streams, readers, strict=True)
        ]
        timed_out, code = await self._wait_for_end(process, plan.deadline)
        if code is None:
            await process.kill()
        _, late = await asyncio.wait(pumps, timeout=DRAIN_LIMIT)
        for pump in late:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        ended = process.ended if code is not None else None
        said: dict[str, Any] = {"code": code, "timed_out": timed_out}
        if ended is not None and (limit := endings.broken_limit(ended)):
            said["limit"] = limit
        self.recorder.record("script.exit", said, ms=_ms_since(started))
        if code is not None and process.fault:
            return Outcome(Status.FAILED, f"interrupted: {process.fault}")
        for message in endings.notices(ended) if ended else ():
            self.recorder.record("log", {"message": message})
        return self._outcome(ended, timed_out, plan, handler)

    async def _wait_for_end(
        self, process: sandbox.SandboxProcess, deadline: float
    ) -> tuple[bool, int | None]:
        """Whether the time was up, and the exit code unless the script was stopped."""
        assert self._stop_event is not None
        ended = asyncio.create_task(process.wait())
        stopped = asyncio.create_task(self._stop_event.wait())
        try:
            left = max(0.0, deadline - time.monotonic())
            done, _ = await asyncio.wait(
                {ended, stopped}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            return not done, ended.result() if ended in done else None
        finally:
            ended.cancel()
            stopped.cancel()

    def _outcome(
        self, ended: sandbox.Exit | None, timed_out: bool, plan: Plan, handler: RunHandler
    ) -> Outcome:
        """`ended`: how the script's sandbox did, None where it was stopped from here."""
        if ended is None and self._stopped is not None:
            return self._stopped
        if timed_out:
            return self._out_of_time(plan)
        if handler.failure:
            return Outcome(Status.FAILED, handler.failure)
        if ended is not None and (sentence := endings.failure(ended)):
            return Outcome(Status.FAILED, sentence)
        return Outcome(Status.SUCCEEDED)

    @staticmethod
    def _out_of_time(plan: Plan) -> Outcome:
        limit = f"{plan.timeout:,} second{'s' if plan.timeout != 1 else ''}"
        return Outcome(Status.TIMED_OUT, f"the run reached its time limit of {limit}")

    async def _collect(self, place: Workplace) -> None:
        limit = COLLECT_LIMIT if self._stopped is None else COLLECT_LIMIT_STOPPED
        work = partial(collect, self.run_id, self.token, place.outputs, self.recorder)
        try:
            async with deadlines.timeout(limit):
                # Not on the run's database thread: heartbeats go on while files are copied.
                await asyncio.to_thread(closing, work)
        except LostClaim:
            self._lose()
        except TimeoutError:
            message = f"The files in /ump/outputs could not be kept within {limit:.0f} seconds"
            self.recorder.record("error", {"message": message})
        except Exception as error:  # a full disk must not cost the run its end
            logger.exception("the outputs of run %s could not be kept", self.run_id)
            message = f"The files in /ump/outputs could not be kept: {type(error).__name__}"
            self.recorder.record("error", {"message": message})

    async def _guard(self) -> None:
        """Heartbeat and cancel flag, until the run is over."""
        beat_at = time.monotonic() + lifecycle.HEARTBEAT_INTERVAL
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            try:
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + lifecycle.HEARTBEAT_INTERVAL
                    if not await self.database(
                        partial(lifecycle.heartbeat, self.run_id, self.token)
                    ):
                        self._lose()
                if await self.database(partial(lifecycle.is_cancelled, self.run_id, self.token)):
                    self.stop(Status.CANCELLED, "")
            except LostClaim:
                self._lose()
            except DatabaseError:
                logger.warning("run %s: the database does not answer", self.run_id, exc_info=True)
            if self.recorder.lost.is_set():
                self._lose()

    def _lose(self) -> None:
        """Somebody else has ended this run: stop working and write nothing more."""
        self._lost = True
        self.recorder.lost.set()
        self.stop(Status.FAILED, lifecycle.STOPPED_RESPONDING)

    async def database(self, work: Callable[[], T]) -> T:
        """Run a function on this run's database thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._database, partial(_fresh, work))

    def _tell_room(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._room.set)

    async def _wait_for_room(self) -> None:
        while self.recorder.full and not self.recorder.lost.is_set():
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with deadlines.timeout(1):
                    await self._room.wait()


def _ms_since(started: float) -> float:
    return (time.monotonic() - started) * 1000


def _close() -> None:
    connection.close()


def _fresh(work: Callable[[], Any]) -> Any:
    """A connection that has failed is opened anew; a pooled one goes back afterwards."""
    try:
        return work()
    except DatabaseError:
        connection.close()
        raise
    finally:
        give_back()
