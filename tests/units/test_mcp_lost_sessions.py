"""Sessions that are lost between calls: lists, other shapes of answers, sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from servers.mcp.types import LoginRequired, ServerError
from tests.fakes.http_calls import connected, json_reply
from tests.fakes.mcp_http import EVENTS, Reply, Request, event
from tests.fakes.mcp_server import TOOLS, Message

LOST: Message = {"code": -32600, "message": "Session not found"}
NOBODYS: Message = {"jsonrpc": "2.0", "id": None, "error": LOST}
NOT_INITIALIZED: Message = {"code": -32000, "message": "Bad Request: Server not initialized"}
DISGUISES = {
    "event": Reply(200, {"content-type": EVENTS}, event({"jsonrpc": "2.0", "error": LOST})),
    "json": json_reply(NOBODYS),
    "400": json_reply(NOBODYS, 400),
    "restarted": json_reply({"jsonrpc": "2.0", "id": None, "error": NOT_INITIALIZED}, 400),
    "401": Reply(401),
}


@pytest.fixture(params=["json", "sse", "socket"])
def options(request: pytest.FixtureRequest, short_dir: Path) -> dict[str, Any]:
    if request.param == "socket":
        return {"socket_path": str(short_dir / "s")}
    return {"answer": request.param}


async def test_after_a_restart_of_the_server_everything_goes_on(options: dict[str, Any]) -> None:
    """B01: the list, calls, and the list again; each session is renewed once."""
    async with connected(**options) as (server, connection):
        for restarts in (1, 2, 3):
            server.known_sessions.clear()
            assert len((await connection.list_tools()).tools) == len(TOOLS)
            assert server.rpcs().count("initialize") == 2 * restarts
            server.known_sessions.clear()
            assert (await connection.call_tool("count", {})).text == str(restarts)
            assert server.rpcs().count("initialize") == 1 + 2 * restarts
        assert len(server.known_sessions) == 1


async def test_a_server_that_forgets_every_session_at_once_is_not_asked_for_ever() -> None:
    """B01: the call is made once more and no more often."""

    def script(request: Request) -> Reply | None:
        return Reply(404) if request.rpc == "tools/call" else None

    async with connected(script) as (server, connection):
        with pytest.raises(ServerError):
            await connection.call_tool("count", {})
    assert server.rpcs().count("tools/call") == 2
    assert server.rpcs().count("initialize") == 2


@pytest.mark.parametrize("reply", DISGUISES.values(), ids=DISGUISES)
async def test_a_list_that_meets_a_lost_session_in_disguise_fails_at_once_and_the_next_is_fine(
    reply: Reply,
) -> None:
    """B01, B02: no hang, and a connection that works again on its next use."""
    lost = [reply]

    def script(request: Request) -> Reply | None:
        return lost.pop() if request.rpc == "tools/list" and lost else None

    async with connected(script, settings={"request_timeout": 20}) as (server, connection):
        with pytest.raises(ServerError) as caught:
            await connection.list_tools()
        assert "within 20 seconds" not in caught.value.message
        assert isinstance(caught.value, LoginRequired) is (reply.status == 401)
        assert len((await connection.list_tools()).tools) == len(TOOLS)
    assert server.rpcs().count("initialize") == 2


@pytest.mark.parametrize("hurdle", ["refused", "silent"])
async def test_a_renewal_that_comes_to_nothing_is_made_up_for_by_the_next_call(
    hurdle: str,
) -> None:
    """B01, C24: a server that is just starting up, a call that is cancelled meanwhile."""
    hurdles: list[str] = []

    async def script(request: Request) -> Reply | None:
        if request.rpc != "initialize" or not hurdles:
            return None
        if hurdles.pop() == "silent":
            await asyncio.Event().wait()
        return Reply(500)

    async with connected(script) as (server, connection):
        hurdles.append(hurdle)
        server.known_sessions.clear()
        server.known_sessions.add("another")
        with pytest.raises(ServerError) as caught:
            await connection.call_tool("count", {}, timeout=0.5)
        assert not hurdles
        assert "may have happened" not in caught.value.message  # 404: it was not run (A49)
        assert (await connection.call_tool("count", {})).text == "1"
    assert server.rpcs().count("initialize") == 3
