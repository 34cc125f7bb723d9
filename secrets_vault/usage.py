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


Find = Callable[[str], list[Usage]]
FindMany = Callable[[Collection[str]], Mapping[str, list[Usage]]]

_finders: list[tuple[Find, FindMany | None]] = []


def register_usage(find: Find, *, find_many: FindMany | None = None) -> None:
    """Tell how to find what uses a secret, by its name; in the app's `ready`.

    `find_many` answers for a page of names at once, so that the list needs no query per row.
    """
    if (find, find_many) not in _finders:
        _finders.append((find, find_many))


def usages_of(name: str) -> list[Usage]:
    return [usage for find, _ in _finders for usage in find(name)]


def usages_of_many(names: Collection[str]) -> dict[str, list[Usage]]:
    """By name, an empty list for a secret that nothing uses."""
    found: dict[str, list[Usage]] = {name: [] for name in names}
    for find, find_many in _finders:
        many = find_many(names) if find_many else {name: find(name) for name in names}
        for name in names:
            found[name] += many.get(name, [])
    return found
