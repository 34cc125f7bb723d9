"""The environment of a run: found on this machine's disk, or built while the run waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jobs.environments import builds
from jobs.models import EnvironmentBuild
from umpteenth.core import deadlines
from umpteenth.core.connections import Database

LOOK_EVERY = 0.5  # seconds
WAIT_EVENT = "sandbox.image_wait"

Record = Callable[[str, Mapping[str, Any]], None]


class NotProvided(Exception):
    """The run cannot have its environment; one sentence."""


class GaveUp(Exception):
    """The run was stopped, or its time was over, before its environment was there."""


@dataclass(frozen=True)
class Wanted:
    """What a job uses in place of the default environment."""

    name: str
    definition: str
    digest: str


@contextlib.asynccontextmanager
async def provided(
    wanted: Wanted | None,
    *,
    database: Database,
    record: Record,
    deadline: float,
    stopped: asyncio.Event,
) -> AsyncIterator[str]:
    """What `SandboxSpec.base` is to be; it stays on the disk until this is left.

    The building goes on for others where this run gives up. `deadline` is on the monotonic
    clock. Raises `NotProvided` or `GaveUp`.
    """
    if wanted is None:
        yield ""
        return
    with contextlib.ExitStack() as held:
        base = await _hold(wanted, held)
        if base is None:
            await _built(wanted, database, record, deadline, stopped)
            base = await _hold(wanted, held)
        if base is None:
            raise NotProvided(f"The environment {wanted.name} went away while the run started.")
        yield base


async def _hold(wanted: Wanted, held: contextlib.ExitStack) -> str | None:
    """Not on the run's database thread, which carries its heartbeat: an engine may be slow."""
    entering = asyncio.create_task(
        asyncio.to_thread(held.enter_context, builds.hold(wanted.digest))
    )
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        # `held` is closed then, and a lock that came after that would stay.
        await asyncio.wait({entering})
        raise


async def _built(
    wanted: Wanted,
    database: Database,
    record: Record,
    deadline: float,
    stopped: asyncio.Event,
) -> None:
    started = time.monotonic()
    said = {"environment": wanted.name}
    record(WAIT_EVENT, {**said, "message": "Built on this machine first"})
    row = await database(partial(builds.request_here, wanted.definition, wanted.digest))
    step = ""
    while row.status in EnvironmentBuild.UNFINISHED:
        await database(partial(builds.begin, row))
        if time.monotonic() >= deadline:
            raise GaveUp
        with contextlib.suppress(TimeoutError):
            async with deadlines.timeout(LOOK_EVERY):
                await stopped.wait()
            raise GaveUp
        # Without the log, which may be long and is looked at twice a second.
        try:
            await database(partial(row.refresh_from_db, fields=["status", "step", "error"]))
        except EnvironmentBuild.DoesNotExist:  # nobody has this content by a name any more
            return
        if row.step and row.step != step:
            step = row.step
            record(WAIT_EVENT, {**said, "message": step})
    if row.status != EnvironmentBuild.Status.READY:
        why = row.error or "it was removed while it was built."
        raise NotProvided(f"The environment {wanted.name} could not be built: {why}")
    seconds = round(time.monotonic() - started, 1)
    record(WAIT_EVENT, {**said, "done": True, "seconds": seconds})
