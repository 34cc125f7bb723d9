"""Shortcuts of the tests that call the fake MCP server over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from servers.mcp.client import Connection, connect
from servers.mcp.types import ConnectionSettings, TransportKind
from tests.fakes.mcp_helpers import Recorder, http_settings
from tests.fakes.mcp_http import EVENTS, JSON, FakeHttp, Reply, Request, Script
from tests.fakes.mcp_server import Message, text

CALL = 3  # the id of the first call: the probe and the handshake came before


@asynccontextmanager
async def connected(
    script: Script | None = None,
    *,
    settings: dict[str, Any] | None = None,
    observer: Recorder | None = None,
    **options: Any,
) -> AsyncIterator[tuple[FakeHttp, Connection]]:
    """`options` are the fake's, `settings` the client's."""
    async with (
        FakeHttp(script=script, **options) as server,
        connect(settings_for(server, **settings or {}), observer=observer) as connection,
    ):
        yield server, connection


def settings_for(server: FakeHttp, **options: Any) -> ConnectionSettings:
    path = server.socket_path
    kind: TransportKind = "unix" if path else "http"
    return replace(http_settings(server.url, **options), transport=kind, socket_path=path)


def on_rpc(method: str, reply: Reply) -> Script:
    """Answers every request of a method with `reply`, and leaves the rest to the fake."""
    return lambda request: reply if request.rpc == method else None


def on_call(reply: Reply | bytes) -> Script:
    """The same for tool calls; bytes are events."""
    if isinstance(reply, bytes):
        reply = Reply(200, {"content-type": EVENTS}, reply)
    return on_rpc("tools/call", reply)


def on_get(reply: Reply) -> Script:
    def script(request: Request) -> Reply | None:
        return reply if request.method == "GET" else None

    return script


def result_of_call(words: str) -> Message:
    return {"jsonrpc": "2.0", "id": CALL, "result": text(words)}


def json_reply(message: Any, status: int = 200) -> Reply:
    return Reply(status, {"content-type": JSON}, json.dumps(message).encode())
