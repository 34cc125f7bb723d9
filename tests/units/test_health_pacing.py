"""How long until a server is looked at again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from servers import pacing


def middle() -> float:
    """A random number that adds no jitter."""
    return 0.5


@pytest.mark.parametrize(("transport", "minutes"), [("http", 15), ("unix", 15), ("stdio", 6 * 60)])
def test_a_server_that_works_is_looked_at_regularly(transport: str, minutes: int) -> None:
    """U2, section 0."""
    assert pacing.delay(transport, 0, random=middle) == timedelta(minutes=minutes)


@pytest.mark.parametrize("transport", ["http", "unix", "stdio"])
def test_after_failures_it_waits_twice_as_long_each_time_up_to_an_hour(transport: str) -> None:
    waits = [pacing.delay(transport, n, random=middle).total_seconds() for n in range(1, 10)]
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_years_of_failures_are_no_overflow() -> None:
    assert pacing.delay("http", 10**9, random=middle) == timedelta(hours=1)


@pytest.mark.parametrize("failures", [0, 1, 4, 30])
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_jitter_is_a_tenth_both_ways(transport: str, failures: int) -> None:
    def seconds(random: pacing.Random) -> float:
        return pacing.delay(transport, failures, random=random).total_seconds()

    least, mean, most = seconds(lambda: 0.0), seconds(middle), seconds(lambda: 1.0)
    assert least == pytest.approx(0.9 * mean)
    assert most == pytest.approx(1.1 * mean)


def test_no_delay_is_longer_than_the_farthest() -> None:
    longest = max(pacing.delay("stdio", n, random=lambda: 1.0) for n in range(20))
    assert longest == pacing.FARTHEST


@pytest.mark.parametrize(("count", "seconds"), [(1, 1), (60, 60), (5000, 300)])
def test_first_looks_are_spread_by_a_second_each_over_five_minutes_at_most(
    count: int, seconds: int
) -> None:
    assert pacing.spread(count, random=lambda: 1.0) == timedelta(seconds=seconds)
    assert pacing.spread(count, random=lambda: 0.0) == timedelta()
