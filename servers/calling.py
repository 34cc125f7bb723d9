"""One call of one tool, outside of any run: connect, list, call, close.

The caller is a person at the command line, so the server's policy is asked for the trust level
`creator` (requirements, section 0).
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from servers.mcp.types import CallResult, ServerError, ServerUnavailable, Tool
from servers.policy import Policy
from servers.spawning import Tell, get_spawner
from umpteenth.core.connections import closing
from umpteenth.core.masking import Masker
from umpteenth.core.text import clean

if TYPE_CHECKING:
    from servers.mcp.client import Connection
    from servers.mcp.types import Asker, ConnectionSettings, ProgressCallback
    from servers.models import Server

TRUST = "creator"

# Names that a mistyped one is compared with, and those that are shown.
MAX_COMPARED: Final = 1000
MAX_COMPARED_NAME: Final = 100  # characters
MAX_NEAR: Final = 3
MAX_SHOWN: Final = 10


def _prepare(server: Server) -> tuple[ConnectionSettings, Masker]:
    """Resolve what the call needs. Raises `SecretError` or `ServerError`."""
    from servers.connecting import connection_settings

    if not server.enabled:
        raise ServerError(
            f"{server.name} is disabled; nothing was sent.",
            f"Enable it with: umpteenth mcp enable {server.name}",
        )
    settings, mask = connection_settings(server)
    masker = Masker(mask)
    if settings.credentials is not None:
        settings.credentials.tell(masker.learn)
    return settings, masker


async def call_once(
    server: Server,
    tool: str,
    arguments: dict[str, Any],
    *,
    timeout: float | None = None,
    ask: Asker | None = None,
    on_progress: ProgressCallback | None = None,
    on_notice: Tell | None = None,
) -> CallResult:
    """The tool's answer with secrets masked. Raises `SecretError` or `ServerError`.

    `ask` answers questions of the server, see `servers.mcp.client.connect`. `on_notice` gets
    sentences about what happened on the way, masked too. A tool that fails and that the server
    does not list comes with a warning that names those near it.
    """
    from servers.mcp.client import connect

    # Django's database calls may not run in the thread of an event loop.
    settings, masker = await asyncio.to_thread(closing, partial(_prepare, server))
    observer = _Observer(masker, on_notice)
    spawn = get_spawner(settings=settings, server_id=server.pk, tell=observer.notice)
    for warning in settings.warnings:
        observer.notice(warning)
    report = _masked(on_progress, masker)
    try:
        async with connect(settings, spawn=spawn, observer=observer, ask=ask) as connection:
            listed = await _check_policy(connection, Policy.from_json(server.policy), tool)
            async with _slot(server, settings, tool, timeout):
                result = await connection.call_tool(
                    tool, arguments, timeout=timeout, on_progress=report
                )
    except ServerError as error:
        error.message = masker.mask(error.message)
        error.args = (error.message,)
        error.hint, error.stderr_tail = masker.mask(error.hint), masker.mask(error.stderr_tail)
        raise
    if not result.ok and (words := _unlisted_words(tool, listed)):
        result = replace(result, warnings=[*result.warnings, words])
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


async def _check_policy(connection: Connection, policy: Policy, name: str) -> list[str]:
    """Lists the tools, which the call's own checks need too; their names. Raises `ServerError`."""
    from servers.mcp.errors import RpcError

    try:
        listed = (await connection.tools()).tools
    except RpcError:
        listed = []  # it may still be called, by its name alone
    tool = next((each for each in listed if each.name == name), Tool(name))
    refusal = policy.refusal(tool, TRUST)
    if refusal:
        raise ServerError(
            f"{name} was not called: {refusal}.",
            "An administrator can change the tool policy on the server's page.",
        )
    return [each.name for each in listed]


def _unlisted_words(name: str, listed: Sequence[str]) -> str:
    """What the server does list, where it does not list the tool; empty where it does."""
    if not listed or name in listed:
        return ""
    candidates = [each for each in listed[:MAX_COMPARED] if len(each) <= MAX_COMPARED_NAME]
    near = difflib.get_close_matches(name[:MAX_COMPARED_NAME], candidates, n=MAX_NEAR, cutoff=0.6)
    head = f"The server lists no tool {clean(name, MAX_COMPARED_NAME)!r}."
    if near:
        return f"{head} Near it: {', '.join(near)}."
    shown = ", ".join(clean(each, MAX_COMPARED_NAME) for each in listed[:MAX_SHOWN])
    more = len(listed) - MAX_SHOWN
    return f"{head} It lists {shown}{f' and {more} more' if more > 0 else ''}."


def _masked(report: ProgressCallback | None, masker: Masker) -> ProgressCallback | None:
    if report is None:
        return None

    async def masked(progress: float, total: float | None, message: str | None) -> None:
        await report(progress, total, masker.mask(message) if message else None)

    return masked


@dataclass(frozen=True)
class _Observer:
    """Hands on notices; steps and standard error are for tests."""

    masker: Masker
    tell: Tell | None

    def step(self, label: str) -> None:
        pass

    def stderr(self, line: str) -> None:
        pass

    def notice(self, sentence: str) -> None:
        if self.tell is not None:
            self.tell(self.masker.mask(sentence))
