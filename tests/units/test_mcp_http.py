"""Streamable HTTP: messages, their headers, their answers, and the limits of time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os

import pytest

from servers.mcp.client import connect
from servers.mcp.exchange import Door
from servers.mcp.types import CallTimedOut, ServerError, ServerUnavailable
from tests.fakes.http_calls import connected, on_call
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import JSON, FakeHttp, Reply, Request
from tests.fakes.mcp_server import TOOLS, Behaviour


@pytest.mark.parametrize("answer", ["json", "sse"])
async def test_a_server_is_listed_and_called(answer: str) -> None:
    """P5, P70, U8."""
    async with connected(answer=answer) as (server, connection):
        assert len((await connection.list_tools()).tools) == len(TOOLS)
        assert json.loads((await connection.call_tool("echo", {"a": 1})).text) == {"a": 1}
        assert connection.remembered == {"transport": "http", "mode": "handshake"}
        assert connection.transport == "http"
    assert server.rpcs()[1:3] == ["initialize", "notifications/initialized"]
    assert server.requests[-1].method == "DELETE"
    assert not server.known_sessions


async def test_requests_after_the_handshake_name_session_and_revision() -> None:
    async with connected() as (server, connection):
        await connection.list_tools()
        session = next(iter(server.known_sessions))
    headers = server.requests[-2].headers
    assert headers["mcp-session-id"] == session
    assert headers["mcp-protocol-version"] == "2025-11-25"
    assert headers["accept"] == "application/json, text/event-stream"
    assert "mcp-session-id" not in server.requests[1].headers
    assert "mcp-protocol-version" not in server.requests[1].headers


@pytest.mark.parametrize(
    "reply",
    [
        Reply(202),
        Reply(204),
        Reply(200, {"content-type": JSON}),
        Reply(200, {"content-type": JSON}, b'{"jsonrpc":"2.0","result":{}}'),
        Reply(200, {"content-type": "text/plain"}, b"Accepted"),
        Reply(200, {"content-type": JSON}, b'{"jsonrpc":"2.0","id":null}'),
    ],
)
async def test_any_success_will_do_for_a_notification(reply: Reply) -> None:
    """B09, U18."""

    def script(request: Request) -> Reply | None:
        return reply if request.rpc == "notifications/initialized" else None

    async with connected(script) as (_, connection):
        assert (await connection.call_tool("echo", {})).ok


async def test_a_refused_notification_after_the_handshake_is_an_error() -> None:
    """B09."""

    def script(request: Request) -> Reply | None:
        return Reply(500) if request.rpc == "notifications/initialized" else None

    with pytest.raises(ServerUnavailable, match="500 Internal Server Error"):
        async with connected(script):
            pass


async def test_the_http_library_has_no_limit_of_its_own() -> None:
    """F05: its default of five seconds between two bytes would cut silent calls."""
    door = Door(http_settings("http://localhost/mcp", connect_timeout=7))
    assert door.client.timeout.as_dict() == {
        "connect": 7,
        "read": None,
        "write": None,
        "pool": None,
    }
    await door.client.aclose()


@pytest.mark.parametrize("answer", ["json", "sse"])
async def test_a_call_over_its_limit_ends_and_the_server_is_told(answer: str) -> None:
    """F06."""
    async with connected(answer=answer) as (server, connection):
        with pytest.raises(CallTimedOut, match=r"within 0\.3 seconds"):
            await connection.call_tool("hang", {}, timeout=0.3)
        assert (await connection.call_tool("echo", {})).ok
    assert len(server.fake.cancelled) == 1


async def test_a_call_that_timed_out_is_not_sent_again() -> None:
    """F10, A49."""
    async with connected() as (server, connection):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2)
    assert server.fake.calls == {"hang": 1}


async def test_a_set_request_limit_cuts_a_call_and_the_error_names_it() -> None:
    """U42 and section 0."""
    async with (
        FakeHttp() as server,
        connect(http_settings(server.url, request_timeout=0.3)) as connection,
    ):
        with pytest.raises(CallTimedOut, match=r"0\.3 seconds \(request_timeout_secs\)"):
            await connection.call_tool("hang", {})


async def test_many_calls_at_once_get_their_own_answers() -> None:
    async with connected(answer="sse") as (_, connection):
        results = await asyncio.gather(
            *(connection.call_tool("echo", {"n": number}) for number in range(40))
        )
    assert [json.loads(result.text)["n"] for result in results] == list(range(40))


@pytest.mark.parametrize(("status", "after"), [(429, "0"), (503, "0.01")])
async def test_a_busy_server_is_waited_for_once(status: int, after: str) -> None:
    """Section 0, "Retries": connect and list."""
    refused: list[str] = []

    def script(request: Request) -> Reply | None:
        if request.rpc == "initialize" and not refused:
            refused.append(request.rpc)
            return Reply(status, {"retry-after": after})
        return None

    async with connected(script) as (server, _):
        pass
    assert server.rpcs().count("initialize") == 2


async def test_a_call_to_a_busy_server_is_not_repeated() -> None:
    """U49, U51."""
    async with connected(on_call(Reply(503, {"retry-after": "0"}))) as (server, connection):
        with pytest.raises(ServerUnavailable, match="503 Service Unavailable"):
            await connection.call_tool("count", {})
    assert server.rpcs().count("tools/call") == 1


async def test_modern_requests_carry_their_envelope_and_no_session() -> None:
    """U19: 2026-07-28."""
    async with connected(behaviour=Behaviour(era="modern"), sessions=False) as (
        server,
        connection,
    ):
        await connection.list_tools()
        assert (await connection.call_tool("echo", {"a": 1})).ok
        assert connection.protocol_version == "2026-07-28"
        assert connection.server_name == "fake"
    assert server.rpcs() == ["server/discover", "tools/list", "tools/call"]
    call = server.requests[-1]
    assert call.headers["mcp-protocol-version"] == "2026-07-28"
    assert call.headers["mcp-method"] == "tools/call"
    assert call.headers["mcp-name"] == "echo"
    meta = call.message["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "umpteenth"


async def test_a_modern_call_over_its_limit_is_cancelled_by_closing_its_stream() -> None:
    """2026-07-28: no notification is posted."""
    async with connected(behaviour=Behaviour(era="modern"), sessions=False) as (
        server,
        connection,
    ):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2)
    assert "notifications/cancelled" not in server.rpcs()


async def test_arguments_that_a_schema_wants_as_headers_are_sent_so() -> None:
    """2026-07-28: `x-mcp-header`."""
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "R"}}}
    bad = {"type": "object", "properties": {"region": {"type": "object", "x-mcp-header": "R"}}}
    tools = [{"name": "echo", "inputSchema": schema}, {"name": "bad", "inputSchema": bad}]
    behaviour = Behaviour(era="modern", tools=tools)
    async with connected(behaviour=behaviour, sessions=False) as (server, connection):
        await connection.call_tool("echo", {"region": "eu"})
        listed = await connection.list_tools()
    call = next(request for request in server.requests if request.rpc == "tools/call")
    assert call.headers["mcp-param-r"] == "eu"
    assert [tool.name for tool in listed.tools] == ["echo"]
    assert "“bad” is left out" in listed.warnings[0]


ENDINGS = ["fine", "timed out", "cancelled", "raised", "refused"]


@pytest.mark.parametrize("answer", ["json", "sse"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_however_a_connection_ends_nothing_of_it_remains(answer: str, ending: str) -> None:
    """F15: no task, no descriptor."""
    refusing = (lambda request: Reply(500)) if ending == "refused" else None
    async with FakeHttp(answer=answer, standing=True, script=refusing) as server:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with contextlib.suppress(ServerError, TimeoutError, ZeroDivisionError):
                async with connect(http_settings(server.url)) as connection:
                    await connection.call_tool("echo", {})
                    if ending == "timed out":
                        await connection.call_tool("hang", {}, timeout=0.05)
                    elif ending == "cancelled":
                        await asyncio.wait_for(connection.call_tool("hang", {}), 0.05)
                    elif ending == "raised":
                        raise ZeroDivisionError
        await server.until_left()
        left = asyncio.all_tasks() - {asyncio.current_task()} - server.at_work()
        assert left == set()
        assert len(os.listdir("/proc/self/fd")) <= before
