"""The toolbox over the real engine and real processes: ends in every order, and late answers."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jobs import connections
from jobs.permission import Permission
from jobs.toolbox import NEVER_ANSWERED, ToolRefused
from servers.mcp.types import CallResult, ConnectionSettings
from servers.policy import Policy
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import EVENTS, FakeHttp, Reply, Request
from tests.fakes.spawner import BareSpawner
from tests.fakes.toolboxes import Bench

FAKE = Path(__file__).parents[1] / "fakes" / "mcp_server.py"
CAP = 30  # seconds after which a test that waits has failed


@pytest.fixture
def spawner(monkeypatch: pytest.MonkeyPatch) -> BareSpawner:
    made = BareSpawner()
    monkeypatch.setattr(connections, "get_spawner", lambda **_: made)
    return made


@pytest.fixture
async def bench(spawner: BareSpawner) -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    async with asyncio.timeout(CAP):
        for link in made.links.values():
            await link.close()
        await made.line.close()
    assert spawner.alive() == []


def attach(bench: Bench, name: str, **values: Any) -> None:
    settings = ConnectionSettings(
        name=name,
        transport="stdio",
        command=sys.executable,
        args=("-I", "-S", str(FAKE)),
        remembered={"transport": "stdio", "mode": "handshake"},
        **values,
    )
    bench.attach(name, settings=settings)


async def call(bench: Bench, server: str, tool: str, **arguments: Any) -> CallResult:
    async with asyncio.timeout(CAP):
        return await bench.box.call(server, tool, arguments)


@pytest.mark.parametrize(
    ("tool", "arguments", "outcomes"),
    [
        ("count", {}, ["unknown", "succeeded"]),
        ("fail", {}, ["unknown", "failed"]),
        ("exit", {"code": 3}, ["unknown"]),
        ("hang", {}, ["unknown"]),
    ],
)
async def test_a_call_that_may_have_happened_stays_open_on_the_run(
    bench: Bench, tool: str, arguments: dict[str, Any], outcomes: list[str]
) -> None:
    """P76, A49: the server died, or did not answer in time."""
    attach(bench, "a", tool_timeout=1.0 if tool == "hang" else 30.0)
    await call(bench, "a", tool, **arguments)
    assert [effect.outcome for effect in bench.recorder.effects] == outcomes


async def test_servers_may_die_and_close_in_any_order(
    bench: Bench, spawner: BareSpawner, caplog: pytest.LogCaptureFixture
) -> None:
    """F13, F15, C24: one dies, one is closed in mid-call, none of it concerns another."""
    for name in ("a", "b", "c"):
        attach(bench, name)
    assert (await call(bench, "a", "echo", n=1)).ok
    died = await call(bench, "b", "exit", code=3)
    assert not died.ok
    hanging = asyncio.create_task(call(bench, "a", "hang"))
    async with asyncio.timeout(CAP):
        while len(bench.recorder.of("tool.call")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await bench.links["a"].close()
        result = await hanging
    assert not result.ok
    assert (await call(bench, "c", "echo", n=2)).ok
    assert len(spawner.alive()) == 1
    gc.collect()  # what nobody retrieved would be reported now
    assert "never retrieved" not in caplog.text


async def test_a_cancelled_call_ends_once_and_its_server_goes_on(bench: Bench) -> None:
    attach(bench, "a")
    hanging = asyncio.create_task(call(bench, "a", "hang"))
    async with asyncio.timeout(CAP):
        while not bench.recorder.of("tool.call"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        hanging.cancel()
        await asyncio.wait({hanging})
    # The server has it, and the tool is not read-only (issue 3, section 3).
    assert [end["error"] for end in bench.recorder.of("tool.result")] == [
        f"{NEVER_ANSWERED}; the call may have happened"
    ]
    assert (await call(bench, "a", "echo", n=1)).ok


async def test_a_call_that_timed_out_keeps_its_slot_until_the_server_is_done(
    bench: Bench,
) -> None:
    """A50, and its other half: who waited is told that it may have happened."""
    attach(bench, "a", tool_timeout=1.0)
    assert (await call(bench, "a", "echo")).ok
    late = await call(bench, "a", "late")
    assert "may have happened" in late.error
    assert len(bench.store.tickets) == 1
    assert (await call(bench, "a", "release")).ok
    async with asyncio.timeout(CAP):
        while bench.store.tickets:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_arguments_that_do_not_fit_never_leave(bench: Bench) -> None:
    """And give their slot back."""
    attach(bench, "a", max_inflight=1)
    assert (await call(bench, "a", "echo", n=1)).ok
    deep: Any = 1
    for _ in range(80):
        deep = [deep]
    refused = await call(bench, "a", "count", deep=deep)
    assert not refused.ok
    counted = await call(bench, "a", "calls")
    assert "count" not in json.loads(counted.text)


async def test_a_list_that_changed_is_judged_before_the_call(bench: Bench) -> None:
    """A24, A34: a new tool is on nobody's list."""
    bench.now = Permission("creator", policy=Policy(allowed_tools=("change", "echo")))
    attach(bench, "a")
    assert (await call(bench, "a", "change")).ok
    with pytest.raises(ToolRefused):
        await call(bench, "a", "new")
    [changed] = bench.recorder.of("server.tools_changed")
    assert changed["added"] == ["new"]


