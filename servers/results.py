"""Keeps what a connection found out: the tools of the last success, the error of a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from django.db import transaction
from django.utils import timezone

from servers.mcp.types import LoginRequired, ServerError, ToolList
from servers.mcp.types import Tool as ListedTool
from servers.models import Server, Tool
from umpteenth.core.masking import Masker
from umpteenth.core.text import clean, clean_json

MAX_ERROR = 4000
MAX_INSTRUCTIONS = 20_000
BATCH = 200


class Found(Protocol):
    """What is kept of a `servers.mcp.client.Connection`."""

    @property
    def protocol_version(self) -> str: ...
    @property
    def server_name(self) -> str: ...
    @property
    def server_version(self) -> str: ...
    @property
    def instructions(self) -> str: ...
    @property
    def remembered(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Changes:
    """How the tools differ from the success before, by name, in the server's order."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    def as_json(self) -> dict[str, list[str]]:
        return {"added": self.added, "removed": self.removed, "changed": self.changed}


def store_success(
    server: Server,
    connection: Found,
    tools: ToolList,
    *,
    masker: Masker | None = None,
) -> Changes | None:
    """Replace the cached tools, all at once (P28).

    None, and nothing is kept, if the server was edited since `server` was read: what was
    found belongs to settings that no longer exist.
    """
    masker = masker or Masker({})
    rows = _rows(server, tools, masker)
    with transaction.atomic():
        current = Server.objects.filter(
            pk=server.pk, connection_version=server.connection_version
        ).update(**_columns(connection, len(rows), masker))
        if not current:
            return None
        before = dict(Tool.objects.filter(server=server).values_list("name", "content_hash"))
        Tool.objects.filter(server=server).delete()
        Tool.objects.bulk_create(rows, batch_size=BATCH)
    # The first success has nothing to compare with.
    return _compare(before, rows) if server.tested_at else Changes([], [], [])


def store_failure(server: Server, error: ServerError, *, masker: Masker | None = None) -> bool:
    """Note the failure and keep the tools. False if the server was edited meanwhile."""
    masker = masker or Masker({})
    login = isinstance(error, LoginRequired)
    state = Server.State.LOGIN_REQUIRED if login else Server.State.FAILED
    return bool(
        Server.objects.filter(pk=server.pk, connection_version=server.connection_version).update(
            state=state,
            checked_at=timezone.now(),
            last_error=clean(masker.mask(error.message), MAX_ERROR),
        )
    )


def _columns(connection: Found, tool_count: int, masker: Masker) -> dict[str, Any]:
    now = timezone.now()
    return {
        "state": Server.State.CONNECTED,
        "tested_at": now,
        "checked_at": now,
        "tool_count": tool_count,
        "last_error": "",
        "protocol_version": clean(connection.protocol_version or "", 20),
        "server_name": clean(masker.mask(connection.server_name or ""), 200),
        "server_version": clean(masker.mask(connection.server_version or ""), 100),
        "instructions": clean(masker.mask(connection.instructions or ""), MAX_INSTRUCTIONS),
        "remembered": clean_json(dict(connection.remembered)),
    }


def _rows(server: Server, tools: ToolList, masker: Masker) -> list[Tool]:
    """A name that holds a secret could not be called by its masked form: it is left out."""
    usable = [tool for tool in tools.tools if masker.mask(tool.name) == tool.name]
    return [_row(server, position, tool, masker) for position, tool in enumerate(usable)]


def _row(server: Server, position: int, tool: ListedTool, masker: Masker) -> Tool:
    return Tool(
        server=server,
        position=position,
        name=tool.name,
        title=masker.mask(tool.title),
        description=masker.mask(tool.description),
        input_schema=masker.mask_json(tool.input_schema),
        output_schema=masker.mask_json(tool.output_schema),
        read_only=tool.read_only,
        destructive=tool.destructive,
        open_world=tool.open_world,
        content_hash=tool.content_hash,
    )


def _compare(before: dict[str, str], rows: list[Tool]) -> Changes:
    now = {row.name for row in rows}
    return Changes(
        added=[row.name for row in rows if row.name not in before],
        removed=[name for name in before if name not in now],
        changed=[
            row.name for row in rows if row.name in before and before[row.name] != row.content_hash
        ],
    )
