"""Commands that fetch what they start: `npx`, `uvx` and `uv`.

They ask a registry at each start whether there is something newer, which takes seconds. So for a
day after that was asked they take what is in their cache, and are started again as they are where
it is not all there. The package manager's own words tell its failure from the server's.
"""

from __future__ import annotations

import re
from typing import Any

from servers.mcp.types import ConnectionSettings

ASKED_AT = "packages_at"  # in `ConnectionSettings.remembered`: when a registry was asked last
KEPT = 24 * 3600.0  # seconds
# npx goes on to the registry by itself for what its cache lacks; uv ends.
_FROM_CACHE = {"npx": "--prefer-offline", "uvx": "--offline", "uv": "--offline"}
_GAVE_UP = re.compile(
    r"^npm (?:error|ERR!) code "
    r"|\bnetwork (?:connectivity )?(?:is|was) disabled"
    r"|^hint: Packages were unavailable",
    re.MULTILINE | re.IGNORECASE,
)
# Where npm has been told to stay offline, a start without --prefer-offline ends alike.
_IS_OFFLINE = re.compile(r"^npm (?:error|ERR!) code ENOTCACHED", re.MULTILINE)


def from_cache(settings: ConnectionSettings, now: float) -> tuple[str, ...] | None:
    """The arguments for a start from the cache; None where the registry is to be asked."""
    option = _FROM_CACHE.get(_program(settings))
    asked_at = _asked_at(settings)
    # A clock that was put back must not keep a package for ever.
    if option is None or not 0 <= now - asked_at < KEPT:
        return None
    return (option, *settings.args)


def remembered(settings: ConnectionSettings, now: float, *, cached: bool) -> dict[str, Any]:
    """What a start that came about adds to `remembered`."""
    if _program(settings) not in _FROM_CACHE:
        return {}
    return {ASKED_AT: _asked_at(settings) if cached else round(now)}


def lacks_something(settings: ConnectionSettings, words: str) -> bool:
    """Whether a start from the cache ended for want of a package that may be elsewhere."""
    return gave_up(settings, words) and not _IS_OFFLINE.search(words)


def gave_up(settings: ConnectionSettings, words: str) -> bool:
    """Whether the package manager ended by itself, before there was a server at all."""
    return _program(settings) in _FROM_CACHE and bool(_GAVE_UP.search(words))


def _asked_at(settings: ConnectionSettings) -> float:
    value = settings.remembered.get(ASKED_AT, 0)
    return float(value) if isinstance(value, int | float) else 0.0


def _program(settings: ConnectionSettings) -> str:
    return settings.command.rpartition("/")[2]
