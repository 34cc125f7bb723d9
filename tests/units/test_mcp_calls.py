"""How long calls take, what happens to those that nobody waits for, and what is left in doubt."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from servers.limits import STANDARD, STRICT, RetryPolicy
from servers.mcp import calls
from servers.mcp import session as session_module
from servers.mcp.calls import IN_DOUBT, NOT_HAPPENED
from servers.mcp.client import Connection, connect
from servers.mcp.results import MANY_VALUES, read_result
from servers.mcp.types import CallResult, CallTimedOut, ConnectionLost, ServerError
from tests.fakes.mcp_helpers import (
    WAYS,
    Recorder,
    http_settings,
    reached,
    shell_settings,
    stdio_settings,
)
from tests.fakes.mcp_http import EVENTS, FakeHttp, Reply, Request
from tests.fakes.mcp_server import Behaviour
from tests.fakes.spawner import BareSpawner

SOON = 5  # seconds within which everything here must have ended


class Settled:
    """Counts how often a call was reported as settled."""

    def __init__(self) -> None:
        self.count = 0
        self.event = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self.event.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self.event.wait(), SOON)


def soon() -> float:
    return time.monotonic() + 0.2


async def call_counts(connection: Connection) -> dict[str, int]:
    counts: dict[str, int] = json.loads((await connection.call_tool("calls", {})).text)
    return counts


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_was_answered_is_settled_when_it_returns(way: str) -> None:
    """A50."""
    settled = Settled()
    async with reached(way) as connection:
        assert (await connection.call_tool("echo", {}, settled=settled)).ok
        assert settled.count == 1
    assert settled.count == 1


@pytest.mark.parametrize("way", ["stdio", "stdio modern", "events", "sse"])
async def test_a_call_that_timed_out_is_settled_once_its_late_answer_comes(way: str) -> None:
    """A50: the server ignores the cancellation, so the call's slot is not free yet."""
    settled = Settled()
    async with reached(way) as connection:
        with pytest.raises(CallTimedOut):
            # Soon over, while the silence that would settle it is long.
            await connection.call_tool("late", {}, timeout=60, deadline=soon(), settled=settled)
        await connection.call_tool("echo", {})
        assert settled.count == 0
        await connection.call_tool("release", {})
        await settled.wait()
    assert settled.count == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_timed_out_is_settled_after_as_much_silence_again(way: str) -> None:
    """A50: a server that obeys a cancellation says nothing more."""
    settled = Settled()
    async with reached(way) as connection:
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2, settled=settled)
        await settled.wait()
        assert (await connection.call_tool("echo", {})).ok
    assert settled.count == 1


@pytest.mark.parametrize("way", WAYS)
async def test_the_end_of_the_connection_settles_its_calls(way: str) -> None:
    """A50."""
    given_up, waiting = Settled(), Settled()
    async with reached(way) as connection:
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=60, deadline=soon(), settled=given_up)
        assert given_up.count == 0
        call = asyncio.create_task(connection.call_tool("hang", {}, settled=waiting))
        await connection.call_tool("echo", {})
    assert given_up.count == 1
    with pytest.raises(ConnectionLost, match="closed while the request was waiting"):
        await call
    assert waiting.count == 1


@pytest.mark.parametrize("way", ["stdio", "events", "sse"])
async def test_a_cancelled_call_holds_its_slot_until_the_server_is_done(way: str) -> None:
    """A50: the caller was cancelled, the server was told and goes on."""
    settled = Settled()
    async with reached(way) as connection:
        call = asyncio.create_task(connection.call_tool("late", {}, settled=settled))
        while "late" not in await call_counts(connection):
            pass
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert settled.count == 0
        await connection.call_tool("release", {})
        await settled.wait()
    assert settled.count == 1


