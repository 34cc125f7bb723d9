"""Answers as streams of events: how they are read, break off, and are resumed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest

from servers.mcp import http
from servers.mcp.types import CallTimedOut, ConnectionLost, ServerUnavailable
from tests.fakes.http_calls import CALL, connected, on_call, result_of_call
from tests.fakes.mcp_http import EVENTS, Reply, Request, Script, event
from tests.fakes.mcp_server import text

BROKEN = b"id: e1\nretry: 1\ndata:\n\n"  # a stream that ends where it could be resumed


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


@pytest.mark.parametrize("abort", [True, False])
async def test_a_stream_that_breaks_off_fails_the_call_at_once(abort: bool) -> None:
    """B15."""

    async def body() -> AsyncGenerator[bytes, None]:
        yield event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})

    reply = Reply(200, {"content-type": EVENTS}, body(), abort=abort, cut=not abort)
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(ConnectionLost, match=r"^response body failed: \S"):
            await connection.call_tool("echo", {})


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


async def test_an_event_that_is_no_json_says_so() -> None:
    async with connected(on_call(b"data: <oops>\n\n")) as (_, connection):
        with pytest.raises(ServerUnavailable, match="event of the server cannot be read as JSON"):
            await connection.call_tool("echo", {})


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


def breaking(*resumed: Reply) -> Script:
    """Every call's stream breaks off; resuming it gets `resumed` in turn, the last one always."""
    replies = list(resumed)

    def script(request: Request) -> Reply | None:
        if request.method == "GET" and "last-event-id" in request.headers:
            return replies.pop(0) if len(replies) > 1 else replies[0]
        if request.rpc == "tools/call":
            return Reply(200, {"content-type": EVENTS}, BROKEN)
        return None

    return script


def resumptions(requests: list[Request]) -> list[str]:
    found = [request.headers.get("last-event-id", "") for request in requests]
    return [identity for identity in found if identity]


def stream(body: bytes) -> Reply:
    return Reply(200, {"content-type": EVENTS}, body)


async def test_resuming_is_given_up_after_a_few_attempts() -> None:
    """B05, B15."""
    async with connected(breaking(stream(b": empty\n\n"))) as (server, connection):
        with pytest.raises(ConnectionLost, match="stream closed before the answer came"):
            await connection.call_tool("echo", {}, timeout=10)
    assert resumptions(server.requests) == ["e1"] * 3


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_cannot_resume_now_gets_a_few_attempts(status: int) -> None:
    """B15."""
    async with connected(breaking(Reply(status))) as (server, connection):
        with pytest.raises(ConnectionLost, match=f"could not be resumed: .* {status}"):
            await connection.call_tool("echo", {}, timeout=10)
    assert resumptions(server.requests) == ["e1"] * 3


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(200, {"content-type": "text/html"}, b"x"), "answers with a web page"),
        (Reply(400), "400 Bad Request"),
        (Reply(401), "requires a login"),
        (Reply(404), "404 Not Found"),
        (Reply(405), "405 Method Not Allowed"),
        (Reply(501), "501 Not Implemented"),
    ],
)
async def test_a_server_that_does_not_resume_is_asked_once_and_runs_no_call_twice(
    reply: Reply, words: str
) -> None:
    """B15, F10: not even on 404, which would otherwise mean that the call was not run."""
    async with connected(breaking(reply)) as (server, connection):
        with pytest.raises(ConnectionLost, match=f"could not be resumed: .*{words}"):
            await connection.call_tool("echo", {}, timeout=10)
    assert resumptions(server.requests) == ["e1"]
    assert server.rpcs().count("tools/call") == 1
    assert server.rpcs().count("initialize") == 1


async def test_a_stream_that_gets_on_is_resumed_as_often_as_it_takes() -> None:
    """SEP-1699: a server may have its client poll."""
    steps = [stream(f"id: e{n}\ndata:\n\n".encode()) for n in range(2, 8)]
    script = breaking(*steps, stream(event(result_of_call("at last"))))
    async with connected(script) as (server, connection):
        assert (await connection.call_tool("echo", {})).text == "at last"
    assert resumptions(server.requests) == [f"e{n}" for n in range(1, 8)]


