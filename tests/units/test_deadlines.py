"""Time limits hold also in a task that is being cancelled (C09 rests on it)."""

from __future__ import annotations

import asyncio

import pytest

from umpteenth.core import deadlines


async def hang() -> None:
    await asyncio.Event().wait()


async def test_a_block_that_takes_too_long_is_left_with_a_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        async with deadlines.timeout(0.01):
            await hang()


async def test_a_block_that_is_quick_enough_is_left_alone() -> None:
    async with deadlines.timeout(5) as limit:
        await asyncio.sleep(0)
    assert not limit.expired()
    async with deadlines.timeout(None):
        await asyncio.sleep(0)


async def test_a_cancelled_task_can_limit_its_cleaning_up() -> None:
    """On Python 3.11.2 `asyncio.timeout` raises CancelledError here and skips what follows."""
    began, done = asyncio.Event(), []

    async def work() -> None:
        try:
            began.set()
            await hang()
        finally:
            try:
                async with deadlines.timeout(0.01):
                    await hang()
            except TimeoutError:
                done.append("cleaned up")

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["cleaned up"]


async def test_a_cancellation_from_outside_is_no_timeout() -> None:
    async def work() -> None:
        async with deadlines.timeout(30):
            await hang()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_limits_is_the_one_that_is_reported() -> None:
    async with deadlines.timeout(30) as outer:
        with pytest.raises(TimeoutError):
            async with deadlines.timeout(0.01):
                await hang()
    assert not outer.expired()
