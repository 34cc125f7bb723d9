"""Agreeing on a revision, newest first: `server/discover`, then `initialize` from the newest
revision down, at last an `initialize` that names none (U19, U20).

A server that ignores the probe must not cost its time-out: after `PROBE_PATIENCE` seconds
`initialize` is sent too, and the first usable answer wins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from servers.limits import TimeLimit
from servers.mcp.elicitation import capabilities
from servers.mcp.errors import HttpRefusal, NotMcp, RpcError, own_words
from servers.mcp.session import CLIENT_INFO, Session
from servers.mcp.transport import end_tasks
from servers.mcp.types import ConnectionLost, ServerError

PROBE_PATIENCE: Final = 2.0
HANDSHAKE: Final = "handshake"
MODERN: Final = "discover"
DISCOVER: Final = "server/discover"
# In words for people who never read the specification, which the method's name is for.
DISCOVERED: Final = f"newest protocol: it answered {DISCOVER}"
SHOOK: Final = "initialize succeeded"
# Refusals of the probe that would meet every other message too.
OF_EVERYONE: Final = (401, 403, 429)


@dataclass(frozen=True)
class Agreement:
    """`mode` is `MODERN` or `HANDSHAKE`; `how` says in a sentence how it was found, `remembered`
    holds what else the next start is to know."""

    mode: str
    how: str
    remembered: Mapping[str, Any] = field(default_factory=dict)


async def negotiate(session: Session, *, mode: str, limit: TimeLimit) -> Agreement:
    """Agree on a revision. `mode` is what worked last time, or empty. Raises `ServerError`."""
    if mode != HANDSHAKE:
        return await _probe_and_shake(session, limit)
    try:
        how = await _initialize(session, limit)
    except (RpcError, NotMcp, HttpRefusal) as refusal:
        if not _may_have_moved_on(refusal):
            raise
        # What worked last time is forgotten; the refusal is shown if nothing else works.
        with contextlib.suppress(ServerError):
            (await _discover(session, limit)).adopt(session)
            return Agreement(MODERN, f"{_words_of(refusal, 'initialize')}; {DISCOVERED}.")
        raise
    return Agreement(HANDSHAKE, f"{_capital(SHOOK)}{how}.")


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _may_have_moved_on(error: ServerError) -> bool:
    if isinstance(error, HttpRefusal):
        return error.status not in OF_EVERYONE and error.status < 500
    return not isinstance(error, RpcError) or error.code != INTERNAL_ERROR


async def _probe_and_shake(session: Session, limit: TimeLimit) -> Agreement:
    probe = asyncio.create_task(_discover(session, limit))
    tasks: list[asyncio.Task[Any]] = [probe]
    try:
        await asyncio.wait(tasks, timeout=PROBE_PATIENCE)
        if probe.done() and not _worth_a_handshake(probe.exception()):
            probe.result().adopt(session)  # raises why no request gets through at all
            return Agreement(MODERN, f"{_capital(DISCOVERED)}.")
        shake = asyncio.create_task(_initialize(session, limit))
        tasks.append(shake)
        return await _first_usable(session, probe, shake)
    finally:
        await end_tasks(tasks)


async def _first_usable(
    session: Session, probe: asyncio.Task[_Discovery], shake: asyncio.Task[str]
) -> Agreement:
    waiting: set[asyncio.Task[Any]] = {task for task in (probe, shake) if not task.done()}
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        # Of two answers at once the handshake counts: it changed the server's state.
        if probe in done and probe.exception() is None:
            await end_tasks([shake])
            if shake.cancelled() or shake.exception() is not None:
                probe.result().adopt(session)  # over what a handshake cut short has left
                return Agreement(MODERN, f"{_capital(DISCOVERED)}, though late.")
        if shake.done() and not _knows_no_handshake(shake.exception()):
            return Agreement(HANDSHAKE, f"{_fate_of(probe)}; {SHOOK}{shake.result()}.")
    shake.result()  # raises: a server without a handshake, and the probe failed too
    raise AssertionError("a handshake that succeeded has returned above")


def _fate_of(probe: asyncio.Task[_Discovery]) -> str:
    error = probe.exception() if probe.done() else None
    if error is None:
        return f"It was silent on {DISCOVER} for {PROBE_PATIENCE:g} seconds"
    return _words_of(error, DISCOVER)


def _words_of(error: BaseException, method: str) -> str:
    if isinstance(error, _NoCommonRevision):
        return f"It answered {method} but offers older revisions only"
    if isinstance(error, RpcError) and error.code == METHOD_NOT_FOUND:
        return f"It does not know {method} ({error.code})"
    if isinstance(error, RpcError):
        return f"It refused {method} ({error.code})"
    if isinstance(error, HttpRefusal):
        return f"It answered {method} with {error.status}"
    return f"It did not answer {method} in the protocol"


def _knows_no_handshake(error: BaseException | None) -> bool:
    """Whether only the probe can succeed; after any other error it is not waited for."""
    return isinstance(error, RpcError) and error.code == UNSUPPORTED_PROTOCOL_VERSION


def _worth_a_handshake(error: BaseException | None) -> bool:
    """Whether the probe's failure says something of the revision rather than of the server."""
    if isinstance(error, HttpRefusal):
        return error.status not in OF_EVERYONE
    if is_modern(error):
        return bool(_supported(error))
    return isinstance(error, RpcError | NotMcp | ConnectionLost | _NoCommonRevision)


