"""A tool's JSON Schema as rows that people read. Imports no Django, follows no `$ref`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_ROWS = 200
MAX_DEPTH = 4
MAX_TEXT = 1000
MAX_CHOICES = 20


@dataclass(frozen=True)
class Parameter:
    """One property; `path` names those of an object inside it as `filter.since`."""

    path: str
    type: str
    required: bool
    description: str
    choices: str
    default: str


def parameters(schema: Any) -> list[Parameter]:
    """The properties of an object schema, nested ones after their parent; bounded."""
    rows: list[Parameter] = []
    for row in _walk(schema, "", 0):
        if len(rows) == MAX_ROWS:
            break
        rows.append(row)
    return rows


def _walk(schema: Any, prefix: str, depth: int) -> Iterator[Parameter]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or depth == MAX_DEPTH:
        return
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    for name, part in properties.items():
        path = f"{prefix}{name}"
        part = part if isinstance(part, dict) else {}
        yield Parameter(
            path=path,
            type=type_words(part),
            required=name in names,
            description=_text(part.get("description")),
            choices=_choices(part),
            default=_json(part["default"]) if "default" in part else "",
        )
        items = part.get("items")
        yield from _walk(part, f"{path}.", depth + 1)
        yield from _walk(items, f"{path}[].", depth + 1)


def type_words(schema: dict[str, Any]) -> str:
    """`string`, `string or null`, `list of integer`, or `any` where the schema says nothing."""
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(str(item) for item in kind[:5]) or "any"
    if kind == "array":
        items = schema.get("items")
        return f"list of {type_words(items)}" if isinstance(items, dict) and items else "list"
    if isinstance(kind, str):
        return kind[:50]
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        if isinstance(options, list) and options:
            kinds = [type_words(item) for item in options[:5] if isinstance(item, dict)]
            return " or ".join(dict.fromkeys(kinds)) or "any"
    return "any"


def _choices(schema: dict[str, Any]) -> str:
    if "const" in schema:
        return _json(schema["const"])
    options = schema.get("enum")
    if not isinstance(options, list):
        return ""
    words = ", ".join(_json(option) for option in options[:MAX_CHOICES])
    return words if len(options) <= MAX_CHOICES else f"{words}, …"


def _json(value: Any) -> str:
    return _text(json.dumps(value, ensure_ascii=False, default=str))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
