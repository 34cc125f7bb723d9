"""What is known of a call until the server is surely done with it (A50)."""

from __future__ import annotations

import asyncio

import pytest

from servers.limits import TOOL_TIMEOUT, TimeLimit
from servers.mcp.clocks import Clock
from servers.mcp.ongoing import MAX_PROGRESS_TEXT, MAX_PROGRESS_WAITING, Ongoing

LIMIT = TimeLimit(10, "tool_timeout_secs")
Report = tuple[float, float | None, str | None]


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", fake)
    return fake


async def test_a_call_is_settled_when_the_last_holder_lets_go() -> None:
    settled: list[bool] = []
    ongoing = Ongoing(Clock(LIMIT), LIMIT, settled=lambda: settled.append(True))
    ongoing.hold()
    ongoing.release()
    assert settled == []
    ongoing.release()
    assert settled == [True]


async def test_a_server_that_goes_on_reporting_is_not_silent(time: Time) -> None:
    """A call that was cancelled in vain keeps its slot for as long as the server is at work."""
    ongoing = Ongoing(Clock(LIMIT), LIMIT)
    ongoing.give_up()
    assert ongoing.seconds_of_silence_left == 10
    time.now += 9
    ongoing.progress(1, None, None)
    assert ongoing.seconds_of_silence_left == 10
    for _ in range(20):
        time.now += 9
        ongoing.progress(1, None, None)
    assert ongoing.seconds_of_silence_left < 0  # but not for ever


async def test_a_call_without_a_limit_waits_for_silence_all_the_same(time: Time) -> None:
    endless = TimeLimit(None, "tool_timeout_secs")
    ongoing = Ongoing(Clock(endless), endless)
    ongoing.give_up()
    assert ongoing.seconds_of_silence_left == TOOL_TIMEOUT


async def test_reports_are_cleaned_bounded_and_handed_on_in_order() -> None:
    """A28: a report is the server's own text."""
    seen: list[Report] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    ongoing = Ongoing(Clock(LIMIT), LIMIT, note)
    ongoing.progress(1, 2, "a\x1b[31mb\x00" + "x" * 5000)
    ongoing.progress(2, 2, None)
    await ongoing.reported()
    assert [(progress, total) for progress, total, _ in seen] == [(1, 2), (2, 2)]
    words = seen[0][2]
    assert words is not None
    assert words.startswith("abxx")
    assert len(words) == MAX_PROGRESS_TEXT


async def test_a_flood_of_reports_costs_no_memory() -> None:
    """F06: the newest ones are kept."""
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    ongoing = Ongoing(Clock(LIMIT), LIMIT, note)
    for number in range(10_000):
        ongoing.progress(number, None, None)
    await ongoing.reported()
    assert seen == [float(number) for number in range(10_000 - MAX_PROGRESS_WAITING, 10_000)]


async def test_nothing_is_reported_of_a_call_that_was_given_up() -> None:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    ongoing = Ongoing(Clock(LIMIT), LIMIT, note)
    ongoing.progress(1, None, None)
    ongoing.give_up()
    ongoing.progress(2, None, None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == []


async def test_a_call_without_a_listener_still_renews_its_limit(time: Time) -> None:
    ongoing = Ongoing(Clock(LIMIT), LIMIT)
    time.now += 9
    ongoing.progress(1, None, None)
    await ongoing.reported()
    assert ongoing.clock.allows(9)
