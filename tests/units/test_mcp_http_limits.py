"""Limits of time, acknowledgements, busy servers and refusals over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import httpx2
import pytest
import time_machine

from servers.mcp import exchange
from servers.mcp.client import connect
from servers.mcp.exchange import Door
from servers.mcp.types import (
    CallTimedOut,
    ConnectionLost,
    LoginRequired,
    ServerError,
    ServerUnavailable,
)
from tests.fakes.http_calls import connected, json_reply, on_call, on_rpc
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import EVENTS, JSON, FakeHttp, Reply, Request

INITIALIZED = "notifications/initialized"
TEXT = {"content-type": "text/plain"}


def mute(rpc: str) -> Callable[[Request], Awaitable[Reply | None]]:
    """Never answers the given message."""

    async def script(request: Request) -> Reply | None:
        if rpc in (request.rpc, request.method):
            await asyncio.Event().wait()
        return None

    return script


async def failure(server: FakeHttp, **options: object) -> ServerError:
    with pytest.raises(ServerError) as caught:
        async with connect(http_settings(server.url, **options)):
            pass
    return caught.value


@pytest.mark.parametrize(
    ("given", "wanted"), [(0.0, None), (0, None), (7.0, 7.0), (30.0, 30.0), (0.5, 0.5)]
)
@pytest.mark.parametrize("socket_path", ["", "/run/x.sock"])
async def test_only_connecting_has_a_limit_of_its_own(
    given: float, wanted: float | None, socket_path: str
) -> None:
    """U39: 0 is no limit. F05: nothing else of the HTTP library counts."""
    door = Door(http_settings("http://h/mcp", connect_timeout=given, socket_path=socket_path))
    limits = door.client.timeout.as_dict()
    assert limits == {"connect": wanted, "read": None, "write": None, "pool": None}
    await door.client.aclose()


async def test_a_connection_that_is_not_made_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U39, U21."""

    async def never(*args: object, **options: object) -> httpx2.Response:
        raise httpx2.ConnectTimeout("")

    monkeypatch.setattr(httpx2.AsyncClient, "send", never)
    with pytest.raises(ServerUnavailable, match="No connection to h:9 within 5 seconds"):
        async with connect(http_settings("http://h:9/mcp", connect_timeout=5)):
            pass


@pytest.mark.parametrize("rpc", ["initialize", INITIALIZED])
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_each_message_of_the_handshake_is_bounded(rpc: str, transport: str) -> None:
    """U40: the whole exchange counts, notifications too."""
    async with FakeHttp(script=mute(rpc), transport=transport) as server:
        error = await failure(server, request_timeout=0.3, remembered={"transport": transport})
    assert type(error) is ServerUnavailable
    assert "within 0.3 seconds (request_timeout_secs)" in error.message
    assert rpc in error.message


async def test_an_answer_that_begins_but_does_not_end_is_bounded() -> None:
    """U40: a POST counts until its last byte."""

    async def endless() -> AsyncGenerator[bytes, None]:
        yield b'{"jsonrpc":'
        await asyncio.Event().wait()

    script = on_rpc("initialize", Reply(200, {"content-type": JSON}, endless()))
    async with FakeHttp(script=script) as server:
        error = await failure(server, request_timeout=0.3)
    assert "within 0.3 seconds" in error.message


async def test_no_limit_means_none() -> None:
    """U43: a server that accepts and stalls holds the call for ever, or as long as its own."""
    settings = {"request_timeout": 0.0, "connect_timeout": 0.0}
    async with connected(settings=settings) as (_, connection):
        with pytest.raises(CallTimedOut, match=r"0\.2 seconds \(the limit given"):
            await connection.call_tool("hang", {}, timeout=0.2)
        assert (await connection.call_tool("echo", {})).ok


async def test_an_sse_stream_that_does_not_begin_is_bounded() -> None:
    """U41, F06."""
    async with FakeHttp(script=mute("GET"), transport="sse") as server:
        error = await failure(server, request_timeout=0.3, remembered={"transport": "sse"})
    assert "within 0.3 seconds" in error.message


