"""Sessions over Streamable HTTP: given, missing, forgotten in every disguise, given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from servers.mcp.client import connect
from servers.mcp.errors import SessionExpired
from servers.mcp.types import LoginRequired, ServerError, ServerUnavailable
from tests.fakes.http_calls import connected, json_reply, on_rpc, settings_for
from tests.fakes.mcp_helpers import Recorder
from tests.fakes.mcp_http import EVENTS, FakeHttp, Reply, Request, event
from tests.fakes.mcp_server import Behaviour, Message

TEXT = {"content-type": "text/plain"}


async def test_a_server_without_sessions_is_accepted() -> None:
    """U16."""
    async with connected(sessions=False) as (server, connection):
        assert (await connection.call_tool("echo", {})).ok
    assert not [request for request in server.requests if request.method == "DELETE"]


async def test_a_forgotten_session_is_renewed_and_the_call_made_once() -> None:
    """B01, U17: 404 means that the call was not run."""
    async with connected() as (server, connection):
        server.known_sessions.clear()
        result = await connection.call_tool("count", {})
        assert result.text == "1"
        calls = await asyncio.gather(*(connection.call_tool("echo", {}) for _ in range(3)))
    assert all(call.ok for call in calls)
    assert server.rpcs().count("initialize") == 2


async def test_calls_at_the_same_time_renew_a_forgotten_session_once() -> None:
    """B01."""
    async with connected() as (server, connection):
        server.known_sessions.clear()
        calls = await asyncio.gather(*(connection.call_tool("echo", {}) for _ in range(4)))
    assert all(call.ok for call in calls)
    assert server.rpcs().count("initialize") == 2


async def test_a_server_that_refuses_a_new_session_got_no_call() -> None:
    """B01, A49: its refusal is of the session, not of the call."""
    async with connected() as (server, connection):
        server.known_sessions.clear()
        refusal = {"code": -32603, "message": "no more sessions today"}

        def script(request: Request) -> Reply | None:
            if request.rpc != "initialize":
                return None
            return json_reply({"jsonrpc": "2.0", "id": request.message["id"], "error": refusal})

        server.script = script
        with pytest.raises(ServerError) as caught:
            await connection.call_tool("count", {})
        assert "could not be renewed: no more sessions today" in caught.value.message
        assert caught.value.message.endswith("The call did not happen.")
        server.script = None
        assert (await connection.call_tool("count", {})).text == "1"


async def test_a_renewed_session_is_on_the_record() -> None:
    """B01."""
    observer = Recorder()
    async with connected(observer=observer) as (server, connection):
        server.known_sessions.clear()
        assert (await connection.call_tool("echo", {})).ok
    assert "session" in observer.notices[0]
    assert "renewed" in observer.notices[0]


@pytest.mark.parametrize("body", [b"", b"Session terminated", b'{"error":"gone"}'])
async def test_a_forgotten_session_is_an_error_where_nobody_wants_it_renewed(body: bytes) -> None:
    """U17."""

    def script(request: Request) -> Reply | None:
        return Reply(404, TEXT, body) if request.rpc == "tools/call" else None

    options = {"reinit_on_expired_session": False}
    async with connected(script, settings=options) as (server, connection):
        for _ in range(2):
            with pytest.raises(ServerError, match=r"forgotten the session: .* 404 Not Found"):
                await connection.call_tool("echo", {})
    assert server.rpcs().count("initialize") == 1
    assert server.rpcs().count("tools/call") == 2


def rpc_error(code: int, message: str, identity: Any = None) -> Message:
    return {"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}}


LOST = rpc_error(-32600, "Session not found")
DISGUISES = {
    "event without id": Reply(
        200, {"content-type": EVENTS}, event({"jsonrpc": "2.0", "error": LOST["error"]})
    ),
    "plain event": Reply(200, {"content-type": EVENTS}, b'data: {"error":"Session not found"}\n\n'),
    "null id": json_reply(LOST),
    "own id": json_reply(rpc_error(-32001, "Session has expired", 3)),
    "other id": json_reply(rpc_error(-32603, "Unknown session", "server-error")),
    "400 json": json_reply(LOST, 400),
    "400 sdk": json_reply(rpc_error(-32000, "Bad Request: No valid session ID provided"), 400),
    "400 words": Reply(400, TEXT, b"Invalid session id"),
    "500 json": json_reply(LOST, 500),
}


@pytest.mark.parametrize("reply", DISGUISES.values(), ids=DISGUISES)
async def test_a_session_lost_in_disguise_fails_the_call_and_is_renewed_for_the_next(
    reply: Reply,
) -> None:
    """B02: no hang, and a call that may have been run is not sent again."""
    lost = [reply]

    def script(request: Request) -> Reply | None:
        return lost.pop() if request.rpc == "tools/call" and lost else None

    async with connected(script) as (server, connection):
        with pytest.raises(SessionExpired, match=r"has forgotten the session: .*[Ss]ession"):
            await connection.call_tool("count", {}, timeout=20)
        assert server.rpcs().count("tools/call") == 1
        assert (await connection.call_tool("count", {})).text == "1"
    assert server.rpcs().count("initialize") == 2


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(400), ServerUnavailable),
        (Reply(401), LoginRequired),
        (Reply(401, TEXT, b"Token?"), LoginRequired),
    ],
)
async def test_a_refusal_that_may_mean_a_lost_session_is_shown_and_the_next_call_renews(
    reply: Reply, kind: type[ServerError]
) -> None:
    """B02: the variants that say nothing of sessions."""
    lost = [reply]

    def script(request: Request) -> Reply | None:
        return lost.pop() if request.rpc == "tools/call" and lost else None

    async with connected(script) as (server, connection):
        with pytest.raises(kind, match=f"{reply.status} "):
            await connection.call_tool("count", {})
        assert (await connection.call_tool("count", {})).text == "1"
    assert server.rpcs().count("initialize") == 2


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(400, TEXT, b"Arguments are too long"), ServerUnavailable),
        (Reply(403), LoginRequired),
        (Reply(500), ServerUnavailable),
        (json_reply(rpc_error(-32602, "Browser session 7 not found", 3)), None),
        (json_reply(rpc_error(-32601, "Unknown method", 3), 404), None),
    ],
)
async def test_other_refusals_leave_the_session_alone(
    reply: Reply, outcome: type[ServerError] | None
) -> None:
    """B02: it may hold the work of many calls."""
    refusals = [reply]

    def script(request: Request) -> Reply | None:
        return refusals.pop() if request.rpc == "tools/call" and refusals else None

    async with connected(script) as (server, connection):
        if outcome is None:
            assert not (await connection.call_tool("echo", {})).ok
        else:
            with pytest.raises(outcome):
                await connection.call_tool("echo", {})
        assert (await connection.call_tool("echo", {})).ok
    assert server.rpcs().count("initialize") == 1


async def test_without_a_session_404_is_no_lost_one() -> None:
    async with connected(on_rpc("tools/call", Reply(404)), sessions=False) as (server, connection):
        with pytest.raises(ServerUnavailable, match="404 Not Found"):
            await connection.call_tool("echo", {})
    assert server.rpcs().count("initialize") == 1


@pytest.mark.parametrize("era", ["legacy", "both", "modern"])
async def test_a_server_without_sessions_is_refused_where_they_are_wanted(era: str) -> None:
    """U16: revision 2026-07-28 knows no sessions."""
    async with FakeHttp(Behaviour(era=era), sessions=False) as server:
        with pytest.raises(ServerUnavailable, match="no session id, and allow_stateless is off"):
            async with connect(settings_for(server, allow_stateless=False)):
                pass


@pytest.mark.parametrize("era", ["legacy", "both"])
async def test_a_server_with_sessions_is_used_with_them_where_they_are_wanted(era: str) -> None:
    """U16."""
    settings = {"allow_stateless": False}
    async with connected(behaviour=Behaviour(era=era), settings=settings) as (server, connection):
        assert (await connection.call_tool("echo", {})).ok
        assert connection.mode == "handshake"
    assert "server/discover" not in server.rpcs()


async def test_a_session_id_goes_back_byte_for_byte() -> None:
    def script(request: Request) -> Reply | None:
        if request.rpc != "initialize":
            return Reply(202) if request.rpc == "notifications/initialized" else None
        result = {"protocolVersion": "2025-11-25", "capabilities": {}}
        reply = json_reply({"jsonrpc": "2.0", "id": request.message["id"], "result": result})
        reply.headers["Mcp-Session-Id"] = "a b;ü=~"
        return reply

    async with connected(script) as (server, _):
        pass
    assert server.requests[-1].method == "DELETE"
    assert server.requests[-1].headers["mcp-session-id"] == "a b;ü=~"


@pytest.mark.parametrize("status", [204, 405, 404, 500])
async def test_the_session_is_given_back_at_the_end_whatever_the_server_says(status: int) -> None:
    def script(request: Request) -> Reply | None:
        return Reply(status) if request.method == "DELETE" else None

    async with connected(script) as (server, connection):
        assert (await connection.call_tool("echo", {})).ok
    assert [request.method for request in server.requests].count("DELETE") == 1


async def test_a_server_that_does_not_answer_the_farewell_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two seconds, best effort."""
    monkeypatch.setattr("servers.mcp.http.GOODBYE_SECONDS", 0.1)

    async def script(request: Request) -> Reply | None:
        if request.method == "DELETE":
            await asyncio.Event().wait()
        return None

    async with connected(script) as (server, _):
        pass
    assert server.requests[-1].method == "DELETE"


