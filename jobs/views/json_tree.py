"""JSON values for people: as nested, folding HTML (bounded, everything escaped), and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from umpteenth.core.text import clean

MAX_DEPTH = 12
MAX_NODES = 600
MAX_TEXT = 4_000
# Deeper levels start folded.
OPEN_LEVELS = 2
PREVIEW = 80


class _Budget:
    def __init__(self) -> None:
        self.nodes = MAX_NODES


def json_tree(value: Any) -> SafeString:
    """`<div class="json">` with a `<details>` for each object and list."""
    return format_html('<div class="json">{}</div>', _node(value, 0, _Budget()))


def compact(value: Any) -> str:
    """The value on one line."""
    return json.dumps(value, ensure_ascii=False)


def pretty(value: Any) -> str:
    """The value indented, to read and to copy."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def _node(value: Any, depth: int, budget: _Budget) -> SafeString:
    budget.nodes -= 1
    if isinstance(value, dict) and value:
        return _branch(value.items(), "{", "}", len(value), depth, budget)
    if isinstance(value, list) and value:
        return _branch(enumerate(value), "[", "]", len(value), depth, budget)
    return _leaf(value)


def _branch(
    items: Iterable[tuple[Any, Any]], left: str, right: str, size: int, depth: int, budget: _Budget
) -> SafeString:
    if depth >= MAX_DEPTH:
        return format_html('<span class="json-more">{}…{}</span>', left, right)
    rows: list[SafeString] = []
    for key, item in items:
        if budget.nodes <= 0:
            rows.append(format_html('<li class="json-more">{} more</li>', size - len(rows)))
            break
        label = format_html('<span class="json-key">{}</span>', clean(str(key)[:MAX_TEXT]))
        rows.append(format_html("<li>{} {}</li>", label, _node(item, depth + 1, budget)))
    word = "item" if left == "[" else "key"
    count = f"{size} {word}{'' if size == 1 else 's'}"
    return format_html(
        '<details{}><summary>{} <span class="json-count">{}</span> {}</summary>'
        "<ul>{}</ul></details>",
        mark_safe(" open") if depth < OPEN_LEVELS else "",
        left,
        count,
        right,
        mark_safe("".join(rows)),  # each row is made by format_html above
    )


def _leaf(value: Any) -> SafeString:
    if isinstance(value, str):
        cut = len(value) - MAX_TEXT
        more = format_html('<span class="json-more"> … {} more characters</span>', cut)
        return format_html(
            '<span class="json-string">{}</span>{}',
            clean(value[:MAX_TEXT]),
            more if cut > 0 else "",
        )
    kind = "null" if value is None else "bool" if isinstance(value, bool) else "number"
    return format_html('<span class="json-{}">{}</span>', kind, compact(value))
