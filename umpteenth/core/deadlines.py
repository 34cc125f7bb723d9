"""`asyncio.timeout` that also ends in time what a cancelled task still has to clean up.

Before Python 3.11.4 (Debian 12 has 3.11.2) the one of the standard library counts every earlier
cancellation of the task as one that came meanwhile, and lets `CancelledError` out instead of
`TimeoutError`. What came after it, such as killing a process, was then left undone.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class Timeout(asyncio.Timeout):  # type: ignore[misc]  # marked final, and made to be entered
    _cancelling_before = 0

    async def __aenter__(self) -> Timeout:
        task = asyncio.current_task()
        self._cancelling_before = task.cancelling() if task is not None else 0
        await super().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, trace)
        task = asyncio.current_task()
        if not self.expired() or kind is not asyncio.CancelledError or task is None:
            return
        if task.cancelling() <= self._cancelling_before:
            raise TimeoutError from error


def timeout(delay: float | None) -> Timeout:
    """Raise `TimeoutError` where the block takes longer than `delay` seconds; None: no limit."""
    loop = asyncio.get_running_loop()
    return Timeout(None if delay is None else loop.time() + delay)
