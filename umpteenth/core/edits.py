"""Two people who edit one thing at once: what the second one is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One field of an outdated form: what is stored now, and what was entered."""

    label: str
    theirs: str
    yours: str
