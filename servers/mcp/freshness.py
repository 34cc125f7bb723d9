"""How long a list of tools counts as fresh (spec 2026-07-28, Caching).

A positive `ttlMs` bounds how long a list is used without asking again: in a run of hours that is
how new tools are seen where the server announces nothing. It is looked at when the list is needed;
nothing polls. With 0, which only allows asking each time, and without a hint, tools are listed
again where a change is announced: a list before each call would double the requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final

# However short the hint is, a list is not asked for more often.
LEAST_SECONDS: Final = 5.0
MOST_MS: Final = 10**12

now = time.monotonic


class Freshness:
    """Of one list, page by page: it ends with the first page whose time is over."""

    def __init__(self) -> None:
        self._until = math.inf

    def add(self, page: Mapping[str, Any]) -> None:
        """A page as it came, just now; a hint that is no positive number counts as none."""
        hint = page.get("ttlMs")
        if isinstance(hint, bool) or not isinstance(hint, int | float) or not hint > 0:
            return
        self._until = min(self._until, now() + max(min(hint, MOST_MS) / 1000, LEAST_SECONDS))

    @property
    def over(self) -> bool:
        return now() >= self._until

    def extend(self) -> None:
        """The list could not be had again; it may be used a little longer."""
        self._until = now() + LEAST_SECONDS
