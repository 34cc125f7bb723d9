"""Agreeing on a revision, newest first: `server/discover`, then `initialize` from the newest
revision down, at last an `initialize` that names none (U19, U20).

A server that ignores the probe must not cost its time-out: after `PROBE_PATIENCE` seconds
`initialize` is sent too, and the first usable answer wins.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INVALID_PARAMS, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from servers.limits import TimeLimit
from servers.mcp.errors import HttpRefusal, NotMcp, RpcError, own_words
from servers.mcp.session import CLIENT_CAPABILITIES, CLIENT_INFO, Session
from servers.mcp.transport import end_tasks
from servers.mcp.types import ConnectionLost, ServerError

PROBE_PATIENCE: Final = 2.0
HANDSHAKE: Final = "handshake"
MODERN: Final = "discover"


async def negotiate(session: Session, *, mode: str, limit: TimeLimit) -> str:
    """Agree on a revision and return how: `MODERN` or `HANDSHAKE`.

    `mode` is what worked last time, or empty. Raises `ServerError`.
    """
    if mode != HANDSHAKE:
        return await _probe_and_shake(session, limit)
    try:
        await _initialize(session, limit)
    except RpcError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await _discover(session, limit)
        return MODERN
    return HANDSHAKE


async def _probe_and_shake(session: Session, limit: TimeLimit) -> str:
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(_discover(session, limit))]
    probe = tasks[0]
    try:
        await asyncio.wait(tasks, timeout=PROBE_PATIENCE)
        if probe.done() and not _worth_a_handshake(probe.exception()):
            probe.result()  # raises the reason why no request gets through at all
            return MODERN
        shake = asyncio.create_task(_initialize(session, limit))
        tasks.append(shake)
        return await _first_usable(probe, shake)
    finally:
        await end_tasks(tasks)


async def _first_usable(probe: asyncio.Task[None], shake: asyncio.Task[None]) -> str:
    waiting = {task for task in (probe, shake) if not task.done()}
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        # Of two answers at once the handshake counts: it changed the server's state.
        if shake in done and not _knows_no_handshake(shake.exception()):
            shake.result()
            return HANDSHAKE
        if probe in done and probe.exception() is None:
            return MODERN
    shake.result()  # raises: a server without a handshake, and the probe failed too
    return HANDSHAKE


def _knows_no_handshake(error: BaseException | None) -> bool:
    """Whether only the probe can succeed; after any other error it is not waited for."""
    return isinstance(error, RpcError) and error.code == UNSUPPORTED_PROTOCOL_VERSION


def _worth_a_handshake(error: BaseException | None) -> bool:
    """Whether the probe's failure says something of the revision rather than of the server."""
    if isinstance(error, HttpRefusal):
        return error.status not in (401, 403, 429)
    return isinstance(error, RpcError | NotMcp | ConnectionLost | _NoCommonRevision)


class _NoCommonRevision(ServerError):
    """The server answers the probe but offers only revisions with a handshake."""


async def _discover(session: Session, limit: TimeLimit) -> None:
    version = LATEST_MODERN_VERSION
    result = await session.request(
        "server/discover",
        {"_meta": session.envelope(version)},
        limit=limit,
        headers={MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: "server/discover"},
    )
    offered = result.get("supportedVersions")
    offered = offered if isinstance(offered, list) else []
    common = [known for known in MODERN_PROTOCOL_VERSIONS if known in offered]
    if not common:
        raise _NoCommonRevision("The server offers no revision of this kind.")
    session.adopt(common[-1], result, modern=True)


async def _initialize(session: Session, limit: TimeLimit) -> None:
    """Shake hands; servers that refuse a revision are asked for the next older one."""
    versions: list[str | None] = [*reversed(HANDSHAKE_PROTOCOL_VERSIONS), None]
    refusal: RpcError | None = None
    while versions:
        version = versions.pop(0)
        session.transport.new_session()
        try:
            result = await session.request("initialize", _introduction(version), limit=limit)
        except RpcError as error:
            refusal = refusal or error
            if not _about_the_version(error):
                raise
            versions = _those_named(error, versions)
            continue
        await _finish(session, version, result)
        return
    assert refusal is not None
    raise refusal


def _introduction(version: str | None) -> dict[str, Any]:
    params: dict[str, Any] = {"capabilities": CLIENT_CAPABILITIES, "clientInfo": CLIENT_INFO}
    return params if version is None else {"protocolVersion": version, **params}


def _about_the_version(error: RpcError) -> bool:
    if error.code == UNSUPPORTED_PROTOCOL_VERSION:
        return bool(_supported(error))
    return error.code == INVALID_PARAMS or "version" in error.message.lower()


def _supported(error: RpcError) -> list[str]:
    named = error.data.get("supported") if isinstance(error.data, dict) else None
    named = named if isinstance(named, list) else []
    return [version for version in HANDSHAKE_PROTOCOL_VERSIONS if version in named]


def _those_named(error: RpcError, versions: list[str | None]) -> list[str | None]:
    """The revisions left to try; if the server names some, only those."""
    named = _supported(error)
    return [version for version in versions if version is None or not named or version in named]


async def _finish(session: Session, asked: str | None, result: dict[str, Any]) -> None:
    version = result.get("protocolVersion", asked or LATEST_HANDSHAKE_VERSION)
    if version not in HANDSHAKE_PROTOCOL_VERSIONS:
        raise NotMcp(
            f"The server speaks protocol revision {own_words(str(version), 50)}, "
            "which Umpteenth does not know."
        )
    session.adopt(version, result, modern=False)
    await session.notify("notifications/initialized")
