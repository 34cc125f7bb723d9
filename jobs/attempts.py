"""How often a run tries to connect again to a server that went away, or was never there.

Whoever uses the server waits for the attempt, so there are not many: a server that restarts is
found again, and one that is down or ends at each call costs a run no more than half of its time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Connections in a row, each opened as soon as the last one had ended, until a call is answered.
AT_ONCE = 3
PAUSE = 30.0  # seconds without another attempt, after those and after one that failed


class Attempts:
    """Of one run to connect to one server. `now` is a clock that never goes back, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.made = 0
        self._in_vain = 0  # made again since a call was answered
        self._now = now
        self._began = -math.inf
        self._not_before = -math.inf

    def begin(self) -> None:
        self._in_vain += self.made > 0
        self.made += 1
        self._began = self._now()

    def connected(self) -> None:
        if self._in_vain >= AT_ONCE:
            self._pause()

    def failed(self, *, final: bool = False) -> None:
        """`final`: another attempt would end in the same way."""
        self._pause()
        if final:
            self._not_before = math.inf

    def answered(self) -> None:
        """A call was, so that the connection was of use."""
        self._in_vain = 0
        self._not_before = -math.inf

    @property
    def may_begin(self) -> bool:
        return self._now() >= self._not_before

    @property
    def words(self) -> str:
        """What to say of the attempts so far to whoever has to go without another one."""
        if self.may_begin or self._not_before == math.inf:
            return ""
        when = f"comes in {math.ceil(self._not_before - self._now())} seconds at the earliest"
        if not self._in_vain:
            return f"The next attempt {when}."
        many = self._in_vain > 1
        what = f"{self._in_vain} more attempts were" if many else "One more attempt was"
        return f"{what} in vain; the next one {when}."

    def _pause(self) -> None:
        now = self._now()
        self._not_before = now + max(PAUSE, now - self._began)