async def test_a_call_that_cannot_be_sent_is_settled_at_once() -> None:
    """A50."""
    settled = Settled()
    async with reached("stdio") as connection:
        await connection.list_tools()
        with pytest.raises(ServerError):
            await connection.call_tool("echo", {"x": float("nan")}, settled=settled)
    assert settled.count == 1


@pytest.mark.parametrize("way", ["json", "events", "sse"])
async def test_closing_tells_the_server_first_that_its_calls_are_over(way: str) -> None:
    """Spec basic/utilities/cancellation; a run's cancel is passed on to all calls."""
    transport = "sse" if way == "sse" else "http"
    answer = "json" if way == "json" else "sse"
    async with FakeHttp(transport=transport, answer=answer) as server:
        async with connect(http_settings(server.url)) as connection:
            calls = [asyncio.create_task(connection.call_tool("hang", {})) for _ in range(3)]
            while (await call_counts(connection)).get("hang", 0) < 3:
                pass
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, ConnectionLost) for result in results)
        asked = [
            message["id"]
            for message in server.fake.received
            if message.get("params", {}).get("name") == "hang"
        ]
        assert sorted(server.fake.cancelled) == sorted(asked)


async def test_a_server_that_takes_no_cancellation_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "CANCEL_SECONDS", 0.1)

    async def script(request: Request) -> Reply | None:
        if request.rpc == "notifications/cancelled":
            await asyncio.Event().wait()
        return None

    async with FakeHttp(transport="sse", script=script) as server:
        async with connect(http_settings(server.url)) as connection:
            call = asyncio.create_task(connection.call_tool("hang", {}))
            while "hang" not in await call_counts(connection):
                pass
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(call, SOON)


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_timed_out_is_executed_exactly_once(way: str) -> None:
    """F10, A49."""
    async with reached(way, retry=RetryPolicy(attempts=3)) as connection:
        await connection.list_tools()
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2)
        assert (await call_counts(connection))["hang"] == 1


@pytest.mark.parametrize("way", ["stdio modern", "events", "sse"])
async def test_the_deadline_ends_a_call_and_progress_does_not_move_it(way: str) -> None:
    """Section 0: progress renews a call's limit, but never past the run's."""
    async with reached(way) as connection:
        deadline = time.monotonic() + 0.3
        with pytest.raises(CallTimedOut, match="the time left of the run"):
            await connection.call_tool(
                "progress", {"steps": 1000, "interval": 0.05}, timeout=30, deadline=deadline
            )


async def test_a_call_after_the_deadline_is_not_sent() -> None:
    async with reached("stdio") as connection:
        with pytest.raises(CallTimedOut) as caught:
            await connection.call_tool("count", {}, deadline=time.monotonic() - 1)
        assert IN_DOUBT not in caught.value.message
        assert "count" not in await call_counts(connection)


@pytest.mark.parametrize("way", ["stdio", "events modern", "sse"])
async def test_progress_renews_the_limit_of_a_call_and_is_passed_on_in_order(way: str) -> None:
    """Section 0: a call that reports progress may take longer than its limit."""
    seen: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with reached(way) as connection:
        result = await connection.call_tool(
            "progress", {"steps": 8, "interval": 0.1}, timeout=0.6, on_progress=note
        )
    assert result.text == "done"
    assert seen == [(float(step), f"step {step}") for step in range(1, 9)]


async def test_a_progress_callback_that_fails_costs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(progress: float, total: float | None, message: str | None) -> None:
        raise RuntimeError("the page is gone")

    async with reached("stdio") as connection:
        result = await connection.call_tool(
            "progress", {"steps": 2, "interval": 0}, on_progress=fail
        )
    assert result.ok
    assert "the page is gone" in caplog.text