async def test_a_farewell_ends_no_later_than_its_request_could(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U40: DELETE is best effort."""
    monkeypatch.setattr("servers.mcp.http.GOODBYE_SECONDS", 0.1)
    async with connected(mute("DELETE")) as (server, _):
        pass
    assert server.requests[-1].method == "DELETE"


@pytest.mark.parametrize("status", [202, 204])
async def test_a_strict_client_takes_the_acknowledgements_of_the_specification(
    status: int,
) -> None:
    """U18."""
    settings = {"strict_initialized_ack": True}
    async with connected(on_rpc(INITIALIZED, Reply(status)), settings=settings) as (_, connection):
        assert (await connection.call_tool("echo", {})).ok


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {"content-type": JSON}, b""),
        Reply(200, {"content-type": JSON}, b'{"jsonrpc":"2.0","result":{}}'),
        Reply(200, TEXT, b"Accepted"),
        Reply(201),
        Reply(205),
    ],
)
async def test_a_strict_client_refuses_every_other_acknowledgement(reply: Reply) -> None:
    """U18, B09: the lenient one takes them all."""
    script = on_rpc(INITIALIZED, reply)
    async with connected(script) as (server, connection):
        assert (await connection.call_tool("echo", {})).ok
        error = await failure(server, strict_initialized_ack=True)
    assert f"acknowledged {INITIALIZED} with {reply.status} in place of 202 or 204" in error.message
    assert error.hint.startswith("Set initialized_ack_mode to lenient")


async def test_an_acknowledgement_that_never_ends_holds_up_nothing() -> None:
    """B09: its body is ignored."""

    async def endless() -> AsyncGenerator[bytes, None]:
        yield b": open\n\n"
        await asyncio.Event().wait()

    for kind in (EVENTS, "text/plain"):
        reply = Reply(200, {"content-type": kind}, endless())
        async with connected(on_rpc(INITIALIZED, reply)) as (_, connection):
            assert (await connection.call_tool("echo", {})).ok


@pytest.mark.parametrize("rpc", ["server/discover", "initialize", INITIALIZED, "tools/list"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_waited_for_once_while_connecting_and_listing(
    rpc: str, status: int
) -> None:
    """Section 0, "Retries"."""
    busy = [Reply(status, {"retry-after": "0", **TEXT}, b"later")]

    def script(request: Request) -> Reply | None:
        return busy.pop() if request.rpc == rpc and busy else None

    async with connected(script) as (server, connection):
        assert (await connection.list_tools()).tools
    assert server.rpcs().count(rpc) == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_stays_busy_is_quoted_and_not_asked_a_third_time(status: int) -> None:
    """Section 0, "Retries"."""
    script = on_rpc("server/discover", Reply(status, {"retry-after": "0", **TEXT}, b"too many"))
    async with FakeHttp(script=script) as server:
        if status == 429:
            assert "too many" in (await failure(server)).message
        else:
            async with connect(http_settings(server.url)):
                pass
    assert server.rpcs().count("server/discover") == 2


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_call_that_was_refused_is_not_repeated_and_is_in_doubt_where_it_may_be(
    status: int,
) -> None:
    """U49, A49, F10."""
    refusal = Reply(status, {"retry-after": "0", **TEXT}, b"x")
    async with connected(on_call(refusal)) as (server, connection):
        with pytest.raises(ServerUnavailable, match=f"{status} ") as caught:
            await connection.call_tool("count", {})
    assert server.rpcs().count("tools/call") == 1
    assert ("may have happened" in caught.value.message) is (status >= 500)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ({}, 1),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "3600"}, 5),
        ({"retry-after": "inf"}, 5),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": "soon"}, 1),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:03 GMT"}, 3),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "Tue, 01 Dec 2026 12:00:00 GMT"}, 5),
        ({"retry-after": "Mon, 99 Nov 2026 12:00:00 GMT"}, 1),
    ],
)
@time_machine.travel("2026-11-30T12:00:00Z", tick=False)
def test_a_busy_server_says_when_to_come_back(header: dict[str, str], seconds: float) -> None:
    """RFC 9110, 10.2.3: a number of seconds or a date; at most five seconds are waited."""
    assert exchange._retry_after(httpx2.Response(503, headers=header)) == seconds


@pytest.mark.parametrize("abort", [True, False])
@pytest.mark.parametrize("partly", [b"", b"HTTP/1.1 200 OK\r\n"])
async def test_a_server_that_leaves_without_an_answer_may_have_run_the_call(
    abort: bool, partly: bytes
) -> None:
    """B15, F10: the message had been sent."""
    async with connected() as (server, connection):
        await connection.list_tools()
        server.script = on_rpc("tools/call", Reply(0, raw=partly, abort=abort, cut=not abort))
        with pytest.raises(ConnectionLost, match="may have happened"):
            await connection.call_tool("count", {})
        server.script = None
        assert (await connection.call_tool("count", {})).text == "1"
    assert server.rpcs().count("tools/call") == 2


@pytest.mark.parametrize(
    ("headers", "body", "words"),
    [
        ({}, b"", ""),
        (TEXT, b"No token", "No token"),
        ({"content-type": JSON}, b'{"error_description":"expired"}', "expired"),
        ({"content-type": JSON}, b'{"message":["a","b"]}', '["a", "b"]'),
        (
            {"www-authenticate": r'Bearer error="x", error_description="The \"old\" one"'},
            b"",
            'The "old" one',
        ),
        (
            {"content-type": "text/html; charset=latin-1"},
            "<p>Zur\u00fcck".encode("latin-1"),
            "Zur\u00fcck",
        ),
        (
            {"content-type": JSON},
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Unauthorized"}}',
            "Unauthorized",
        ),
    ],
)
@pytest.mark.parametrize("status", [401, 403])
async def test_a_login_is_asked_for_in_the_servers_own_words(
    headers: dict[str, str], body: bytes, words: str, status: int
) -> None:
    """P34, B13: RFC 6750 lets servers put them into the challenge."""
    async with FakeHttp(script=lambda request: Reply(status, headers, body)) as server:
        error = await failure(server)
        refused = await failure(server, headers=(("X-Api-Key", "canary"),))
    assert isinstance(error, LoginRequired)
    assert error.message.startswith(f"The server requires a login: {status} ")
    assert error.message.endswith(words or ".")
    assert not isinstance(refused, LoginRequired)
    assert refused.message.startswith(f"The server refused the credentials: {status} ")
    assert "canary" not in refused.message + refused.hint


async def test_a_hostile_error_page_is_cut_before_it_is_searched() -> None:
    """B23: patterns that find tags take long on pages made for it."""
    page = b"<script" * 9000 + b"<" * 9000
    async with FakeHttp(script=lambda r: Reply(500, {"content-type": "text/html"}, page)) as server:
        error = await failure(server)
    assert "500 Internal Server Error" in error.message


@pytest.mark.parametrize("code", [-32600, -32602, -32001])
async def test_a_json_rpc_error_with_a_failing_status_is_an_error_of_the_protocol(
    code: int,
) -> None:
    error = {"jsonrpc": "2.0", "id": 3, "error": {"code": code, "message": "Bad arguments"}}
    async with connected(on_call(json_reply(error, 400))) as (_, connection):
        result = await connection.call_tool("echo", {})
    assert result.error == f"Bad arguments ({code})"
