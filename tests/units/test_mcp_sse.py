"""The transport of 2024-11-05."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from servers.limits import STRICT
from servers.mcp.client import Connection, connect
from servers.mcp.types import CallTimedOut, ConnectionLost, LoginRequired, ServerUnavailable
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import EVENTS, FakeHttp, Reply, Request
from tests.fakes.mcp_server import TOOLS

REMEMBERED = {"transport": "sse"}


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[FakeHttp, Connection]]:
    async with (
        FakeHttp(transport="sse", **options) as server,
        connect(http_settings(server.url, remembered=REMEMBERED)) as connection,
    ):
        yield server, connection


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_a_server_is_listed_and_called(end: str) -> None:
    """P5, B17."""
    async with connected(event_end=end) as (_, connection):
        assert len((await connection.list_tools()).tools) == len(TOOLS)
        assert json.loads((await connection.call_tool("echo", {"a": 1})).text) == {"a": 1}


async def test_calls_at_the_same_time_get_their_own_answers() -> None:
    async with connected() as (_, connection):
        results = await asyncio.gather(
            *(connection.call_tool("echo", {"n": number}) for number in range(20))
        )
    assert [json.loads(result.text)["n"] for result in results] == list(range(20))


async def test_headers_go_with_the_stream_and_with_every_message() -> None:
    """U23."""
    async with FakeHttp(transport="sse") as server:
        settings = http_settings(server.url, remembered=REMEMBERED, headers=(("X-Key", "k"),))
        async with connect(settings) as connection:
            await connection.call_tool("echo", {})
    assert {request.headers["x-key"] for request in server.requests} == {"k"}


async def test_a_stream_that_closes_in_mid_call_fails_the_call_at_once() -> None:
    """B15."""
    leave = asyncio.Event()

    async def stream(server: FakeHttp) -> AsyncGenerator[bytes, None]:
        yield b"event: endpoint\ndata: /messages\n\n"
        async for chunk in _until(leave, server):
            yield chunk

    def script(request: Request) -> Reply | None:
        if request.rpc == "tools/call":
            leave.set()
        if request.method == "GET":
            return Reply(200, {"content-type": EVENTS}, stream(server))
        return None

    async with FakeHttp(transport="sse", script=script) as server:
        settings = http_settings(server.url, remembered=REMEMBERED)
        async with connect(settings) as connection:
            with pytest.raises(ConnectionLost, match="closed the event stream"):
                await connection.call_tool("hang", {})
            assert connection.ended
            with pytest.raises(ConnectionLost):
                await connection.list_tools()


async def _until(leave: asyncio.Event, server: FakeHttp) -> AsyncGenerator[bytes, None]:
    """What the fake sends, until told to leave."""
    while True:
        item = asyncio.create_task(server._outbox.get())
        leaving = asyncio.create_task(leave.wait())
        done, rest = await asyncio.wait({item, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        if leaving in done:
            return
        yield item.result()


async def test_a_call_over_its_limit_is_cancelled_at_the_server() -> None:
    """F06."""
    async with connected() as (server, connection):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2)
        assert (await connection.call_tool("echo", {})).ok
    assert len(server.fake.cancelled) == 1


async def test_a_refused_message_fails_its_call() -> None:
    def script(request: Request) -> Reply | None:
        refusal = Reply(400, {"content-type": "text/plain"}, b"too long")
        return refusal if request.rpc == "tools/call" else None

    async with connected(script=script) as (_, connection):
        with pytest.raises(ServerUnavailable, match="400 Bad Request: too long"):
            await connection.call_tool("echo", {})


async def test_a_refused_end_of_the_handshake_is_an_error() -> None:
    """B09."""

    def script(request: Request) -> Reply | None:
        return Reply(500) if request.rpc == "notifications/initialized" else None

    with pytest.raises(ServerUnavailable, match="500 Internal Server Error"):
        async with connected(script=script):
            pass


@pytest.mark.parametrize(
    "reply",
    [
        Reply(202),
        Reply(204),
        Reply(200, {"content-type": "application/json"}),
        Reply(200, {"content-type": "application/json"}, b'{"jsonrpc":"2.0","result":{}}'),
        Reply(200, {"content-type": "application/json"}, b'{"jsonrpc":"2.0","id":null}'),
        Reply(200, {"content-type": "text/plain"}, b"Accepted"),
    ],
)
async def test_any_success_will_do_for_a_notification(reply: Reply) -> None:
    """B09."""

    def script(request: Request) -> Reply | None:
        return reply if request.rpc == "notifications/initialized" else None

    async with connected(script=script) as (_, connection):
        assert (await connection.call_tool("echo", {})).ok


async def test_a_lost_notice_harms_no_one() -> None:
    """Only the end of the handshake matters."""

    def script(request: Request) -> Reply | None:
        return Reply(500) if request.rpc == "notifications/cancelled" else None

    async with connected(script=script) as (_, connection):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2)
        assert (await connection.call_tool("echo", {})).ok


async def test_a_stream_that_names_no_address_ends_at_the_limit() -> None:
    """F06: a stream that says nothing."""

    async def silent() -> AsyncGenerator[bytes, None]:
        yield b": hello\n\n"
        await asyncio.Event().wait()

    reply = Reply(200, {"content-type": EVENTS}, silent())
    async with FakeHttp(script=lambda request: reply) as server:
        settings = http_settings(server.url, remembered=REMEMBERED, request_timeout=0.3)
        with pytest.raises(ServerUnavailable, match="named no address for messages"):
            async with connect(settings):
                pass


async def test_a_stream_that_ends_before_it_names_an_address_is_an_error() -> None:
    def script(request: Request) -> Reply | None:
        farewell = Reply(200, {"content-type": EVENTS}, b": bye\n\n")
        return farewell if request.method == "GET" else None

    async with FakeHttp(script=script) as server:
        server.transport = "sse"  # no POST at /sse either
        with pytest.raises(ServerUnavailable, match=r"405 Method Not Allowed"):
            async with connect(http_settings(server.url)):
                pass


async def test_a_bad_event_harms_no_other() -> None:
    async with connected() as (server, connection):
        server._outbox.put_nowait(b"event: message\ndata: {oops\n\n")
        server._outbox.put_nowait(b'event: other\ndata: {"jsonrpc":"2.0"}\n\n')
        assert (await connection.call_tool("echo", {})).ok


@pytest.mark.parametrize("identity", ['"id":null,', ""])
async def test_an_error_that_names_no_request_leaves_none_waiting(identity: str) -> None:
    """B02: no hang."""

    async def script(request: Request) -> Reply | None:
        if request.rpc != "tools/call":
            return None
        error = '"error":{"code":-32600,"message":"Session not found"}'
        server._outbox.put_nowait(f'data: {{"jsonrpc":"2.0",{identity}{error}}}\n\n'.encode())
        return Reply(202)

    async with FakeHttp(transport="sse", script=script) as server:
        settings = http_settings(server.url, remembered=REMEMBERED)
        async with connect(settings) as connection:
            calls = [connection.call_tool("hang", {}, timeout=20) for _ in range(3)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, ConnectionLost) for error in ended)
    assert all("The server reported: Session not found" in str(error) for error in ended)


async def test_an_event_over_the_limit_ends_the_connection_and_says_so() -> None:
    """B23, A41."""
    async with FakeHttp(transport="sse") as server:
        settings = http_settings(server.url, remembered=REMEMBERED, limits=STRICT)
        async with connect(settings) as connection:
            with pytest.raises(ConnectionLost, match="larger than 256 KiB"):
                await connection.call_tool("big", {"bytes": 262_200})


async def test_a_busy_server_is_waited_for_once_while_connecting() -> None:
    """Section 0, "Retries"."""
    busy = [Reply(503, {"retry-after": "0"})]

    def script(request: Request) -> Reply | None:
        return busy.pop() if request.rpc == "initialize" and busy else None

    async with connected(script=script) as (server, _):
        pass
    assert server.rpcs().count("initialize") == 2


async def test_a_busy_server_gets_no_call_twice() -> None:
    """U49, F10."""

    def script(request: Request) -> Reply | None:
        return Reply(503, {"retry-after": "0"}) if request.rpc == "tools/call" else None

    async with connected(script=script) as (server, connection):
        with pytest.raises(ServerUnavailable, match="503 Service Unavailable"):
            await connection.call_tool("count", {})
    assert server.rpcs().count("tools/call") == 1


async def test_the_connection_for_messages_is_used_again() -> None:
    async with connected() as (server, connection):
        for _ in range(5):
            assert (await connection.call_tool("echo", {})).ok
    assert server.connections == 2  # the stream, and one for all messages


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_login_that_only_sse_asks_for_is_the_error(status: int) -> None:
    """B13, P34: what to do is in this one; the first error is its hint."""

    def script(request: Request) -> Reply | None:
        text = {"content-type": "text/plain"}
        if request.method == "POST":
            return Reply(status, text, b"no POST here")
        return Reply(401, text, b"who are you?")

    async with FakeHttp(script=script) as server:
        with pytest.raises(LoginRequired, match=r"requires a login: 401 .*: who are you") as caught:
            async with connect(http_settings(server.url)):
                pass
    assert caught.value.hint.startswith("Log in under MCP Servers, add an Authorization")
    assert "Streamable HTTP was tried first: The server answered " in caught.value.hint
    assert caught.value.hint.endswith(": no POST here.")


async def test_credentials_that_only_sse_refuses_are_the_error() -> None:
    def script(request: Request) -> Reply | None:
        return Reply(405 if request.method == "POST" else 401)

    async with FakeHttp(script=script) as server:
        settings = http_settings(server.url, headers=(("Authorization", "Bearer old"),))
        with pytest.raises(ServerUnavailable, match="refused the credentials: 401") as caught:
            async with connect(settings):
                pass
    assert "Streamable HTTP was tried first: The server answered 405" in caught.value.hint


async def test_a_login_is_the_error_also_where_sse_is_tried_first() -> None:
    def script(request: Request) -> Reply | None:
        return Reply(404 if request.method == "GET" else 401)

    async with FakeHttp(script=script) as server:
        with pytest.raises(LoginRequired) as caught:
            async with connect(http_settings(server.url, remembered={"transport": "sse"})):
                pass
    assert "Legacy SSE was tried first: The server answered 404" in caught.value.hint
