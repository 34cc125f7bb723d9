"""What uses a server, and what names it. Higher rooms register callables.

A use points at the server itself and survives a new name (a job's attachment). A mention is text
that holds the name (a script's `ump mcp call github …`) and silently stops matching (U37, U38).
"""

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
_mention_finders: list[Finder] = []


def register_usage(finder: Finder) -> None:
    if finder not in _finders:
        _finders.append(finder)


def usages(server: Server) -> list[Usage]:
    """In the order of registration; each finder orders its own."""
    return [usage for finder in _finders for usage in finder(server)]


def register_mentions(finder: Finder) -> None:
    """Tell how to find what refers to a server by its present name; `note` says how."""
    if finder not in _mention_finders:
        _mention_finders.append(finder)


def mentions(server: Server) -> list[Usage]:
    """What stops matching when the server gets another name."""
    return [usage for finder in _mention_finders for usage in finder(server)]
