"""Reading `tools/list`: page by page, item by item, so that one bad tool costs only itself."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from servers.limits import MAX_DEFINITION_BYTES, MAX_PAGES, MAX_TOOL_NAME, MAX_TOOLS, MIB
from servers.mcp.types import Tool, ToolList
from umpteenth.core.text import clean, clean_json

# Asks for one page; None asks for the first.
FetchPage = Callable[[str | None], Awaitable[dict[str, Any]]]

MAX_WARNINGS = 50
EMPTY_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


class _BadTool(Exception):
    """A tool that is left out; the message says why."""


async def read_pages(fetch: FetchPage) -> ToolList:
    """All tools within the limits. Raises what `fetch` raises."""
    reader = _Reader()
    cursor: str | None = None
    seen: set[str | None] = {None}
    for page in range(1, MAX_PAGES + 1):
        result = await fetch(cursor)
        if not reader.take(result.get("tools"), page):
            break
        cursor = result.get("nextCursor")
        if cursor is None:
            break
        if not isinstance(cursor, str):
            reader.warn(f"Page {page} of the tools names an unusable next page; the list ends.")
            break
        if cursor in seen:
            reader.warn("The server names a page of tools that was read before; the list ends.")
            break
        seen.add(cursor)
    else:
        reader.warn(f"The server has more than {MAX_PAGES} pages of tools; the rest is left out.")
    return ToolList(list(reader.tools.values()), reader.warnings)


class _Reader:
    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.warnings: list[str] = []
        self._said: set[str] = set()
        self._bytes = 0
        self._position = 0

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def _warn_of_tool(self, sentence: str) -> None:
        """Once for each tool, and not for thousands."""
        if sentence in self._said:
            return
        if len(self._said) < MAX_WARNINGS:
            self.warn(sentence)
        elif len(self._said) == MAX_WARNINGS:
            self.warn("There are more warnings of this kind.")
        self._said.add(sentence)

    def take(self, items: Any, page: int) -> bool:
        """Read the items of a page; False if the list must end here."""
        if not isinstance(items, list):
            self.warn(f"Page {page} of the server's answer holds no list of tools.")
            return True
        return all(self._take_one(item) for item in items)

    def _take_one(self, item: Any) -> bool:
        self._position += 1
        try:
            tool = read_tool(item)
        except _BadTool as reason:
            self._warn_of_tool(f"Tool {_label(item, self._position)} is left out: {reason}.")
            return True
        if tool.name in self.tools:
            self._warn_of_tool(
                f"Tool “{clean(tool.name, 100)}” is listed twice; the first one counts."
            )
            return True
        if len(self.tools) == MAX_TOOLS:
            self.warn(f"The server has more than {MAX_TOOLS} tools; the rest is left out.")
            return False
        self._bytes += _size(tool)
        if self._bytes > MAX_DEFINITION_BYTES:
            self.warn(
                f"The tool definitions are larger than {MAX_DEFINITION_BYTES // MIB} MiB; "
                "the rest is left out."
            )
            return False
        self.tools[tool.name] = tool
        return True


def read_tool(item: Any) -> Tool:
    """A tool from its raw definition, tolerant of all but name and input schema (D08, D11)."""
    if not isinstance(item, dict):
        raise _BadTool("it is no object")
    raw_annotations = item.get("annotations")
    annotations = raw_annotations if isinstance(raw_annotations, dict) else {}
    return Tool(
        name=_name(item.get("name")),
        title=_text(item.get("title")) or _text(annotations.get("title")),
        description=_text(item.get("description"), None),
        input_schema=_input_schema(item.get("inputSchema")),
        output_schema=_output_schema(item.get("outputSchema")),
        read_only=_hint(annotations.get("readOnlyHint")),
        destructive=_hint(annotations.get("destructiveHint")),
        open_world=_hint(annotations.get("openWorldHint")),
    )


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _BadTool("it has no name")
    if len(value) > MAX_TOOL_NAME:
        raise _BadTool(f"its name is longer than {MAX_TOOL_NAME} characters")
    if clean(value) != value:
        raise _BadTool("its name holds characters that cannot be shown")
    return value


def _text(value: Any, limit: int | None = 300) -> str:
    return clean(value, limit) if isinstance(value, str) else ""


def _hint(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _input_schema(value: Any) -> dict[str, Any]:
    """The schema of the arguments; absent means an object without known properties."""
    if value is None:
        return dict(EMPTY_SCHEMA)
    if not isinstance(value, dict):
        raise _BadTool("its input schema is no object")
    kind = value.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise _BadTool(f"its input schema is of type {clean(json.dumps(kind), 50)}, not object")
    if not isinstance(value.get("properties", {}), dict):
        raise _BadTool("the properties of its input schema are no object")
    schema: dict[str, Any] = clean_json(value)
    return schema


def _output_schema(value: Any) -> dict[str, Any] | None:
    return clean_json(value) if isinstance(value, dict) else None


def _label(item: Any, position: int) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    shown = clean(name, 100) if isinstance(name, str) else ""
    return f"“{shown}”" if shown else f"number {position}"


def _size(tool: Tool) -> int:
    schemas = json.dumps([tool.input_schema, tool.output_schema])
    return len(tool.name.encode()) + len(tool.description.encode()) + len(schemas)
