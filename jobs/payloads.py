"""Cuts an event's payload to its limit and says which of its fields must be stored whole.

A large field keeps its keys and the head and tail of its texts and lists. This module imports
no Django.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

LIMIT = 16 * 1024  # bytes of a payload as JSON
BLOBS_KEY = "_blobs"
_LARGE = 1024  # a field above this may be cut
_ROOM_PER_BLOB = 160  # its entry under `_blobs`
# What stands in a cut list or object in place of what was left out.
_ITEMS_MARK = re.compile(r"… ([\d,]+) items left out …")
_KEYS_MARK = re.compile(r"([\d,]+) more")


def encode(value: Any) -> bytes:
    """A value as compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def fit(payload: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The payload within `LIMIT`, and the whole bodies of the fields that were cut."""
    if len(encode(payload)) <= LIMIT:
        return payload, {}
    sizes = {key: len(encode(value)) for key, value in payload.items()}
    large = [key for key, size in sizes.items() if size > _LARGE]
    small = sum(size + len(key) + 8 for key, size in sizes.items() if key not in large)
    room = (LIMIT - small - _ROOM_PER_BLOB * (len(large) + 1)) // max(len(large), 1)
    cut, bodies = dict(payload), {}
    for key in large:
        if sizes[key] > room:
            bodies[key] = body_of(payload[key])
            cut[key] = shorten(payload[key], max(room, 64))
    return cut, bodies


def body_of(value: Any) -> bytes:
    """How a cut field is stored: a text as it is, everything else as JSON."""
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def shorten(value: Any, budget: int) -> Any:
    """A smaller value of the same shape, at most `budget` bytes as JSON."""
    limit = budget
    while limit >= 16:
        shorter = _cut(value, limit, max(2, limit // 64), 0)
        if len(encode(shorter)) <= budget:
            return shorter
        limit //= 2
    return cut_text(encode(value).decode(), max(budget // 8, 16))


def left_out(value: dict[str, Any] | list[Any]) -> tuple[int, int]:
    """Of a cut list or object: the place of the mark, and how much it stands for; else (-1, 0)."""
    if isinstance(value, dict):
        mark = value.get("…")
        found = _KEYS_MARK.fullmatch(mark) if isinstance(mark, str) else None
        return (list(value).index("…"), _count(found)) if found else (-1, 0)
    for place, item in enumerate(value):
        if isinstance(item, str) and (found := _ITEMS_MARK.fullmatch(item)):
            return place, _count(found)
    return -1, 0


def _count(found: re.Match[str]) -> int:
    return int(found[1].replace(",", ""))


def cut_text(text: str, limit: int) -> str:
    """Two thirds of the limit from the head, the rest from the tail, in characters."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    return f"{text[:head]}\n… {len(text) - limit:,} characters left out …\n{text[-tail:]}"


def _cut(value: Any, text_limit: int, item_limit: int, depth: int) -> Any:
    if isinstance(value, str):
        return cut_text(value, text_limit)
    if isinstance(value, dict | list) and depth > 12:
        return "…"
    if isinstance(value, dict):
        items = list(value.items())
        kept = {
            cut_text(key, 200): _cut(item, text_limit, item_limit, depth + 1)
            for key, item in items[:item_limit]
        }
        if len(items) > item_limit:
            kept["…"] = f"{len(items) - item_limit:,} more"
        return kept
    if isinstance(value, list):
        return [_cut(item, text_limit, item_limit, depth + 1) for item in _ends(value, item_limit)]
    return value


def _ends(values: list[Any], limit: int) -> list[Any]:
    if len(values) <= limit:
        return values
    head = limit * 2 // 3
    tail = limit - head
    return [*values[:head], f"… {len(values) - limit:,} items left out …", *values[-tail:]]


def rough_size(value: Any) -> int:
    """Bytes in memory, more or less."""
    if isinstance(value, str):
        return len(value) + 64
    if isinstance(value, Mapping):
        return sum(rough_size(item) for item in value.values()) + 64
    if isinstance(value, list | tuple):
        return sum(rough_size(item) for item in value) + 64
    return 64
