"""What changed in a server's tools between two lists of them. Imports no Django."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Changes:
    """How the tools differ from those before, by name, in the server's order."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    @classmethod
    def between(cls, before: Mapping[str, str], after: Mapping[str, str]) -> Self:
        """Of two lists, each a `content_hash` by the tool's name."""
        return cls(
            added=[name for name in after if name not in before],
            removed=[name for name in before if name not in after],
            changed=[name for name in after if before.get(name, after[name]) != after[name]],
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def as_json(self) -> dict[str, list[str]]:
        return {"added": self.added, "removed": self.removed, "changed": self.changed}
