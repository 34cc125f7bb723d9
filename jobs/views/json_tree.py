"""JSON values for people: as nested, folding HTML (bounded, everything escaped), and as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from jobs.payloads import left_out
from umpteenth.core.text import clean

MAX_DEPTH = 12
MAX_NODES = 600
MAX_TEXT = 4_000
# Deeper levels start folded.
OPEN_LEVELS = 2
PREVIEW = 80


# The keys and positions that lead to a value.
Path = tuple[str | int, ...]
# The address that shows the value at a path, from one of its entries on.
Link = Callable[[Path, int], str]


@dataclass
class _Walk:
    """How much may still be shown, and where the rest is."""

    nodes: int
    link: Link | None
    # Lists and objects may hold the mark of `payloads.shorten`.
    is_cut: bool = False

    def rest(self, words: str, path: Path, start: int = 0) -> SafeString:
        """`words` in place of what is left out; a link where it can be seen."""
        if self.link is None:
            return format_html('<span class="json-more">{}</span>', words)
        return format_html('<a class="json-more" href="{}">{}</a>', self.link(path, start), words)


def json_tree(
    value: Any,
    *,
    nodes: int = MAX_NODES,
    link: Link | None = None,
    path: Path = (),
    start: int = 0,
    rows: int | None = None,
    is_cut: bool = False,
) -> SafeString:
    """`<div class="json">` with a `<details>` for each object and list.

    What does not fit becomes a link where `link` is given. `path` leads to this value; of its
    own entries `rows` are shown, from the entry `start` on. `is_cut`: the value keeps only its
    ends (`payloads.shorten`); it is counted and numbered as the whole was.
    """
    walk = _Walk(nodes, link, is_cut)
    if rows is not None and isinstance(value, dict | list):
        shown = islice(_items(value), start, start + rows)
        return format_html('<div class="json">{}</div>', _rows(shown, None, start, path, walk))
    return format_html('<div class="json">{}</div>', _node(value, path, 0, walk))


def compact(value: Any) -> str:
    """The value on one line."""
    return json.dumps(value, ensure_ascii=False)


def pretty(value: Any) -> str:
    """The value indented, to read and to copy."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def _items(value: dict[str, Any] | list[Any]) -> Iterable[tuple[str | int, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


@dataclass(frozen=True)
class _Gap:
    """Entries that a cut value does not hold any more."""

    count: int


def _with_gap(value: dict[str, Any] | list[Any]) -> Iterator[tuple[str | int, Any]]:
    place, count = left_out(value)
    for at, (key, item) in enumerate(_items(value)):
        if at == place:
            yield key, _Gap(count)
        elif isinstance(key, int) and 0 <= place < at:
            yield key + count - 1, item
        else:
            yield key, item


def _node(value: Any, path: Path, depth: int, walk: _Walk) -> SafeString:
    walk.nodes -= 1
    if isinstance(value, dict | list) and value:
        return _branch(value, path, depth, walk)
    return _leaf(value, path, walk)


def _branch(value: dict[str, Any] | list[Any], path: Path, depth: int, walk: _Walk) -> SafeString:
    left, right, word = ("[", "]", "item") if isinstance(value, list) else ("{", "}", "key")
    if depth >= MAX_DEPTH:
        return walk.rest(f"{left}…{right}", path)
    size = len(value)
    if walk.is_cut and (count := left_out(value)[1]):
        size += count - 1
    entries = _with_gap(value) if walk.is_cut else _items(value)
    words = f"{size:,} {word}{'' if size == 1 else 's'}"
    return format_html(
        '<details{}><summary>{} <span class="json-count">{}</span> {}</summary>{}</details>',
        mark_safe(" open") if depth < OPEN_LEVELS else "",
        left,
        words,
        right,
        _rows(entries, size, 0, path, walk, depth),
    )


def _rows(
    items: Iterable[tuple[str | int, Any]],
    size: int | None,
    start: int,
    path: Path,
    walk: _Walk,
    depth: int = 0,
) -> SafeString:
    """Entries as a list; `size` None: the caller pages, and says itself what follows."""
    rows: list[SafeString] = []
    for key, item in items:
        if walk.nodes <= 0:
            words = "more" if size is None else f"{size - len(rows):,} more"
            rows.append(format_html("<li>{}</li>", walk.rest(words, path, start + len(rows))))
            break
        if isinstance(item, _Gap):
            rows.append(format_html('<li class="json-more">… {} more</li>', f"{item.count:,}"))
            continue
        label = format_html('<span class="json-key">{}</span>', clean(str(key)[:MAX_TEXT]))
        shown = _node(item, (*path, key), depth + 1, walk)
        rows.append(format_html("<li>{} {}</li>", label, shown))
    # Each row is made by format_html above.
    return format_html("<ul>{}</ul>", mark_safe("".join(rows)))


def _leaf(value: Any, path: Path, walk: _Walk) -> SafeString:
    if isinstance(value, str):
        cut = len(value) - MAX_TEXT
        more = walk.rest(f" … {cut:,} more characters", path) if cut > 0 else ""
        text = clean(value[:MAX_TEXT])
        return format_html('<span class="json-string">{}</span>{}', text, more)
    kind = "null" if value is None else "bool" if isinstance(value, bool) else "number"
    return format_html('<span class="json-{}">{}</span>', kind, compact(value))