@pytest.mark.parametrize(
    "params",
    [
        '{"progressToken": 3, "progress": 1' + "0" * 400 + "}",
        '{"progressToken": 3, "progress": "much"}',
        '{"progressToken": 3}',
        '{"progressToken": "3", "progress": true}',
        '{"progressToken": 99, "progress": 1}',
        '{"progressToken": {"a": 1}, "progress": 1}',
        '{"progressToken": "' + "9" * 5000 + '", "progress": 1}',
        "[]",
        '{"progressToken": 3, "progress": NaN}',
        '{"progressToken": 3, "progress": 1e400}',
    ],
)
async def test_progress_of_any_shape_harms_no_call(params: str) -> None:
    """F06: a number that no machine holds ended the whole connection."""
    line = f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}\n'
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with reached("stdio") as connection:
        result = await connection.call_tool("bytes", {"hex": line.encode().hex()}, on_progress=note)
        assert result.text == "written"
        assert (await connection.call_tool("echo", {})).ok
    assert seen == []


@pytest.mark.parametrize(
    ("tool", "doubt"), [("sleep", True), ("echo", False)], ids=["writes", "read-only"]
)
async def test_a_time_out_says_whether_the_call_may_have_happened(tool: str, doubt: bool) -> None:
    """A49: a call to a read-only tool changes nothing, happened or not."""

    async def silence(request: Request) -> Reply | None:
        if request.rpc == "tools/call":
            await asyncio.Event().wait()
        return None

    async with (
        FakeHttp(script=silence) as server,
        connect(http_settings(server.url)) as connection,
    ):
        await connection.list_tools()
        with pytest.raises(CallTimedOut) as caught:
            await connection.call_tool(tool, {}, timeout=0.1)
    assert "within 0.1 seconds (the limit given with this call)" in caught.value.message
    assert (IN_DOUBT in caught.value.message) is doubt


BROKEN = Reply(200, {"content-type": EVENTS}, b": hello\n\n")
HTML = Reply(200, {"content-type": "text/html"}, b"<h1>Oops</h1>")


