"""The MCP engine beside the bare SDK: single calls, connecting to many, one that hangs, long lists.

The engine's own figures are taken in a process that talks to the same servers as the SDK, without
a sandbox between; those of a run come from a whole site.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from bench import bare, servers
from bench.report import Row, ms, spread
from bench.servers import ARGUMENTS, TOOL, Target
from bench.site import PROJECT, Site, end
from bench.speed import prepare
from servers.limits import Limits
from servers.mcp.types import ConnectionSettings

PARALLEL = (1, 8, 32)
CALLS = 128  # of one round
MANY = 5_000  # tools
# (what, the tool of the fake server, its arguments)
WORK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("takes 20 ms", "sleep", {"seconds": 0.02}),
    ("takes none", "echo", {"message": "hi"}),
)


@contextlib.contextmanager
def fake(behaviour: dict[str, Any] | None = None) -> Iterator[str]:
    """The fake server of the tests as a process of its own: its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.mcp_http", json.dumps({"behaviour": behaviour or {}})],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        end(process)


def calls(here: Site, rounds: int) -> list[Row]:
    """(e): calls of one tool through a run's toolbox and through the SDK, by turns."""
    rows = []
    with fake() as url:
        here.ask("add_server", name="calls", command="", args=[], url=url, inflight=max(PARALLEL))
        for what, tool, arguments in WORK:
            for parallel in PARALLEL:
                plan = _plan(tool, arguments, parallel)
                here.ask("toolbox_calls", name="calls", **plan)  # once unmeasured on both sides
                bare.calls(url, **plan)
                ours, theirs = [], []
                for _ in range(rounds):
                    ours.append(here.ask("toolbox_calls", name="calls", **plan))
                    theirs.append(bare.calls(url, **plan))
                rows.append(_row_of_calls(what, parallel, ours, theirs))
    return rows


def _plan(tool: str, arguments: dict[str, Any], parallel: int) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments, "parallel": parallel, "count": CALLS}


def _row_of_calls(what: str, parallel: int, ours: list[float], theirs: list[float]) -> Row:
    each = 1000 / CALLS
    return Row(
        f"e. A call through the toolbox ÷ the bare SDK, {parallel} at once, server {what}",
        f"{median(ours) / median(theirs):.2f}",
        "≤ 1.10" if "20" in what else "",
        f"{median(ours) * each:.2f} ms and {median(theirs) * each:.2f} ms a call of {CALLS}; "
        f"rounds {spread(ours)} and {spread(theirs)} ms",
    )


def connect_and_list(rounds: int) -> list[Row]:
    """(f): eight servers at once through the engine and through the SDK."""
    rows = []
    with servers.http() as addresses:
        for kind, targets in (("stdio", servers.stdio()), ("http", addresses)):
            _engine_round(targets)
            bare.connect_list(targets)
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(_engine_round(targets))
                theirs.append(bare.connect_list(targets))
            rows.append(
                Row(
                    f"f. Connect + list of {len(targets)} {kind} servers: engine ÷ bare SDK",
                    f"{median(ours) / median(theirs):.2f}",
                    "≤ 1.15",
                    f"engine {ms(median(ours))} ({spread(ours)}), bare SDK {ms(median(theirs))} "
                    f"({spread(theirs)}), {rounds} rounds; what worked is remembered, as in use",
                )
            )
    return rows


_remembered: dict[str, dict[str, Any]] = {}


def _engine_round(targets: Sequence[Target]) -> float:
    """Seconds until the last of all servers has listed its tools."""

    async def all_at_once() -> float:
        started = time.monotonic()
        return max(await asyncio.gather(*map(_engine_lists, targets))) - started

    return asyncio.run(all_at_once())


async def _engine_lists(target: Target) -> float:
    from servers.mcp.client import connect
    from tests.fakes.spawner import BareSpawner

    settings = ConnectionSettings(
        name=target.name,
        transport="http" if target.url else "stdio",
        url=target.url,
        command=target.command,
        args=target.args,
        remembered=_remembered.get(target.name, {}),
    )
    async with connect(settings, spawn=BareSpawner()) as connection:
        await connection.list_tools()
        listed = time.monotonic()
        _remembered[target.name] = connection.remembered
    return listed


def one_hangs(here: Site, rounds: int) -> list[Row]:
    """(g): five servers of a run beside a sixth that accepts and never answers."""
    with servers.http(5) as targets, _mute() as mute:
        prepare(here, "five", targets, overlap="skip")
        here.ask("add_server", name="mute", command="", args=[], url=mute)
        script = "\n".join(
            [
                "#!/bin/bash",
                *(f"ump mcp call {t.name} {TOOL} '{json.dumps(ARGUMENTS)}' &" for t in targets),
                "wait",
                "",
            ]
        )
        names = [*(target.name for target in targets), "mute"]
        here.ask("add_job", name="six", script=script, servers=names, overlap="skip")
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(rounds):
            for job, found in (("five", alone), ("six", beside)):
                run = here.ask("run", name=job)[0]
                found.append(run["results"][-1] - run["claimed"])
    return [
        Row(
            "g. Five of six servers usable while one hangs",
            ms(median(beside)),
            "as without it",
            f"from the claim to the fifth result ({spread(beside)}); without the hanging one "
            f"{ms(median(alone))} ({spread(alone)}), {rounds} rounds",
        )
    ]


@contextlib.contextmanager
def _mute() -> Iterator[str]:
    """An address whose server takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"


def many_tools(here: Site, rounds: int) -> list[Row]:
    """(h): a server with thousands of tools is listed, stored and shown."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = [
        {"name": f"tool_{n}", "description": f"Does thing {n}", "inputSchema": schema}
        for n in range(MANY)
    ]
    from tests.fakes.mcp_http import FakeHttp, running
    from tests.fakes.mcp_server import Behaviour

    with running(FakeHttp(Behaviour(tools=tools, page_size=250))) as server:
        listed = [_timed(lambda: _list_all(server.url)) for _ in range(rounds)]
        here.ask("add_server", name="many", command="", args=[], url=server.url, tools=MANY)
        found = [here.ask("test", name="many") for _ in range(rounds)]
    cookie = "; ".join(f"{name}={value}" for name, value in here.ask("sign_in").items())
    page = here.ask("page_of_server", name="many")
    _fetch(here, page, cookie)
    shown = [_timed(lambda: _fetch(here, page, cookie)) for _ in range(rounds)]
    return [
        Row(f"h. {MANY:,} tools: list", ms(median(listed)), "", f"engine alone, {spread(listed)}"),
        Row(
            f"h. {MANY:,} tools: a whole Test",
            ms(median(found)),
            "",
            f"connect, list, compare and store, {spread(found)}",
        ),
        Row(f"h. {MANY:,} tools: the server's page", ms(median(shown)), "", spread(shown)),
    ]


def _list_all(url: str) -> None:
    from servers.mcp.client import connect

    async def work() -> None:
        settings = ConnectionSettings(
            name="many", transport="http", url=url, limits=Limits(tools=MANY)
        )
        async with connect(settings) as connection:
            count = len((await connection.list_tools()).tools)
        if count != MANY:
            raise RuntimeError(f"{count} tools were listed")

    asyncio.run(work())


def _timed(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _fetch(here: Site, page: str, cookie: str) -> None:
    request = urllib.request.Request(here.address + page, headers={"Cookie": cookie})
    urllib.request.urlopen(request, timeout=30).read()
