"""What uses a server. Higher rooms register a callable (jobs and their attachments)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from servers.models import Server


@dataclass(frozen=True)
class Usage:
    """Something that uses a server: `kind` is a word such as `job`, `url` its page."""

    kind: str
    name: str
    url: str
    note: str = ""


Finder = Callable[[Server], Iterable[Usage]]

_finders: list[Finder] = []


def register_usage(finder: Finder) -> None:
    if finder not in _finders:
        _finders.append(finder)


def usages(server: Server) -> list[Usage]:
    """In the order of registration; each finder orders its own."""
    return [usage for finder in _finders for usage in finder(server)]
