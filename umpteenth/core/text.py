"""Cleans text that others wrote, before it is stored, shown or sent on.

Postgres refuses NUL and lone surrogates in text, terminals obey control characters, and pages
show bidirectional overrides as something that nobody wrote.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

ELLIPSIS = "…"
# Databases and encoders give up beyond some depth of nesting (SQLite at 1,000).
MAX_JSON_DEPTH = 200
_CONTAINERS = (dict, list, tuple)

# Terminal sequences go whole: without their ESC the rest would stay as rubbish. A title ends
# before the next one begins, so that a text of nothing but beginnings is read once.
_TERMINAL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"  # titles
    r"[^\x07\x1b\n\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NEEDS_WORK = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str, limit: int | None = None) -> str:
    """The text without what cannot be stored or shown.

    Line ends become `\\n`; lone surrogates become U+FFFD; other control characters and terminal
    sequences go. A text longer than `limit` characters is cut to it, its last one being `…`.
    """
    if _NEEDS_WORK.search(text):
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = _UNWANTED.sub("", _TERMINAL.sub("", text))
        text = _SURROGATE.sub("\ufffd", text)
    if limit is not None and len(text) > limit:
        return text[: max(limit - 1, 0)] + ELLIPSIS if limit > 0 else ""
    return text


def with_full_stop(words: str) -> str:
    """Words of somebody else, so that another sentence can follow them."""
    words = words.rstrip()
    return words if words.endswith((".", "!", "?", "…")) else f"{words}."


def clean_json(value: Any, limit: int | None = None) -> Any:
    """A copy of a JSON value whose strings and keys are clean, each cut to `limit` characters.

    Always storable: NaN and infinities become their names, what is nested deeper than
    `MAX_JSON_DEPTH` becomes `…`, and what is no JSON at all becomes its text.
    """

    def leaf(item: Any) -> Any:
        if isinstance(item, float) and not math.isfinite(item):
            return str(item)
        if item is None or isinstance(item, bool | int | float):
            return item
        return clean(str(item), limit)

    return map_json(value, leaf, max_depth=MAX_JSON_DEPTH)


def storable_json(value: Any) -> Any:
    """A copy of a JSON value that databases store, for programs that read it back.

    Unlike `clean_json` it keeps line ends, control characters and any depth: only NUL goes, and
    lone surrogates become U+FFFD, NaN and infinities their names.
    """

    def leaf(item: Any) -> Any:
        if isinstance(item, str):
            return _SURROGATE.sub("\ufffd", item.replace("\0", ""))
        return str(item) if isinstance(item, float) and not math.isfinite(item) else item

    return map_json(value, leaf)


def finite_number(value: Any) -> float | None:
    """A number that can be shown, out of JSON of strangers, who may send one of any size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def is_too_deep(value: Any) -> bool:
    """Whether it is nested deeper than `MAX_JSON_DEPTH`, where `clean_json` cuts.

    Ask first where somebody counts on all of it.
    """
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return any(isinstance(item, dict | list | tuple) for item in level)


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list | tuple) else ()


def read_json(text: str) -> Any:
    """The value of JSON that a person typed.

    Raises `ValueError` whose words continue a sentence: `is not JSON: … in line 1, column 5`.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"in line {error.lineno}, column {error.colno}"
        raise ValueError(f"is not JSON: {error.msg} {where}") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def map_json(value: Any, leaf: Callable[[Any], Any], *, max_depth: int | None = None) -> Any:
    """A copy of a JSON value with every leaf and every key passed through `leaf`.

    Works without recursion, so that a hostile depth costs no stack. Keys that become equal are
    told apart by ` (2)`, ` (3)`, … so that no entry is lost.
    """
    root: list[Any] = [None]
    # (its children, their places, depth, the container that takes the results)
    pending: list[tuple[Iterable[Any], Iterable[Any], int, Any]] = [([value], [0], 0, root)]
    while pending:
        children, places, depth, target = pending.pop()
        for place, child in zip(places, children, strict=True):
            if not isinstance(child, _CONTAINERS):
                target[place] = leaf(child)  # at once: servers send millions of them
            elif max_depth is not None and depth >= max_depth:
                target[place] = ELLIPSIS
            elif isinstance(child, dict):
                target[place] = mapping = _keys(child, leaf)
                pending.append((child.values(), list(mapping), depth + 1, mapping))
            else:
                target[place] = items = [None] * len(child)
                pending.append((child, range(len(child)), depth + 1, items))
    return root[0]


def _keys(item: dict[Any, Any], leaf: Callable[[Any], Any]) -> dict[str, Any]:
    """The new mapping, keys in place and values to come."""
    mapping: dict[str, Any] = {}
    for key in item:
        new = name = str(leaf(str(key)))
        count = 1
        while new in mapping:
            count += 1
            new = f"{name} ({count})"
        mapping[new] = None
    return mapping