def is_modern(error: BaseException | None) -> TypeGuard[RpcError]:
    """Whether only a server of 2026-07-28 on answers so (Versioning, Backward Compatibility)."""
    if not isinstance(error, RpcError):
        return False
    if error.code == UNSUPPORTED_PROTOCOL_VERSION:
        return bool(_versions_named(error))
    return error.code in (HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY)


@dataclass(frozen=True)
class _Discovery:
    """A usable answer to the probe; whoever decides for it adopts it."""

    version: str
    result: dict[str, Any]

    def adopt(self, session: Session) -> None:
        session.adopt(self.version, self.result, modern=True)


class _NoCommonRevision(ServerError):
    """The server answers the probe but offers only revisions with a handshake."""


async def _discover(session: Session, limit: TimeLimit) -> _Discovery:
    try:
        result = await _ask_to_discover(session, LATEST_MODERN_VERSION, limit)
    except RpcError as error:
        # Once more in a revision that the refusal names, even in the one that was refused.
        named = _modern_among(_versions_named(error))
        if error.code != UNSUPPORTED_PROTOCOL_VERSION or not named:
            raise
        result = await _ask_to_discover(session, named[-1], limit)
    common = _modern_among(result.get("supportedVersions"))
    if not common:
        raise _NoCommonRevision("The server offers no revision of this kind.")
    return _Discovery(common[-1], result)


async def _ask_to_discover(session: Session, version: str, limit: TimeLimit) -> dict[str, Any]:
    return await session.request(
        DISCOVER,
        {"_meta": session.envelope(version)},
        limit=limit,
        headers={MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: DISCOVER},
    )


def _modern_among(versions: Any) -> list[str]:
    versions = versions if isinstance(versions, list) else []
    return [known for known in MODERN_PROTOCOL_VERSIONS if known in versions]


async def _initialize(session: Session, limit: TimeLimit) -> str:
    """Shake hands; servers that refuse a revision are asked for the next older one.

    What is worth telling of it continues a sentence.
    """
    versions: list[str | None] = [*reversed(HANDSHAKE_PROTOCOL_VERSIONS), None]
    refusals: list[ServerError] = []
    while versions:
        version = versions.pop(0)
        session.transport.new_session()
        try:
            result = await session.request("initialize", _introduction(version), limit=limit)
        except (RpcError, HttpRefusal) as error:
            refusals.append(error)
            if not _about_the_version(error):
                raise refusals[0] from None
            versions = _those_named(error, versions)
            continue
        await _finish(session, version, result)
        return _what_happened(version, session.version, len(refusals))
    raise refusals[0]


def _what_happened(asked: str | None, agreed: str, refused: int) -> str:
    if asked is None:
        return " once no revision was named"
    if refused:
        return f" after {refused} newer revision{'s were' if refused > 1 else ' was'} refused"
    return "" if asked == agreed else f"; it answered with its own revision {agreed}"


def _introduction(version: str | None) -> dict[str, Any]:
    params: dict[str, Any] = {"capabilities": capabilities(version), "clientInfo": CLIENT_INFO}
    return params if version is None else {"protocolVersion": version, **params}


def _about_the_version(error: RpcError | HttpRefusal) -> bool:
    if isinstance(error, HttpRefusal):
        # A refusal of the protocol in plain words, as some gateways put it.
        return error.status == 400 and "version" in error.message.lower()
    if error.code == UNSUPPORTED_PROTOCOL_VERSION:
        return bool(_supported(error))
    return error.code == INVALID_PARAMS or "version" in error.message.lower()


def _supported(error: RpcError | HttpRefusal) -> list[str]:
    named = _versions_named(error)
    return [version for version in HANDSHAKE_PROTOCOL_VERSIONS if version in named]


def _versions_named(error: RpcError | HttpRefusal) -> list[Any]:
    data = error.data if isinstance(error, RpcError) else None
    named = data.get("supported") if isinstance(data, dict) else None
    return named if isinstance(named, list) else []


def _those_named(error: RpcError | HttpRefusal, versions: list[str | None]) -> list[str | None]:
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
