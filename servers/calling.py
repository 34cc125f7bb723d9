"""One call of one tool, outside of any run: connect, call, close."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from servers.mcp.types import CallResult, ServerError
from servers.spawning import get_spawner
from umpteenth.core.masking import Masker

if TYPE_CHECKING:
    from servers.mcp.types import ConnectionSettings
    from servers.models import Server


def prepare(server: Server) -> tuple[ConnectionSettings, Masker]:
    """Resolve what the call needs. Raises `SecretError` or `ServerError`."""
    from servers.connecting import connection_settings

    settings, mask = connection_settings(server)
    return settings, Masker(mask)


async def call_once(
    server: Server, tool: str, arguments: dict[str, Any], *, timeout: float | None = None
) -> CallResult:
    """The tool's answer with secrets masked. Raises `SecretError` or `ServerError`."""
    from servers.mcp.client import connect

    settings, masker = await asyncio.to_thread(_prepare_in_thread, server)
    spawn = get_spawner(settings=settings, server_id=server.pk)
    try:
        async with connect(settings, spawn=spawn) as connection:
            result = await connection.call_tool(tool, arguments, timeout=timeout)
    except ServerError as error:
        error.message = masker.mask(error.message)
        error.args = (error.message,)
        error.hint, error.stderr_tail = masker.mask(error.hint), masker.mask(error.stderr_tail)
        raise
    return replace(
        result,
        text=masker.mask(result.text),
        structured=masker.mask_json(result.structured),
        content=masker.mask_json(result.content),
        error=masker.mask(result.error),
    )


def _prepare_in_thread(server: Server) -> tuple[ConnectionSettings, Masker]:
    """Django's database calls may not run in the thread of an event loop."""
    from django.db import connections

    try:
        return prepare(server)
    finally:
        connections.close_all()
