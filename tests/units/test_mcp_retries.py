"""Calls that a server asks to repeat: which, how often, and how long between."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.limits import RetryPolicy
from servers.mcp.errors import RpcError
from servers.mcp.retries import asks_to_retry, wait_before_next
from tests.fakes.mcp_helpers import Recorder, reached
from tests.fakes.mcp_server import Message

QUICK = RetryPolicy(attempts=3, base_ms=1, max_ms=2)
BUSY: Message = {"code": -32006, "message": "at capacity"}


async def attempts(connection: Any, tool: str) -> int:
    count: int = json.loads((await connection.call_tool("calls", {})).text).get(tool, 0)
    return count


@pytest.mark.parametrize(
    "error",
    [
        {"code": -32005, "message": "tool timed out"},
        BUSY,
        {"code": -32000, "message": "later", "data": {"retryable": True}},
        {"code": -32000, "message": "later", "data": {"retryable": 1}},
    ],
)
@pytest.mark.parametrize("way", ["stdio", "events modern"])
async def test_a_read_only_call_is_sent_again_when_the_server_asks(
    way: str, error: Message
) -> None:
    """U49, U50, U55."""
    observer = Recorder()
    async with reached(way, retry=QUICK, observer=observer) as connection:
        await connection.tools()
        result = await connection.call_tool("flaky", {"times": 2, "error": error})
        assert (result.ok, result.text, result.attempts) == (True, "done at last", 3)
        assert await attempts(connection, "flaky") == 3
    assert len(observer.notices) == 2
    assert observer.notices[0].endswith(f"asked: {error['message']} ({error['code']})")


async def test_after_the_last_attempt_the_error_is_the_result() -> None:
    """U55, U58: the first one counts."""
    async with reached("stdio", retry=QUICK) as connection:
        await connection.tools()
        result = await connection.call_tool("flaky", {"times": 9, "error": BUSY})
        assert (result.ok, result.error, result.attempts) == (False, "at capacity (-32006)", 3)
        assert await attempts(connection, "flaky") == 3


async def test_one_attempt_switches_retries_off() -> None:
    """U55."""
    async with reached("stdio", retry=RetryPolicy(attempts=1)) as connection:
        await connection.tools()
        assert not (await connection.call_tool("flaky", {"times": 1, "error": BUSY})).ok
        assert await attempts(connection, "flaky") == 1


async def test_a_call_that_may_change_something_is_not_sent_again() -> None:
    """U51, A49: the server's wish does not count."""
    async with reached("stdio", retry=QUICK) as connection:
        await connection.tools()
        error = {**BUSY, "data": {"retryable": True}}
        result = await connection.call_tool("flaky_write", {"times": 1, "error": error})
        assert (result.ok, result.attempts) == (False, 1)
        assert await attempts(connection, "flaky_write") == 1


async def test_a_tool_that_nobody_listed_is_not_known_to_be_read_only() -> None:
    """U51."""
    async with reached("stdio", retry=QUICK) as connection:
        assert not (await connection.call_tool("flaky", {"times": 1, "error": BUSY})).ok
        assert await attempts(connection, "flaky") == 1


async def test_a_tool_that_reports_an_error_is_not_called_again() -> None:
    """U50: only an error of the protocol is a request to repeat."""
    async with reached("stdio", retry=QUICK) as connection:
        await connection.tools()
        result = await connection.call_tool("raw", {"result": {"isError": True, "content": []}})
        assert (result.ok, result.attempts) == (False, 1)


async def test_a_wait_that_the_call_has_no_time_for_is_not_begun() -> None:
    """U53: `retry_after_ms` is the least, so the error is given at once."""
    error = {**BUSY, "data": {"retry_after_ms": 60_000}}
    async with reached("stdio", retry=QUICK) as connection:
        await connection.tools()
        result = await connection.call_tool("flaky", {"times": 1, "error": error}, timeout=20)
    assert (result.ok, result.attempts) == (False, 1)


async def test_waits_count_into_the_time_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 0: all attempts together have the call's limit."""
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    error = {**BUSY, "data": {"retry_after_ms": 200}}
    async with reached("stdio", retry=RetryPolicy(attempts=10)) as connection:
        await connection.tools()
        result = await connection.call_tool("flaky", {"times": 99, "error": error}, timeout=0.7)
    assert result.error == "at capacity (-32006)"
    assert 1 < result.attempts < 5


async def test_a_call_that_waits_for_its_next_attempt_can_be_cancelled() -> None:
    error = {**BUSY, "data": {"retry_after_ms": 50_000}}
    observer = Recorder()
    ended: list[bool] = []
    async with reached("stdio", retry=QUICK, observer=observer) as connection:
        await connection.tools()
        call = asyncio.create_task(
            connection.call_tool(
                "flaky", {"times": 1, "error": error}, settled=lambda: ended.append(True)
            )
        )
        while not observer.notices:
            await connection.call_tool("echo", {})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert ended == [True]


@pytest.mark.parametrize("code", [-32700, -32600, -32601, -32602, 401, 403, -32603, -32000, 0])
def test_what_is_wrong_however_often_it_is_sent_is_not_repeated(code: int) -> None:
    """U54: unknown method, bad arguments, anything about authentication."""
    hopeless = code not in (-32603, -32000, 0)
    assert not asks_to_retry(RpcError(code, "x"))
    assert asks_to_retry(RpcError(code, "x", {"retryable": True})) is not hopeless


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_the_credentials_is_not_repeated(status: int) -> None:
    """U54: even under a code that asks for it."""
    assert not asks_to_retry(RpcError(-32006, "x", {"retryable": True}, status=status))


@pytest.mark.parametrize("data", [None, [], "retryable", 1, {}, {"retryable": False}])
def test_other_errors_are_not_repeated(data: object) -> None:
    """U50."""
    assert wait_before_next(RpcError(-32000, "x", data), RetryPolicy(), 1) is None


@given(
    attempt=st.integers(1, 9),
    base=st.integers(1, 5000),
    most=st.integers(1, 60_000),
    floor=st.none() | st.integers(-5, 10**6) | st.floats(0, 10**6),
)
def test_waits_are_drawn_below_a_doubling_bound_and_above_what_the_server_asks(
    attempt: int, base: int, most: int, floor: float | None
) -> None:
    """U52, U53, U56, U57."""
    error = RpcError(-32006, "x", {"retry_after_ms": floor})
    wait = wait_before_next(error, RetryPolicy(10, base, most), attempt)
    assert wait is not None
    least = max(floor or 0, 0)
    assert least <= wait * 1000 * (1 + 1e-9)
    assert wait * 1000 <= max(min(most, base * 2 ** (attempt - 1)), least) * (1 + 1e-9)


@pytest.mark.parametrize("value", ["soon", None, True, [], -5, float("nan"), 10**400])
def test_a_strange_wish_for_a_wait_does_no_harm(value: object) -> None:
    """U53."""
    wait = wait_before_next(RpcError(-32006, "x", {"retry_after_ms": value}), RetryPolicy(), 1)
    assert wait is not None
    assert wait <= 0.25 or value == 10**400


def test_chance_spreads_the_waits_over_the_whole_range() -> None:
    """U52: full jitter, so that clients that failed together do not return together."""
    error = RpcError(-32006, "x")
    waits = [wait_before_next(error, RetryPolicy(3, 1000, 4000), 2) or 0.0 for _ in range(200)]
    assert min(waits) < 0.5
    assert max(waits) > 1.5