async def test_a_forgotten_session_is_not_given_back() -> None:
    def script(request: Request) -> Reply | None:
        if request.rpc == "initialize" and server.rpcs().count("initialize") > 1:
            return Reply(500)
        return None

    async with FakeHttp(script=script) as server, connect(settings_for(server)) as connection:
        server.known_sessions.clear()
        with pytest.raises(ServerError, match="500"):
            await connection.call_tool("echo", {})
    assert not [request for request in server.requests if request.method == "DELETE"]


async def test_a_call_during_the_renewal_waits_for_the_new_session() -> None:
    """B01: between two sessions a server knows neither."""
    opening, may_open = asyncio.Event(), asyncio.Event()

    async def script(request: Request) -> Reply | None:
        if request.rpc == "initialize" and server.rpcs().count("initialize") > 1:
            opening.set()
            await may_open.wait()
        return None

    async with FakeHttp(script=script) as server, connect(settings_for(server)) as connection:
        server.known_sessions.clear()
        first = asyncio.create_task(connection.call_tool("count", {}))
        await opening.wait()
        second = asyncio.create_task(connection.call_tool("count", {}))
        await asyncio.sleep(0)
        may_open.set()
        texts = {(await first).text, (await second).text}
    assert texts == {"1", "2"}
    calls = [request for request in server.requests if request.rpc == "tools/call"]
    assert len({request.headers["mcp-session-id"] for request in calls[1:]}) == 1
    assert server.rpcs().count("initialize") == 2