async def test_a_server_that_has_its_stream_resumed_at_once_for_ever_is_slowed_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B05: the rate of requests stays bounded."""
    waits: list[float] = []

    async def no_wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(http, "pause", no_wait)
    steps = [stream(f"id: n{n}\nretry: 0\ndata:\n\n".encode()) for n in range(25)]
    script = breaking(*steps, stream(event(result_of_call("enough"))))
    async with connected(script) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "enough"
    assert waits[:2] == [0.001, 0]
    assert waits[-1] == http.RESUME_DELAY


async def test_an_identifier_of_any_letters_comes_back_as_it_was() -> None:
    """Server-sent events, "Last-Event-ID": UTF-8."""
    seen: list[str] = []

    def script(request: Request) -> Reply | None:
        if "last-event-id" in request.headers:
            seen.append(request.headers["last-event-id"].encode("latin-1").decode())
            return stream(event(result_of_call("resumed")))
        body = "id: ü€\nretry: 1\ndata:\n\n".encode()
        return stream(body) if request.rpc == "tools/call" else None

    async with connected(script) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "resumed"
    assert seen == ["ü€"]


async def test_the_connection_is_used_again_after_a_stream_that_its_server_ends() -> None:
    async with connected(answer="sse") as (server, connection):
        for _ in range(5):
            assert (await connection.call_tool("echo", {})).ok
    assert server.connections <= 3  # a probe, the handshake beside it, the standing stream


async def test_a_stream_that_goes_on_after_the_answer_holds_up_nobody() -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        yield event(result_of_call("first"))
        yield event({"jsonrpc": "2.0", "id": CALL, "result": text("second")})
        await asyncio.Event().wait()

    reply = Reply(200, {"content-type": EVENTS}, endless())
    async with connected(on_call(reply)) as (_, connection):
        assert (await connection.call_tool("echo", {}, timeout=5)).text == "first"
        assert (await connection.list_tools()).tools


async def test_a_stream_that_stays_open_after_the_answer_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "LINGER_SECONDS", 0.05)
    left = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            yield event(result_of_call("first"))
            await asyncio.Event().wait()
        finally:
            left.set()

    reply = Reply(200, {"content-type": EVENTS}, endless())
    async with connected(on_call(reply)) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "first"
        await left.wait()
        assert (await connection.list_tools()).tools


async def test_what_follows_the_answer_on_its_stream_changes_nothing() -> None:
    """B15: also if it breaks off, or is no JSON."""
    for rest in (b"data: {oops\n\n", b"data: " + b"0" * 17_000_000, b"id: 9\n\n", b": x"):
        body = event(result_of_call("answered")) + rest
        async with connected(on_call(body)) as (server, connection):
            assert (await connection.call_tool("echo", {})).text == "answered"
            assert (await connection.list_tools()).tools
        assert resumptions(server.requests) == []


@pytest.mark.parametrize("charset", ["", "; charset=utf-8", "; charset=iso-8859-1"])
async def test_events_are_utf8_and_else_what_the_header_names(charset: str) -> None:
    utf8 = json.dumps(result_of_call("ä"), ensure_ascii=False).encode()
    latin = json.dumps(result_of_call("ö"), ensure_ascii=False).encode("latin-1")
    kind = f"Text/Event-Stream{charset}"
    for body, found in ((utf8, "ä"), (latin, "ö" if "iso" in charset else "\ufffd")):
        reply = Reply(200, {"content-type": kind}, b"data: " + body + b"\n\n")
        async with connected(on_call(reply)) as (_, connection):
            assert (await connection.call_tool("echo", {})).text == found


async def test_a_stream_of_a_call_that_nobody_waits_for_is_not_resumed() -> None:
    """A50: `abandon`."""
    leave = asyncio.Event()

    async def body() -> AsyncGenerator[bytes, None]:
        yield b"id: e1\nretry: 1\ndata:\n\n"
        await leave.wait()

    settled = asyncio.Event()
    reply = Reply(200, {"content-type": EVENTS}, body())
    async with connected(on_call(reply)) as (server, connection):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("echo", {}, timeout=0.3, settled=settled.set)
        await server.until(lambda: "notifications/cancelled" in server.rpcs())
        leave.set()
        await settled.wait()
    assert resumptions(server.requests) == []
