"""Who uses a secret. Higher rooms register how to find out; the vault knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """One user of a secret: `kind` is a word such as `server`, `url` its page."""

    kind: str
    name: str
    url: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


# Names of secrets -> what uses each of them.
Finder = Callable[[Collection[str]], Mapping[str, list[Usage]]]

_finders: list[Finder] = []


def register_usage(finder: Finder) -> None:
    """Tell how to find what uses secrets, by their names; in the app's `ready`.

    It is asked for a whole page of names at once and should need one query.
    """
    if finder not in _finders:
        _finders.append(finder)


def usages_of(name: str) -> list[Usage]:
    return usages_of_many([name])[name]


def usages_of_many(names: Collection[str]) -> dict[str, list[Usage]]:
    """By name, an empty list for a secret that nothing uses."""
    found: dict[str, list[Usage]] = {name: [] for name in names}
    for finder in _finders:
        usages = finder(names)
        for name in names:
            found[name] += usages.get(name, [])
    return found
