"""The calls of a run that may have changed something, for whoever continues it (P76).

Each is on record before it is sent, so that also a worker that is killed leaves it behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from umpteenth.core.text import clean

MAX_CALLS = 200  # that are named; further ones are counted
MAX_ARGUMENTS = 300  # characters of a call's arguments as JSON
MORE_AT_ONCE = 100  # further calls between two counts that are written
MAX_TOOL = 200  # characters of a tool's name

SUCCEEDED, FAILED, UNKNOWN = "succeeded", "failed", "unknown"


@dataclass(frozen=True)
class Effect:
    """A call before it is sent, and once more, with the same `key`, as it ended."""

    key: str
    server: str
    tool: str
    arguments: Mapping[str, Any]
    at: datetime
    outcome: str = UNKNOWN


class Effects:
    """What `Run.side_effects` holds: `{"calls": […], "more": 0}`. `mask` takes secrets out."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self.is_new = False  # whether there is something to write
        self._mask = mask
        self._calls: dict[str, dict[str, Any]] = {}
        self._more = 0

    def take(self, effect: Effect) -> None:
        if effect.key in self._calls:
            self._calls[effect.key]["outcome"] = effect.outcome
            self.is_new = True
        elif len(self._calls) < MAX_CALLS:
            self._calls[effect.key] = self._entry(effect)
            self.is_new = True
        elif effect.outcome == UNKNOWN:
            # Not with each of a flood, since the whole list is written anew.
            self.is_new = self.is_new or self._more % MORE_AT_ONCE == 0
            self._more += 1

    def close(self) -> None:
        """Have the last count written too."""
        self.is_new = self.is_new or self._more > 0

    def value(self) -> dict[str, Any]:
        return {"calls": list(self._calls.values()), "more": self._more}

    def _entry(self, effect: Effect) -> dict[str, Any]:
        # Masked before it is cut: half a secret would not be recognised.
        arguments = json.dumps(effect.arguments, ensure_ascii=False)
        return {
            "server": effect.server,
            "tool": clean(self._mask(effect.tool), MAX_TOOL),
            "arguments": clean(self._mask(arguments), MAX_ARGUMENTS),
            "outcome": effect.outcome,
            "at": effect.at.isoformat(timespec="milliseconds"),
        }
