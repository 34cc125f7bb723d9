"""An answer counts for the request whose id it bears, and for no other."""

from __future__ import annotations

import json

import pytest

from servers.mcp.client import connect
from servers.mcp.types import ServerUnavailable
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import EVENTS, JSON, FakeHttp, Reply, Request, event
from tests.fakes.mcp_server import Behaviour, Message, text

WELCOME: Message = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}


def a_result(identity: object, result: Message, kind: str) -> Reply:
    answer = {"jsonrpc": "2.0", "id": identity, "result": result}
    body = event(answer) if kind == EVENTS else json.dumps(answer).encode()
    return Reply(200, {"content-type": kind}, body)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (JSON, "The server's answer has the id of another request."),
        (EVENTS, "The stream closed before the answer came."),
    ],
)
@pytest.mark.parametrize("identity", [4711, "another"])
async def test_a_welcome_to_somebody_else_is_no_connection(
    kind: str, sentence: str, identity: object
) -> None:
    """P5, B02: such a server was shown as connected, without tools."""

    def script(request: Request) -> Reply | None:
        return a_result(identity, WELCOME, kind) if request.rpc == "initialize" else None

    async with FakeHttp(Behaviour(), script=script) as server:
        with pytest.raises(ServerUnavailable) as caught:
            async with connect(http_settings(server.url)):
                pass
    assert caught.value.message == sentence


async def test_a_number_that_comes_back_as_text_is_the_same_id() -> None:
    def script(request: Request) -> Reply | None:
        if request.rpc != "tools/call":
            return None
        return a_result(str(request.message["id"]), text("hello"), JSON)

    async with (
        FakeHttp(Behaviour(), script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        assert (await connection.call_tool("echo", {})).text == "hello"


async def test_what_belongs_to_nobody_is_passed_over_in_a_stream() -> None:
    def script(request: Request) -> Reply | None:
        if request.rpc != "tools/call":
            return None
        stray = event({"jsonrpc": "2.0", "id": 4711, "result": text("stray")})
        mine = event({"jsonrpc": "2.0", "id": request.message["id"], "result": text("mine")})
        return Reply(200, {"content-type": EVENTS}, stray + mine)

    async with (
        FakeHttp(Behaviour(), script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        assert (await connection.call_tool("echo", {})).text == "mine"
