"""One call of one tool, outside of any run: connect, list, call, close.

The caller is a person at the command line, so the server's policy is asked for the trust level
`creator` (requirements, section 0).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from servers.mcp.types import CallResult, ServerError, ServerUnavailable, Tool
from servers.policy import Policy
from servers.spawning import get_spawner
from umpteenth.core.connections import closing
from umpteenth.core.masking import Masker

if TYPE_CHECKING:
    from servers.mcp.client import Connection
    from servers.mcp.types import Asker, ConnectionSettings
    from servers.models import Server

TRUST = "creator"


def _prepare(server: Server) -> tuple[ConnectionSettings, Masker]:
    """Resolve what the call needs. Raises `SecretError` or `ServerError`."""
    from servers.connecting import connection_settings

    settings, mask = connection_settings(server)
    return settings, Masker(mask)


async def call_once(
    server: Server,
    tool: str,
    arguments: dict[str, Any],
    *,
    timeout: float | None = None,
    ask: Asker | None = None,
) -> CallResult:
    """The tool's answer with secrets masked. Raises `SecretError` or `ServerError`.

    `ask` answers questions of the server, see `servers.mcp.client.connect`.
    """
    from servers.mcp.client import connect

    # Django's database calls may not run in the thread of an event loop.
    settings, masker = await asyncio.to_thread(closing, partial(_prepare, server))
    spawn = get_spawner(settings=settings, server_id=server.pk)
    try:
        async with connect(settings, spawn=spawn, ask=ask) as connection:
            await _check_policy(connection, Policy.from_json(server.policy), tool)
            async with _slot(server, settings, tool, timeout):
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
        warnings=[masker.mask(warning) for warning in result.warnings],
    )


@contextlib.asynccontextmanager
async def _slot(
    server: Server, settings: ConnectionSettings, tool: str, timeout: float | None
) -> AsyncIterator[None]:
    """A place among the server's calls, those of runs included (U5). Raises `ServerUnavailable`."""
    from servers.inflight import Busy, slot

    wait = settings.call_limit(tool, timeout)
    try:
        async with slot(server.pk, settings.max_inflight, wait=wait.seconds):
            yield
    except Busy:
        raise ServerUnavailable(
            f"{server.name} was busy with other calls for {wait.seconds:,.0f} seconds; "
            "nothing was sent."
        ) from None


async def _check_policy(connection: Connection, policy: Policy, name: str) -> None:
    """Lists the tools, which the call's own checks need too. Raises `ServerError`."""
    from servers.mcp.errors import RpcError

    try:
        listed = (await connection.tools()).tools
    except RpcError:
        listed = []  # it may still be called, by its name alone
    tool = next((each for each in listed if each.name == name), Tool(name))
    refusal = policy.refusal(tool, TRUST)
    if refusal:
        raise ServerError(
            f"{name} was not called: {refusal}.", "Change the server's tool policy to allow it."
        )
