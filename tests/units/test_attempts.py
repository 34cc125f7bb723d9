"""How often a run tries to connect again: often enough, and never at the cost of the run."""

from __future__ import annotations

import pytest

from jobs.attempts import AT_ONCE, PAUSE, Attempts


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attempts(clock: Clock) -> Attempts:
    made = Attempts(clock)
    made.begin()
    return made


def test_a_connection_that_ended_is_opened_again_at_once_some_times(attempts: Attempts) -> None:
    attempts.connected()
    for _ in range(AT_ONCE):
        assert attempts.may_begin
        attempts.begin()
        attempts.connected()
    assert not attempts.may_begin
    assert attempts.words == (
        "3 more attempts were in vain; the next one comes in 30 seconds at the earliest."
    )


def test_a_call_that_is_answered_makes_up_for_them(attempts: Attempts) -> None:
    attempts.connected()
    for _ in range(3 * AT_ONCE):
        attempts.begin()
        attempts.connected()
        attempts.answered()
        assert attempts.may_begin


def test_after_a_failure_there_is_a_pause(attempts: Attempts, clock: Clock) -> None:
    attempts.failed()
    assert attempts.words == "The next attempt comes in 30 seconds at the earliest."
    clock.now += PAUSE - 0.5
    assert not attempts.may_begin
    assert attempts.words.endswith("in 1 seconds at the earliest.")
    clock.now += 0.5
    assert (attempts.may_begin, attempts.words) == (True, "")
    attempts.begin()
    attempts.failed()
    assert attempts.words.startswith("One more attempt was in vain;")


@pytest.mark.parametrize("ends", [Attempts.failed, Attempts.connected])
def test_no_more_than_half_of_a_run_is_spent_on_attempts(
    attempts: Attempts, clock: Clock, ends: object
) -> None:
    """One that takes two minutes is followed by two minutes without."""
    for _ in range(AT_ONCE):
        attempts.begin()
    clock.now += 120
    ends(attempts)  # type: ignore[operator]
    clock.now += 119
    assert not attempts.may_begin
    clock.now += 1
    assert attempts.may_begin


def test_what_would_end_in_the_same_way_is_not_tried_again(
    attempts: Attempts, clock: Clock
) -> None:
    attempts.failed(final=True)
    clock.now += 1e9
    assert (attempts.may_begin, attempts.words) == (False, "")
