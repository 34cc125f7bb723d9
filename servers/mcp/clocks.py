"""How long one call may take, however it goes on meanwhile (requirements, section 0; U39-U48)."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from servers.limits import PROGRESS_FACTOR, TimeLimit
from umpteenth.core import deadlines

NO_CUT: Final = TimeLimit(None, "")
THE_RUN: Final = "the time left of the run"


class Clock:
    """Ends its block with `TimeoutError`: renewed by progress, stopped while a person is asked.

    `limit` counts from now, and anew with each `renew`, up to `PROGRESS_FACTOR` times itself in
    all. Nothing moves `cut`, which counts from now too, but a person's time. Nothing at all moves
    `deadline`, a moment of the loop's clock.
    """

    def __init__(
        self, limit: TimeLimit, *, cut: TimeLimit = NO_CUT, deadline: float | None = None
    ) -> None:
        self._now = asyncio.get_running_loop().time
        self._began = self._start = self._renewed = self._now()
        self._limit = limit
        self._cut = cut
        self._deadline = deadline
        self._pauses = 0
        self._paused_at = 0.0
        self._timer: asyncio.Timeout | None = None

    async def __aenter__(self) -> Clock:
        self._timer = deadlines.Timeout(self._moment())
        await self._timer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._timer is not None
        timer, self._timer = self._timer, None
        await timer.__aexit__(kind, error, trace)

    def renew(self) -> None:
        """The server is at work: the limit counts anew."""
        self._renewed = self._now()
        self._reschedule()

    def pause(self) -> None:
        """A person is asked, whose time is not the server's; `resume` as often."""
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = self._now()
        self._reschedule()

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            self._start += self._now() - self._paused_at
            self.renew()

    @property
    def left(self) -> float | None:
        """Seconds until it ends as things stand, negative afterwards; None: never."""
        moment = self._moment()
        return None if moment is None else moment - self._now()

    def allows(self, seconds: float) -> bool:
        """Whether so long a wait would end in time."""
        left = self.left
        return left is None or seconds < left

    def words(self) -> str:
        """The limit that ends it, such as `30 seconds (tool_timeout_secs)`."""
        moment, seconds, option = min(self._ends(), default=(0.0, 0.0, self._limit.option))
        if option == THE_RUN:
            seconds = max(moment - self._began, 0.0)
        return f"{round(seconds, 1):g} seconds ({option})"

    def _ends(self) -> list[tuple[float, float, str]]:
        """(moment, seconds, words) of everything that may end it."""
        ends = []
        if not self._pauses:
            if self._cut.seconds is not None:
                ends.append((self._start + self._cut.seconds, self._cut.seconds, self._cut.option))
            if self._limit.seconds is not None:
                ends += self._soft_ends(self._limit.seconds)
        if self._deadline is not None:
            ends.append((self._deadline, 0.0, THE_RUN))
        return ends

    def _soft_ends(self, seconds: float) -> list[tuple[float, float, str]]:
        option = self._limit.option
        most = seconds * PROGRESS_FACTOR
        return [
            (self._renewed + seconds, seconds, option),
            (self._start + most, most, f"{PROGRESS_FACTOR} times {option}, with progress"),
        ]

    def _moment(self) -> float | None:
        return min(self._ends(), default=(None,))[0]

    def _reschedule(self) -> None:
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(self._moment())
