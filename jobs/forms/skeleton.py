"""A ready `ump mcp call` for a tool; the arguments that its schema requires are left to fill in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_ARGUMENTS = 12
_EMPTY = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


@dataclass(frozen=True)
class Call:
    """The page's script writes it in the language of the job's script."""

    server: str
    tool: str
    arguments: str


def call_of(server: str, tool: str, schema: Any) -> Call:
    return Call(server, tool, json.dumps(arguments_of(schema), ensure_ascii=False))


def arguments_of(schema: Any) -> dict[str, Any]:
    """Required arguments with a value of their type: the default, the first choice or empty."""
    if not isinstance(schema, dict):
        return {}
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    names = [name for name in required if isinstance(name, str)]
    return {name: _value(properties.get(name)) for name in names[:MAX_ARGUMENTS]}


def _value(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return ""
    if "default" in schema:
        return schema["default"]
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((item for item in kind if item != "null"), "string")
    return _EMPTY.get(kind, "") if isinstance(kind, str) else ""
