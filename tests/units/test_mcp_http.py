"""Streamable HTTP: answers of every shape, sessions, streams that break, bounded bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from servers.mcp.client import Connection, connect
from servers.mcp.exchange import Door
from servers.mcp.types import CallTimedOut, ConnectionLost, ServerError, ServerUnavailable
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import EVENTS, JSON, FakeHttp, Reply, Request, Script, event
from tests.fakes.mcp_server import TOOLS, Behaviour, text

MIB = 1024 * 1024


@asynccontextmanager
async def connected(
    script: Script | None = None, **options: Any
) -> AsyncIterator[tuple[FakeHttp, Connection]]:
    async with (
        FakeHttp(script=script, **options) as server,
        connect(http_settings(server.url)) as connection,
    ):
        yield server, connection


CALL = 3  # the id of the first call: the probe and the handshake came before


def on_call(reply: Reply | bytes) -> Script:
    """Answers every tool call with `reply` (bytes are events), and leaves the rest to the fake."""
    prepared = Reply(200, {"content-type": EVENTS}, reply) if isinstance(reply, bytes) else reply

    def script(request: Request) -> Reply | None:
        return prepared if request.rpc == "tools/call" else None

    return script


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


async def test_a_server_without_sessions_is_accepted() -> None:
    """U16."""
    async with connected(sessions=False) as (server, connection):
        assert (await connection.call_tool("echo", {})).ok
    assert all(request.method == "POST" for request in server.requests)


async def test_no_standing_stream_is_opened() -> None:
    """B04, B05, U99: a server may answer GET with 405, so nobody asks."""
    async with connected() as (server, connection):
        await connection.list_tools()
    assert not [request for request in server.requests if request.method == "GET"]


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


SESSION_ERROR = {"code": -32600, "message": "Session not found"}


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {"content-type": EVENTS}, event({"jsonrpc": "2.0", "error": SESSION_ERROR})),
        Reply(
            200,
            {"content-type": JSON},
            json.dumps({"jsonrpc": "2.0", "id": None, "error": SESSION_ERROR}).encode(),
        ),
        Reply(
            400,
            {"content-type": JSON},
            json.dumps({"jsonrpc": "2.0", "id": None, "error": SESSION_ERROR}).encode(),
        ),
    ],
)
async def test_an_error_without_an_identifier_belongs_to_its_request(reply: Reply) -> None:
    """B02: no hang."""
    async with connected(on_call(reply)) as (_, connection):
        result = await connection.call_tool("echo", {}, timeout=5)
    assert not result.ok
    assert result.error == "Session not found (-32600)"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_every_line_end_splits_events(end: str) -> None:
    """B17."""
    async with connected(answer="sse", event_end=end) as (_, connection):
        assert (await connection.list_tools()).tools
        assert (await connection.call_tool("echo", {})).ok


async def test_a_line_end_split_over_two_chunks_is_one() -> None:
    """B17."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        whole = event({"jsonrpc": "2.0", "id": CALL, "result": text("split")}, "\r\n")
        for position in range(len(whole)):
            yield whole[position : position + 1]

    reply = Reply(200, {"content-type": EVENTS}, chunks())
    async with connected(on_call(reply)) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "split"


async def test_comments_pings_marks_and_split_data_are_read_by_the_standard() -> None:
    """B18."""
    body = (
        '\ufeff: keep-alive\n\ndata:\n\nevent: ping\ndata: {"x":1}\n\n'
        'id: 7\ndata:{"jsonrpc":"2.0",\ndata: "id":3,"result":'
        '{"content":[{"type":"text","text":"joined"}]}}\n\n'
    ).encode()
    async with connected(on_call(body)) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "joined"


async def test_a_mark_right_before_the_data_is_skipped() -> None:
    """B18."""
    body = b"\xef\xbb\xbf" + event({"jsonrpc": "2.0", "id": CALL, "result": text("marked")})[15:]
    async with connected(on_call(body)) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "marked"


@pytest.mark.parametrize("charset", ["", "; charset=utf-8", ";charset=ISO-8859-1"])
async def test_json_is_read_as_utf8_whatever_charset_is_named(charset: str) -> None:
    answer = {"jsonrpc": "2.0", "id": CALL, "result": text("ä")}
    body = json.dumps(answer, ensure_ascii=False).encode()
    reply = Reply(200, {"content-type": f"Application/JSON{charset}"}, body)
    async with connected(on_call(reply)) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "ä"


@pytest.mark.parametrize("abort", [True, False])
async def test_a_stream_that_breaks_off_fails_the_call_at_once(abort: bool) -> None:
    """B15."""

    async def body() -> AsyncGenerator[bytes, None]:
        yield event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})

    reply = Reply(200, {"content-type": EVENTS}, body(), abort=abort, cut=not abort)
    async with connected(on_call(reply)) as (_, connection):
        start = time.monotonic()
        with pytest.raises(ConnectionLost, match=r"^response body failed: \S"):
            await connection.call_tool("echo", {})
        assert time.monotonic() - start < 5


async def test_a_stream_that_ends_without_an_answer_fails_the_call_at_once() -> None:
    """B15, U59."""
    async with connected(on_call(b": nothing\n\n")) as (_, connection):
        with pytest.raises(ConnectionLost, match="stream closed before the answer came"):
            await connection.call_tool("echo", {})
        assert (await connection.list_tools()).tools


async def test_a_numbered_stream_is_resumed_where_it_broke() -> None:
    """B15: the call is not sent again."""

    def script(request: Request) -> Reply | None:
        if request.method == "GET":
            assert request.headers["last-event-id"] == "e1"
            answer = {"jsonrpc": "2.0", "id": CALL, "result": text("resumed")}
            return Reply(200, {"content-type": EVENTS}, event(answer))
        if request.rpc == "tools/call":
            return Reply(200, {"content-type": EVENTS}, b"id: e1\nretry: 10\ndata:\n\n")
        return None

    async with connected(script) as (server, connection):
        assert (await connection.call_tool("echo", {})).text == "resumed"
    assert server.rpcs().count("tools/call") == 1


