"""Calls through a run's toolbox, without the script that usually makes them: for `bench.driver`.

The run is a row that looks claimed, so that the site's worker leaves it alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

JOB = "toolbox"


def calls(name: str, tool: str, arguments: dict[str, Any], parallel: int, count: int) -> float:
    """Seconds for `count` recorded calls of one server's tool, at most `parallel` at once."""
    from jobs import lifecycle
    from jobs.lifecycle import Outcome
    from jobs.models import Run

    run_id, token = _claimed_run(name)
    try:
        return asyncio.run(_measure(run_id, token, name, tool, arguments, parallel, count))
    finally:
        lifecycle.finish(run_id, token, Outcome(Run.Status.SUCCEEDED))


def _claimed_run(server: str) -> tuple[Any, str]:
    from jobs.models import Job, Run
    from jobs.services import AttachmentData, JobData, create_job
    from umpteenth.core.clock import database_now

    job = Job.objects.filter(name=JOB).first() or create_job(
        actor=None,
        data=JobData(
            name=JOB,
            script="#!/bin/bash\n",
            overlap="parallel",
            network=Job.Network.NONE,
            timeout=300,
            attachments=(AttachmentData(server),),
        ),
    )
    now, number = database_now(), Run.objects.filter(job=job).count() + 1
    token = f"bench-{number}"
    run = Run.objects.create(
        job=job,
        number=number,
        status=Run.Status.RUNNING,
        trigger=Run.Trigger.COMMAND,
        trust=Run.Trust.CREATOR,
        claim_token=token,
        heartbeat_at=now,
        queued_at=now,
        started_at=now,
    )
    return run.pk, token


async def _measure(
    run_id: Any,
    token: str,
    server: str,
    tool: str,
    arguments: dict[str, Any],
    parallel: int,
    count: int,
) -> float:
    from jobs.plan import make_plan
    from jobs.reach import Reach
    from jobs.timeline import Recorder
    from jobs.toolbox import CallMeter
    from umpteenth.core.masking import Masker

    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(1)

    async def database(work: Callable[[], Any]) -> Any:
        return await loop.run_in_executor(threads, work)

    recorder = Recorder(run_id, token, Masker({}))
    recorder.start(lambda: None)
    plan = await database(lambda: make_plan(run_id))
    meter = CallMeter(recorder)
    reach = Reach(plan, token, recorder, meter, database)
    try:
        await reach.toolbox.list_tools(server)
        left = iter(range(count))

        async def worker() -> None:
            for _ in left:
                result = await reach.toolbox.call(server, tool, arguments)
                if not result.ok:
                    raise RuntimeError(result.error)

        started = time.monotonic()
        await asyncio.gather(*(worker() for _ in range(parallel)))
        return time.monotonic() - started
    finally:
        await reach.close()
        meter.close()
        await asyncio.to_thread(recorder.close)
        await database(_close)
        threads.shutdown()


def _close() -> None:
    from django.db import connection

    connection.close()
