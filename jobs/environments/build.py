"""Makes the directory of an environment, in sandboxes with internet through the guarded proxy.

What the packages' own scripts do there they do as a user without rights, and all that is left of
it is the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from jobs.environments.definition import Definition
from jobs.environments.log import BuildLog
from jobs.environments.recipe import INSTALLED, SCRATCH, Step, steps_of, variables_of
from jobs.environments.store import Store
from jobs.sandbox import base as sandbox
from jobs.sandbox import bases
from jobs.sandbox.base import Bind, Limits, SandboxSpec
from jobs.sandbox.disk import used_bytes
from jobs.sandbox.egress.base import EgressEvent
from jobs.sandbox.inside import SEARCH_PATH
from jobs.sandbox.network import network_for_packages
from jobs.sandbox.places import find_uv
from umpteenth.core import deadlines
from umpteenth.core.config import get_options

READ_AHEAD = 256 * 1024  # bytes of output that wait in memory
MEMORY = 4096 * 1024**2  # bytes; compilers may need it
PROCESSES = 2000
LOOK_EVERY = 0.2  # seconds between looks whether to stop
_LIMITS = "what an environment may take is sandbox.environment_size"
_DPKG_STATUS = Path("/var/lib/dpkg/status")


class BuildFailed(Exception):
    """The environment could not be made; one sentence."""


class Stopped(BuildFailed):
    """Somebody wants the builder to end."""

    def __init__(self) -> None:
        super().__init__("The worker was stopped while it built this environment.")


async def build_directory(
    definition: Definition, store: Store, log: BuildLog, stopping: Callable[[], bool]
) -> int:
    """Make it and put it in its place; its size in bytes. Raises `BuildFailed`."""
    limit = get_options().sandbox.environment_time_limit
    made = contextlib.ExitStack()
    try:
        new = await asyncio.to_thread(made.enter_context, store.making())
        async with deadlines.timeout(limit):
            for step in steps_of(definition):
                await _carry_out(step, new, log, stopping)
        size = await asyncio.to_thread(used_bytes, [new / "root"])
        check_size(size)  # also too much is what has too many files to count
        await asyncio.to_thread(store.keep, new, definition.digest)
        return size
    except TimeoutError:
        raise BuildFailed(too_long(limit)) from None
    finally:
        await asyncio.to_thread(made.close)


def check_size(size: int) -> None:
    """Raises `BuildFailed`."""
    if size > _size_limit():
        raise BuildFailed(
            f"The environment takes more than {_size_limit() // 1024**2:,} MiB ({_LIMITS})."
        )


def _size_limit() -> int:
    return get_options().sandbox.environment_size * 1024**2


def too_long(limit: int) -> str:
    return (
        f"The environment was not built within {limit:,} seconds (sandbox.environment_time_limit)."
    )


async def _carry_out(step: Step, new: Path, log: BuildLog, stopping: Callable[[], bool]) -> None:
    _check_tools(step)
    log.begin(step.title)
    started = time.monotonic()
    process = await sandbox.start(step.argv, _spec(step, new, log), limit=READ_AHEAD)
    watch = asyncio.create_task(_end_when(process, stopping))
    try:
        process.stdin.close()
        await asyncio.gather(_copy(process.stdout, log), _copy(process.stderr, log))
        code = await process.wait()
    finally:
        watch.cancel()
        await process.kill()
    if stopping():
        raise Stopped
    if process.verdict:
        raise BuildFailed(f"{step.title}: {process.verdict} ({_LIMITS}).")
    if process.fault:
        raise BuildFailed(f"{step.title}: {process.fault}.")
    if code:
        raise BuildFailed(f"{step.title}: ended with exit code {code}. {log.last_words()}".strip())
    log.add(f"Done in {time.monotonic() - started:.1f} s")


async def _end_when(process: sandbox.SandboxProcess, stopping: Callable[[], bool]) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY)
        if stopping():
            await process.kill()
            return


async def _copy(reader: asyncio.StreamReader, log: BuildLog) -> None:
    while data := await reader.read(64 * 1024):
        log.write(data)


def _spec(step: Step, new: Path, log: BuildLog) -> SandboxSpec:
    def report(event: EgressEvent) -> None:
        if event.kind != "opened":
            log.add(f"network: {event.host} port {event.port}: {event.reason}")

    binds = [Bind(new / "root", bases.INSIDE, True), Bind(new / "scratch", SCRATCH, True)]
    if _DPKG_STATUS.exists():
        binds.append(Bind(_DPKG_STATUS, INSTALLED))
    network = network_for_packages(report)
    return SandboxSpec(
        party="agent",
        network=network.unrestricted,
        egress=network.egress,
        binds=tuple(binds),
        # What is there already: a library of Debian's for a package that is compiled, say.
        env={**bases.variables(new / "root", SEARCH_PATH), **variables_of(step)},
        limits=Limits(cpus=2, memory=MEMORY, processes=PROCESSES, disk=_size_limit()),
    )


def _check_tools(step: Step) -> None:
    there = find_uv() if step.needs == "uv" else shutil.which(step.needs)
    if not there:
        raise BuildFailed(f"{step.title}: this machine has no {step.needs}; {step.remedy}.")
