"""When a call is over: its limit, progress, a person's time, and what nothing moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from servers.limits import PROGRESS_FACTOR, TimeLimit
from servers.mcp.clocks import Clock

LIMIT = TimeLimit(10, "tool_timeout_secs")
ENDLESS = TimeLimit(None, "tool_timeout_secs")


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The loop's time as clocks see it; their own timers still count for real."""
    fake = Time()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", fake)
    return fake


def left(clock: Clock) -> float | None:
    return clock.left


async def test_a_limit_counts_from_the_start(time: Time) -> None:
    clock = Clock(LIMIT)
    assert left(clock) == 10
    time.now += 4
    assert left(clock) == 6
    assert clock.words() == "10 seconds (tool_timeout_secs)"


async def test_progress_renews_the_limit_up_to_a_multiple_of_it(time: Time) -> None:
    """Section 0."""
    clock = Clock(LIMIT)
    for _ in range(11):
        time.now += 9
        clock.renew()
    assert left(clock) == 1
    assert (
        clock.words() == f"100 seconds ({PROGRESS_FACTOR} times tool_timeout_secs, with progress)"
    )


async def test_nothing_moves_the_deadline(time: Time) -> None:
    clock = Clock(LIMIT, deadline=time.now + 15)
    time.now += 9
    clock.renew()
    clock.pause()
    time.now += 5
    clock.resume()
    assert left(clock) == 1
    assert clock.words() == "15 seconds (the time left of the run)"


async def test_progress_does_not_move_a_request_limit_that_somebody_set(time: Time) -> None:
    """U40."""
    clock = Clock(LIMIT, cut=TimeLimit(12, "request_timeout_secs"))
    time.now += 9
    clock.renew()
    assert left(clock) == 3
    assert clock.words() == "12 seconds (request_timeout_secs)"


async def test_a_persons_time_is_not_the_servers(time: Time) -> None:
    """Questions that people answer, section 5 of issue 3."""
    clock = Clock(LIMIT, cut=TimeLimit(30, "request_timeout_secs"))
    time.now += 5
    clock.pause()
    clock.pause()
    time.now += 500
    assert left(clock) is None
    clock.resume()
    assert left(clock) is None
    clock.resume()
    assert left(clock) == 10
    time.now += 9
    clock.renew()
    time.now += 9
    clock.renew()
    assert left(clock) == 7  # of the thirty


async def test_a_lifted_limit_never_ends(time: Time) -> None:
    """U43."""
    clock = Clock(ENDLESS)
    clock.renew()
    assert left(clock) is None
    clock = Clock(ENDLESS, deadline=time.now + 3)
    assert left(clock) == 3


def limits() -> Iterator[Clock]:
    yield Clock(TimeLimit(0.05, "x"))
    yield Clock(ENDLESS, cut=TimeLimit(0.05, "x"))
    yield Clock(ENDLESS, deadline=asyncio.get_running_loop().time() + 0.05)


async def test_every_kind_of_limit_ends_the_block() -> None:
    """F06."""
    for clock in limits():
        with pytest.raises(TimeoutError):
            async with clock:
                await asyncio.Event().wait()


async def test_a_clock_that_stands_still_ends_nothing() -> None:
    clock = Clock(TimeLimit(0.05, "x"))
    async with clock:
        clock.pause()
        await asyncio.sleep(0.1)
        clock.resume()
