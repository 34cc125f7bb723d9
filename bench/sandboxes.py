"""What a sandbox costs: to its first output, and a stdio server in it beside a bare one.

The adapter is used in this process, as a worker uses it, with the limits that every job has. Each
figure stands beside the same command without a sandbox, by turns.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from bench import servers
from bench.report import Row, ms, spread
from jobs.network import NetworkRules
from jobs.sandbox.base import Limits, SandboxSpec
from jobs.sandbox.bubblewrap import Bubblewrap
from jobs.sandbox.egress.base import Egress
from jobs.sandbox.egress.rules import EgressRules
from jobs.sandbox.places import Places, system_python
from servers.mcp.types import ConnectionSettings, Spawner, StdioProcess

COMMANDS: dict[str, tuple[list[str], str]] = {
    "bash": (["bash", "-c", "echo up"], "≤ 15 ms"),
    "Python": ([system_python(), "-c", "print('up')"], "≤ 40 ms"),
}
NETWORKS = ("no network", "internet")
Start = Callable[[], Awaitable[float]]


def measure(rounds: int) -> list[Row]:
    """(i)"""
    with tempfile.TemporaryDirectory(prefix="umpteenth-bench-") as folder:
        Path(folder).chmod(0o755)
        adapter = Bubblewrap(Places(Path(folder), readonly=(servers.MODULES,)))
        if problem := adapter.problem():
            raise SystemExit(problem)
        rows = [row for name in COMMANDS for row in _first_output(adapter, name, 10 * rounds)]
        cores = float(os.cpu_count() or 1)
        whole = _server(adapter, cores, "≤ 1.05", 3 * rounds)
        return [*rows, whole, _server(adapter, Limits().cpus, "", 3 * rounds)]


def _first_output(adapter: Bubblewrap, name: str, rounds: int) -> list[Row]:
    command, aim = COMMANDS[name]
    rows = []
    for network in NETWORKS:
        spec = SandboxSpec(party="agent", network=False, egress=_egress(network == "internet"))

        async def inside(spec: SandboxSpec = spec) -> float:
            started = time.monotonic()
            process = await adapter.start(command, spec)
            try:
                await process.stdout.readline()
                return time.monotonic() - started
            finally:
                await process.kill()

        ours, theirs = asyncio.run(_by_turns(inside, lambda: _bare_output(command), rounds))
        detail = (
            f"{spread(ours)}; the same without a sandbox {ms(median(theirs))}, "
            f"{rounds} rounds, {median(ours) / median(theirs):.1f} times as long"
        )
        what = f"i. Sandbox to first output, {name}, {network}"
        rows.append(Row(what, f"{median(ours) * 1000:.1f} ms", aim, detail))
    return rows


def _egress(guarded: bool) -> Egress | None:
    rules = EgressRules(NetworkRules("internet"))
    return Egress(rules, lambda event: None) if guarded else None


async def _bare_output(command: Sequence[str]) -> float:
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    took = time.monotonic() - started
    await process.wait()
    return took


def _server(adapter: Bubblewrap, cpus: float, aim: str, rounds: int) -> Row:
    """A bare server has every core, so that one with fewer is not slowed by its sandbox alone."""
    from tests.fakes.spawner import BareSpawner

    [target] = servers.stdio(1)

    async def spawn(argv: Sequence[str], env: Mapping[str, str]) -> StdioProcess:
        limits = Limits(cpus=cpus)
        spec = SandboxSpec("mcp", network=False, egress=_egress(True), env=env, limits=limits)
        return await adapter.start(argv, spec)

    bare = BareSpawner()
    ours, theirs = asyncio.run(
        _by_turns(lambda: _connected(target, spawn), lambda: _connected(target, bare), rounds)
    )
    cores = f"{cpus:g} of {os.cpu_count()} cores"
    return Row(
        f"i. A stdio server's start, connect and list: in a sandbox ÷ bare, {cores}",
        f"{median(ours) / median(theirs):.2f}",
        aim,
        f"sandbox {ms(median(ours))} ({spread(ours)}), bare {ms(median(theirs))} "
        f"({spread(theirs)}), both by the engine, {rounds} rounds",
    )


async def _connected(target: servers.Target, spawn: Spawner) -> float:
    from servers.mcp.client import connect

    settings = ConnectionSettings(
        name=target.name, transport="stdio", command=target.command, args=target.args
    )
    started = time.monotonic()
    async with connect(settings, spawn=spawn) as connection:
        await connection.list_tools()
        return time.monotonic() - started


async def _by_turns(ours: Start, theirs: Start, rounds: int) -> tuple[list[float], list[float]]:
    """Once unmeasured on both sides: caches of files, first imports."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for times, start in zip(found, (ours, theirs), strict=True):
            took = await start()
            if number:
                times.append(took)
    return found
