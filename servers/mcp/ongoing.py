"""What is known of one call from its start until the server is surely done with it (A50)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from servers.limits import TOOL_TIMEOUT, TimeLimit
from servers.mcp.clocks import Clock
from servers.mcp.types import ProgressCallback
from umpteenth.core.text import clean

logger = logging.getLogger(__name__)

MAX_PROGRESS_WAITING = 100  # reports that the callback has not taken yet; older ones go
MAX_PROGRESS_TEXT = 500  # characters of one report


class Ongoing:
    """`settled` is called once: when the last of those that hold the call has released it.

    The call itself holds it from the start; a request that was given up holds it until its answer
    comes, the connection ends or the server has been silent for as long as `limit` again.
    """

    def __init__(
        self,
        clock: Clock,
        limit: TimeLimit,
        on_progress: ProgressCallback | None = None,
        settled: Callable[[], None] | None = None,
    ) -> None:
        self.clock = clock
        self.sent = False  # whether anything may have reached the server
        self._limit = limit
        self._settled = settled
        self._holders = 1
        self._reports = _Reports(on_progress)
        self._silence: Clock | None = None

    def hold(self) -> None:
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0 and self._settled is not None:
            self._settled()

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self._silence is not None:  # given up, but the server is still at work
            self._silence.renew()
            return
        self.clock.renew()
        self._reports.add(progress, total, message)

    async def reported(self) -> None:
        """Every report has been handed on."""
        await self._reports.delivered()

    def give_up(self) -> None:
        """The caller waits no longer."""
        self._reports.stop()
        seconds = self._limit.seconds or TOOL_TIMEOUT
        self._silence = Clock(TimeLimit(seconds, ""))

    @property
    def seconds_of_silence_left(self) -> float:
        """After which a call that was given up counts as settled."""
        assert self._silence is not None
        return self._silence.left or 0.0

    async def silence(self, exchange: asyncio.Task[object]) -> None:
        """Wait for the end of an exchange that was given up, or for enough silence."""
        assert self._silence is not None
        try:
            async with self._silence:
                await asyncio.wait({exchange})
        except TimeoutError:
            pass


class _Reports:
    """Hands progress on in order, without holding up what reads it."""

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(
            maxlen=MAX_PROGRESS_WAITING
        )
        self._task: asyncio.Task[None] | None = None

    def add(self, progress: float, total: float | None, message: str | None) -> None:
        if self._callback is None:
            return
        words = None if message is None else clean(message, MAX_PROGRESS_TEXT)
        self._waiting.append((progress, total, words))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._hand_on(self._callback))

    async def _hand_on(self, callback: ProgressCallback) -> None:
        while self._waiting:
            try:
                await callback(*self._waiting.popleft())
            except Exception:  # the caller's own; it must not cost the call
                logger.exception("A progress callback failed")

    async def delivered(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    def stop(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
