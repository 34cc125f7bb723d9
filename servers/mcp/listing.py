"""Reading `tools/list`: page by page, item by item, so that one bad tool costs only itself."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from servers.limits import MAX_TOOL_NAME, MAX_TOOL_NAME_BYTES, STANDARD, Limits
from servers.mcp.schema_words import bytes_in_words
from servers.mcp.schemas import ReadSchema, read_schema
from servers.mcp.types import Tool, ToolList
from umpteenth.core.text import clean

# Asks for one page; None asks for the first.
FetchPage = Callable[[str | None], Awaitable[dict[str, Any]]]

MAX_WARNINGS = 50
EMPTY_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
# Others in the same loop get their turn after so many seconds: schemas take time to read.
BREATH = 0.01
# Where null is a value and not the absence of one.
_NULL_MEANS_NULL = frozenset({"const", "default"})
_BREAKS = re.compile(r"[\t\n]")


class _BadTool(Exception):
    """A tool that is left out; the message says why."""


async def read_pages(fetch: FetchPage, limits: Limits = STANDARD) -> ToolList:
    """All tools within the limits (A39, A40, A42). Raises what `fetch` raises."""
    reader = _Reader(limits)
    cursor: str | None = None
    seen: set[int] = set()  # hashes: a cursor may be as long as a message
    for page in range(1, limits.tool_pages + 1):
        result = await fetch(cursor)
        if not await reader.take(result.get("tools"), page):
            break
        cursor = result.get("nextCursor")
        if cursor is None:
            break
        if not isinstance(cursor, str):
            reader.warn(f"Page {page} of the tools names an unusable next page; the list ends.")
            break
        if hash(cursor) in seen:
            reader.warn("The server names a page of tools that was read before; the list ends.")
            break
        seen.add(hash(cursor))
    else:
        reader.warn(
            f"The server has more than {limits.tool_pages} pages of tools (max_tool_pages); "
            "the rest is left out."
        )
    return ToolList(list(reader.tools.values()), reader.warnings)


def only_as_tasks(page: dict[str, Any]) -> set[str]:
    """The tools of a page that must be called as tasks (spec 2025-11-25, Tasks)."""
    items = page.get("tools")
    return {
        item["name"]
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, dict)
        and isinstance(item.get("name"), str)
        and isinstance(item.get("execution"), dict)
        and item["execution"].get("taskSupport") == "required"
    }


class _Reader:
    def __init__(self, limits: Limits) -> None:
        self.tools: dict[str, Tool] = {}
        self.warnings: list[str] = []
        self._limits = limits
        self._said: set[str] = set()
        self._bytes = 0
        self._position = 0

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def _warn_once(self, sentence: str) -> None:
        """Once for each fault, and not for thousands."""
        if sentence in self._said or len(self._said) > MAX_WARNINGS:
            return
        if len(self._said) < MAX_WARNINGS:
            self.warn(sentence)
        else:
            self.warn("There are more warnings of this kind.")
        self._said.add(sentence)

    async def take(self, items: Any, page: int) -> bool:
        """Read the items of a page; False if the list must end here."""
        if not isinstance(items, list):
            self._warn_once(f"Page {page} of the server's answer holds no list of tools.")
            return True
        begun = time.monotonic()
        for item in items:
            if not self._take_one(item):
                return False
            if time.monotonic() - begun > BREATH:
                await asyncio.sleep(0)
                begun = time.monotonic()
        return True

    def _take_one(self, item: Any) -> bool:
        self._position += 1
        try:
            name = read_name(item)
            if name in self.tools:
                shown = clean(name, 100)
                self._warn_once(f"Tool “{shown}” is listed twice; the first one counts.")
                return True
            if len(self.tools) == self._limits.tools:
                self.warn(
                    f"The server has more than {self._limits.tools} tools (max_tools); "
                    "the rest is left out."
                )
                return False
            found = read_tool(item, self._limits)
        except _BadTool as reason:
            self._warn_once(f"Tool {_label(item, self._position)} is left out: {reason}.")
            return True
        if found.note:
            self._warn_once(f"Tool “{clean(name, 100)}”: {found.note}.")
        return self._keep(found)

    def _keep(self, found: ReadTool) -> bool:
        self._bytes += found.size
        if self._bytes > self._limits.definition_bytes:
            most = bytes_in_words(self._limits.definition_bytes)
            self.warn(
                f"The tool definitions are larger than {most} (max_definition_bytes); "
                "the rest is left out."
            )
            return False
        self.tools[found.tool.name] = found.tool
        return True


def read_name(item: Any) -> str:
    """The raw name of a tool. Raises `_BadTool`."""
    if not isinstance(item, dict):
        raise _BadTool("it is no object")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise _BadTool("it has no name")
    if len(name) > MAX_TOOL_NAME:
        raise _BadTool(f"its name is longer than {MAX_TOOL_NAME} characters")
    if len(name.encode(errors="replace")) > MAX_TOOL_NAME_BYTES:
        raise _BadTool(f"its name is longer than {MAX_TOOL_NAME_BYTES} bytes")
    if clean(name) != name or _BREAKS.search(name):
        raise _BadTool("its name holds characters that cannot be shown")
    return name


@dataclass(frozen=True)
class ReadTool:
    """A tool, the bytes of its definition, and what is odd about it but harmless."""

    tool: Tool
    size: int
    note: str = ""


def read_tool(item: Any, limits: Limits = STANDARD) -> ReadTool:
    """A tool from its raw definition, tolerant of all but name and input schema (D08, D11).

    Raises `_BadTool`.
    """
    name = read_name(item)
    raw_annotations = item.get("annotations")
    annotations = raw_annotations if isinstance(raw_annotations, dict) else {}
    given = _input_schema(item.get("inputSchema"), limits)
    gives, note = _output_schema(item.get("outputSchema"), limits)
    tool = Tool(
        name=name,
        title=_text(item.get("title")) or _text(annotations.get("title")),
        description=_text(item.get("description"), None),
        input_schema=given.schema or {},
        output_schema=gives.schema,
        read_only=_hint(annotations.get("readOnlyHint")),
        destructive=_hint(annotations.get("destructiveHint")),
        open_world=_hint(annotations.get("openWorldHint")),
    )
    words = len(name.encode()) + len(tool.description.encode())
    return ReadTool(tool, words + given.size + gives.size, note)


def _text(value: Any, limit: int | None = 300) -> str:
    return clean(value, limit) if isinstance(value, str) else ""


def _hint(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _input_schema(value: Any, limits: Limits) -> ReadSchema:
    """The schema of the arguments; absent means an object without known properties."""
    if value is None:
        return ReadSchema(dict(EMPTY_SCHEMA))
    if not isinstance(value, dict):
        raise _BadTool("its input schema is no object")
    value = _without_nulls(value)
    kind = value.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise _BadTool(f"its input schema is of type {clean(json.dumps(kind), 50)}, not object")
    if not isinstance(value.get("properties", {}), dict):
        raise _BadTool("the properties of its input schema are no object")
    found = read_schema(value, limits)
    if found.fault or found.schema is None:
        raise _BadTool(f"its input schema {found.fault}")
    return found


def _output_schema(value: Any, limits: Limits) -> tuple[ReadSchema, str]:
    """The schema of structured results and what is odd about it: it never costs the tool (D14)."""
    if value is None:
        return ReadSchema(None), ""
    if not isinstance(value, dict):
        return ReadSchema(None), "its output schema is no object and is ignored"
    found = read_schema(_without_nulls(value), limits)
    if not found.fault:
        return found, ""
    then = "results are not checked" if found.schema is not None else "it is ignored"
    return found, f"its output schema {found.fault}; {then}"


def _without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """Some languages write null for a list or an object that is empty (D11)."""
    return {
        key: value for key, value in schema.items() if value is not None or key in _NULL_MEANS_NULL
    }


def _label(item: Any, position: int) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    shown = clean(name, 100) if isinstance(name, str) else ""
    return f"“{shown}”" if shown else f"number {position}"
