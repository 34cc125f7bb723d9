"""When a server is looked at next: regularly while it works, with back-off while it does not.

Requirements, section 0: HTTP every 15 minutes, stdio every 6 hours. A failure is followed by a
look after 30 seconds, each further one after twice as long, up to an hour.
"""

from __future__ import annotations

import random as _random
from collections.abc import Callable
from datetime import timedelta

from umpteenth.core.config import get_options

HTTP_EVERY = timedelta(minutes=15)  # over a Unix socket, too
STDIO_EVERY = timedelta(hours=6)  # each look starts a process
BACKOFF_FIRST = timedelta(seconds=30)
BACKOFF_MOST = timedelta(hours=1)
JITTER = 0.1  # of the delay, both ways: servers that were added together drift apart
# No delay is longer; a time that lies farther ahead was written by a clock that was wrong.
FARTHEST = STDIO_EVERY * (1 + JITTER)

# A number from 0 to 1, as `random.random`.
Random = Callable[[], float]


def is_on() -> bool:
    """Whether servers are looked at without being asked to (`mcp.auto_connect`, U2)."""
    return get_options().mcp.auto_connect


def delay(transport: str, failures: int, *, random: Random = _random.random) -> timedelta:
    """How long until the next look, after this many failures in a row (0: it worked)."""
    return _base(transport, failures) * (1 + JITTER * (2 * random() - 1))


def spread(count: int, *, random: Random = _random.random) -> timedelta:
    """When the first look comes for one of `count` servers: a second for each, five minutes for
    many."""
    return timedelta(seconds=min(count, 300) * random())


def _base(transport: str, failures: int) -> timedelta:
    if failures <= 0:
        return STDIO_EVERY if transport == "stdio" else HTTP_EVERY
    # The exponent is bounded because the count is not.
    doubled: int = 2 ** min(failures - 1, 10)
    return min(BACKOFF_FIRST * doubled, BACKOFF_MOST)
