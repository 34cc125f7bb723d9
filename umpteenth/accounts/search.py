"""The search palette: rooms register where its hits come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .models import User

MOST_HITS = 40
MOST_PER_SOURCE = 10


@dataclass(frozen=True)
class Hit:
    """One line of the palette. `kind` is a word such as `Job`; actions open dialogs by `dialog`."""

    kind: str
    title: str
    subtitle: str
    url: str
    dialog: bool = False


Source = Callable[[User, str], Iterable[Hit]]
_sources: list[Source] = []


def register_source(source: Source) -> None:
    """Add a source, called with the person and the typed words (may be empty); at most 10 count."""
    if source not in _sources:
        _sources.append(source)


def search(user: User, words: str) -> list[Hit]:
    hits: list[Hit] = []
    for source in _sources:
        for number, hit in enumerate(source(user, words)):
            if number == MOST_PER_SOURCE:
                break
            hits.append(hit)
    return hits[:MOST_HITS]


def matches(words: str, *texts: str) -> bool:
    """Every word occurs in one of the texts, in any case."""
    text = " ".join(texts).lower()
    return all(word in text for word in words.lower().split())