async def test_a_process_that_ended_is_started_again_with_the_next_call(
    bench: Bench, spawner: BareSpawner
) -> None:
    """C06, F10: the call that it ended with fails in its words and is sent once."""
    attach(bench, "a")
    assert (await call(bench, "a", "count")).ok
    died = await call(bench, "a", "exit", code=7, words="out of memory\n")
    assert died.error.startswith("The server ended with exit code 7: out of memory. The call may")
    counted = await call(bench, "a", "calls")
    assert "count" not in json.loads(counted.text)  # another process
    assert len(spawner.alive()) == 1
    _, again = bench.recorder.of("server.connected")
    assert again["after"] == "The server ended with exit code 7: out of memory"


async def test_calls_of_a_process_that_died_between_them_do_not_fail(
    bench: Bench, spawner: BareSpawner
) -> None:
    attach(bench, "a")
    assert (await call(bench, "a", "echo", n=1)).ok
    [process] = spawner.started
    await process.kill()
    async with asyncio.timeout(CAP):
        while not bench.links["a"].lost:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert (await call(bench, "a", "echo", n=2)).ok


async def test_a_stream_that_ended_is_opened_again_with_the_next_use(bench: Bench) -> None:
    """B15: legacy SSE, whose stream is the session."""
    first, second = asyncio.Event(), asyncio.Event()
    ends = iter([first, second])

    def script(request: Request) -> Reply | None:
        if request.rpc == "tools/call" and request.message["params"]["name"] == "hang":
            first.set()
        if request.method == "GET":
            stream = _until(next(ends), server._standing_stream())
            return Reply(200, {"content-type": EVENTS}, stream)
        return None

    async with FakeHttp(transport="sse", script=script) as server:
        bench.attach("a", settings=http_settings(server.url, remembered={"transport": "sse"}))
        lost = await call(bench, "a", "hang")
        assert lost.error == "The server closed the event stream. The call may have happened."
        assert (await call(bench, "a", "echo", n=2)).ok
        assert len(server.gets()) == 2
        called = [r.message["params"]["name"] for r in server.requests if r.rpc == "tools/call"]
        assert called == ["hang", "echo"]
        await bench.links["a"].close()


async def _until(
    leave: asyncio.Event, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    leaving = asyncio.ensure_future(leave.wait())
    while True:
        chunk = asyncio.ensure_future(anext(chunks))
        done, _ = await asyncio.wait({chunk, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if leaving in done:
            chunk.cancel()
            return
        yield chunk.result()