@pytest.mark.parametrize(
    ("reply", "doubt"),
    [
        (BROKEN, True),
        (HTML, True),
        (Reply(502, {}, b"bad gateway"), True),
        (Reply(504), True),
        (Reply(500), True),
        (Reply(400, {}, b"no"), False),
        (Reply(401), False),
        (Reply(403), False),
        (Reply(429), False),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
async def test_a_failed_call_says_whether_it_may_have_happened(reply: Reply, doubt: bool) -> None:
    """A49, B15: a gateway that gives up says nothing of the server behind it."""

    def script(request: Request) -> Reply | None:
        return reply if request.rpc == "tools/call" else None

    async with (
        FakeHttp(script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        await connection.list_tools()
        with pytest.raises(ServerError) as caught:
            await connection.call_tool("count", {})
        assert (IN_DOUBT in caught.value.message) is doubt
        assert server.rpcs().count("tools/call") == 1
        with pytest.raises(ServerError) as caught:
            await connection.call_tool("echo", {})
        assert IN_DOUBT not in caught.value.message


async def test_a_server_that_cannot_be_reached_any_more_got_no_call() -> None:
    server = await FakeHttp(sessions=False).__aenter__()
    async with connect(http_settings(server.url)) as connection:
        await server.__aexit__(None, None, None)
        with pytest.raises(ServerError) as caught:
            await connection.call_tool("count", {})
    assert "refused the connection" in caught.value.message
    assert IN_DOUBT not in caught.value.message


async def test_a_call_on_a_connection_that_ended_is_not_in_doubt() -> None:
    """C06: the first one saw the end, the second was never sent."""
    async with reached("stdio") as connection:
        before = connection.ended
        with pytest.raises(ConnectionLost) as caught:
            await connection.call_tool("exit", {"code": 4})
        assert (before, connection.ended) == (False, True)
        assert caught.value.message == f"The server ended with exit code 4. {IN_DOUBT}"
        with pytest.raises(ConnectionLost) as caught:
            await connection.call_tool("count", {})
        assert caught.value.message == f"The server ended with exit code 4. {NOT_HAPPENED}"


@pytest.mark.parametrize(
    ("options", "tool", "seconds", "words"),
    [
        ({}, "echo", 120, "the default of tool_timeout_secs"),
        ({"limits": STRICT}, "deep_research", 30, "the limits profile"),
        ({"limits": STRICT, "tool_timeout": 60.0}, "echo", 60, "tool_timeout_secs"),
        ({"limits": STRICT, "tool_timeout": 0.0}, "echo", None, "tool_timeout_secs"),
        ({"limits": STRICT, "request_timeout": 20.0}, "echo", 20, "request_timeout_secs"),
        ({"limits": STANDARD, "request_timeout": 0.0}, "echo", 120, "the default"),
    ],
)
def test_the_profile_stands_in_for_a_limit_that_nobody_set(
    options: dict[str, object], tool: str, seconds: float | None, words: str
) -> None:
    """A37, U44-U48."""
    limit = http_settings("http://h/mcp", **options).call_limit(tool)
    assert limit.seconds == seconds
    assert limit.option.startswith(words)


async def test_a_request_limit_that_somebody_set_is_not_renewed_by_progress() -> None:
    """U40, U42: it bounds the whole exchange of a POST."""
    async with reached("events", request_timeout=0.5) as connection:
        with pytest.raises(CallTimedOut, match=r"within 0\.5 seconds \(request_timeout_secs\)"):
            await connection.call_tool("progress", {"steps": 1000, "interval": 0.05})


@pytest.mark.parametrize("way", ["json", "events", "sse"])
async def test_a_server_that_answers_by_drops_is_bounded_by_the_total_time(way: str) -> None:
    """F06."""

    async def drip() -> AsyncGenerator[bytes, None]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    kind = "application/json" if way == "json" else EVENTS

    def script(request: Request) -> Reply | None:
        slow = request.rpc == "tools/call" and way != "sse"
        return Reply(200, {"content-type": kind}, drip()) if slow else None

    transport = "sse" if way == "sse" else "http"
    async with (
        FakeHttp(transport=transport, script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.3)


async def test_one_dead_server_delays_no_other() -> None:
    """F01: they are connected in parallel; the total is the slowest, not the sum."""
    mute = stdio_settings(Behaviour(start="mute"), start_timeout=0.4)
    missing = shell_settings("exit 9")
    done: list[str] = []

    async def use(name: str, settings: object) -> None:
        try:
            async with connect(settings, spawn=BareSpawner()) as connection:  # type: ignore[arg-type]
                await connection.call_tool("echo", {})
        finally:
            done.append(name)

    names = {"mute": mute, "missing": missing, "good": stdio_settings(), "fine": stdio_settings()}
    results = await asyncio.gather(
        *(use(name, settings) for name, settings in names.items()), return_exceptions=True
    )
    failed = [isinstance(result, ServerError) for result in results]
    assert failed == [True, True, False, False]  # F13


async def test_a_call_cancelled_in_the_middle_leaves_its_connection_whole() -> None:
    """F15."""
    observer = Recorder()
    async with reached("stdio", observer=observer) as connection:
        for _ in range(20):
            call = asyncio.create_task(connection.call_tool("hang", {}))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert (await connection.call_tool("echo", {})).ok


@pytest.mark.parametrize(("values", "beside"), [(10, False), (MANY_VALUES, True)])
async def test_a_result_of_many_values_is_read_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, values: int, beside: bool
) -> None:
    """F06: whoever else is served by the process goes on meanwhile."""
    threads: list[int] = []

    def read(*args: Any) -> CallResult:
        threads.append(threading.get_ident())
        return read_result(*args)

    monkeypatch.setattr(calls, "read_result", read)
    async with reached("stdio") as connection:
        result = await connection.call_tool("echo", {"n": [0] * values})
    assert result.structured == {"n": [0] * values}
    assert (threads != [threading.get_ident()]) is beside