async def test_resuming_is_given_up_after_a_few_attempts() -> None:
    """B05, B15."""

    def script(request: Request) -> Reply | None:
        if request.method == "GET":
            return Reply(200, {"content-type": EVENTS}, b": empty\n\n")
        if request.rpc == "tools/call":
            return Reply(200, {"content-type": EVENTS}, b"id: e1\nretry: 1\ndata:\n\n")
        return None

    async with connected(script) as (server, connection):
        with pytest.raises(ConnectionLost):
            await connection.call_tool("echo", {}, timeout=10)
    assert len([request for request in server.requests if request.method == "GET"]) == 3


def _zeros(size: int, members: int = 1) -> bytes:
    return gzip.compress(b"0" * (size // members), 9) * members


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-encoding": "gzip"}, _zeros(200 * MIB)),
        ({}, b"0" * (17 * MIB)),
        ({"content-type": EVENTS}, b"data: " + b"0" * (17 * MIB)),
    ],
    ids=["gzip", "plain", "event"],
)
async def test_a_body_over_the_limit_fails_the_call(headers: dict[str, str], body: bytes) -> None:
    """B23: counted after decompression."""
    reply = Reply(200, {"content-type": JSON, **headers}, body)
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(ServerError, match="larger than 16 MiB"):
            await connection.call_tool("echo", {})
        assert (await connection.list_tools()).tools


async def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(json.dumps({"jsonrpc": "2.0", "id": CALL, "result": text("zip")}).encode())
    reply = Reply(200, {"content-type": JSON, "content-encoding": "gzip"}, body)
    async with connected(on_call(reply)) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "zip"


async def test_a_large_result_arrives_whole() -> None:
    """B23, I17: ten million characters are within the limit."""
    async with connected() as (_, connection):
        assert len((await connection.call_tool("big", {"bytes": 10_000_000})).text) == 10_000_000


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
        start = time.monotonic()
        with pytest.raises(CallTimedOut, match=r"within 0\.3 seconds"):
            await connection.call_tool("hang", {}, timeout=0.3)
        assert time.monotonic() - start < 5
        assert (await connection.call_tool("echo", {})).ok
    assert len(server.fake.cancelled) == 1


async def test_a_slow_drip_does_not_renew_the_limit() -> None:
    """F06: total time counts, not the time between two bytes."""

    async def drip() -> AsyncGenerator[bytes, None]:
        while True:
            yield b": drip\n\n"
            await asyncio.sleep(0.05)

    reply = Reply(200, {"content-type": EVENTS}, drip())
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("echo", {}, timeout=0.4)


async def test_a_call_that_timed_out_is_not_sent_again() -> None:
    """F10, A49."""
    async with connected() as (server, connection):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2)
        await asyncio.sleep(0)
    assert server.fake.calls == {"hang": 1}


async def test_a_set_request_limit_cuts_a_call_and_the_error_names_it() -> None:
    """U42 and section 0."""
    async with (
        FakeHttp() as server,
        connect(http_settings(server.url, request_timeout=0.3)) as connection,
    ):
        with pytest.raises(CallTimedOut, match=r"0\.3 seconds \(request_timeout_secs\)"):
            await connection.call_tool("hang", {})


async def test_progress_over_a_stream_is_reported() -> None:
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with connected(answer="sse") as (_, connection):
        arguments = {"steps": 3, "interval": 0.01}
        assert (await connection.call_tool("progress", arguments, on_progress=on_progress)).ok
    assert seen == [1.0, 2.0, 3.0]


async def test_a_question_within_a_stream_is_answered() -> None:
    async with connected(answer="sse") as (_, connection):
        result = await connection.call_tool("ask", {"method": "ping"})
    assert json.loads(result.text) == {}


async def test_many_calls_at_once_get_their_own_answers() -> None:
    async with connected(answer="sse") as (_, connection):
        results = await asyncio.gather(
            *(connection.call_tool("echo", {"n": number}) for number in range(40))
        )
    assert [json.loads(result.text)["n"] for result in results] == list(range(40))


@pytest.mark.parametrize(("status", "after"), [(429, "0"), (503, "0.01"), (503, "soon")])
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


async def test_an_answer_that_is_no_json_says_so() -> None:
    reply = Reply(200, {"content-type": JSON}, b"<oops>")
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(ServerUnavailable, match="cannot be read as JSON"):
            await connection.call_tool("echo", {})


async def test_an_event_that_is_no_json_says_so() -> None:
    async with connected(on_call(b"data: <oops>\n\n")) as (_, connection):
        with pytest.raises(ServerUnavailable, match="event of the server cannot be read as JSON"):
            await connection.call_tool("echo", {})


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(200, {"content-type": "text/html"}, b"x"), "answers with a web page"),
        (Reply(405), "405 Method Not Allowed"),
    ],
)
async def test_a_server_that_cannot_resume_gets_a_few_attempts(reply: Reply, words: str) -> None:
    """B05, B15."""

    def script(request: Request) -> Reply | None:
        if request.method == "GET":
            return reply
        if request.rpc == "tools/call":
            return Reply(200, {"content-type": EVENTS}, b"id: e1\nretry: 1\ndata:\n\n")
        return None

    async with connected(script) as (server, connection):
        with pytest.raises(ServerError, match=words):
            await connection.call_tool("echo", {}, timeout=10)
    assert len([request for request in server.requests if request.method == "GET"]) == 3
