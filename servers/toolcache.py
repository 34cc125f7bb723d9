"""The tools that a server listed last, as rows: only what differs is written.

Most looks at a server find what the one before found, and some servers have thousands of tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from servers.changes import Changes
from servers.mcp.types import Tool as ListedTool
from servers.mcp.types import ToolList
from servers.models import Tool
from umpteenth.core.masking import Masker

BATCH = 200
_WRITTEN = [
    "position",
    "title",
    "description",
    "input_schema",
    "output_schema",
    "read_only",
    "destructive",
    "open_world",
    "content_hash",
]


@dataclass(frozen=True)
class Row:
    """`masked`: the row differs from what was listed, so that an equal hash does not make it
    equal to what is stored: a value may have become a secret since."""

    tool: Tool
    masked: bool


def rows_of(server_id: UUID, tools: ToolList, masker: Masker) -> list[Row]:
    """A name that holds a secret could not be called by its masked form: it is left out."""
    usable = [tool for tool in tools.tools if masker.mask(tool.name) == tool.name]
    return [_row(server_id, position, tool, masker) for position, tool in enumerate(usable)]


def left_out(tools: ToolList, masker: Masker) -> list[str]:
    """The masked names of the tools that have no row, since their names hold a secret."""
    pairs = ((tool.name, masker.mask(tool.name)) for tool in tools.tools)
    return [masked for name, masked in pairs if masked != name]


def replace(server_id: UUID, rows: list[Row]) -> Changes:
    """Make the rows the server's tools; the caller holds a lock on the server."""
    tools = Tool.objects.filter(server_id=server_id).order_by("position")
    stored = {
        name: (digest, position)
        for name, digest, position in tools.values_list("name", "content_hash", "position")
    }
    changes = Changes.between(
        {name: digest for name, (digest, _) in stored.items()},
        {row.tool.name: row.tool.content_hash for row in rows},
    )
    for names in _batches(changes.removed):
        Tool.objects.filter(server_id=server_id, name__in=names).delete()
    Tool.objects.bulk_create(
        [row.tool for row in rows if row.masked or stored.get(row.tool.name) != _mark(row.tool)],
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["server", "name"],
        update_fields=_WRITTEN,
    )
    return changes


def _mark(tool: Tool) -> tuple[str, int]:
    return tool.content_hash, tool.position


def _batches(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), BATCH):
        yield names[start : start + BATCH]


def _row(server_id: UUID, position: int, tool: ListedTool, masker: Masker) -> Row:
    words = (tool.title, tool.description), (tool.input_schema, tool.output_schema)
    masked = words
    # Thousands of tools have hundreds of thousands of words: one look tells most of them apart.
    text = "\0".join(_texts(words))
    if masker.mask(text) != text:
        (title, description), schemas = words
        masked = (
            (masker.mask(title), masker.mask(description)),
            (masker.mask_json(schemas[0]), masker.mask_json(schemas[1])),
        )
    row = Tool(
        server_id=server_id,
        position=position,
        name=tool.name,
        title=masked[0][0],
        description=masked[0][1],
        input_schema=masked[1][0],
        output_schema=masked[1][1],
        read_only=tool.read_only,
        destructive=tool.destructive,
        open_world=tool.open_world,
        content_hash=tool.content_hash,
    )
    return Row(row, masked=masked != words)


def _texts(value: Any) -> Iterator[str]:
    """Every text, key and number that masking would look at."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            pending += item
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield repr(item)
