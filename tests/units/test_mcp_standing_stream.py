"""The stream for what a server says on its own: optional, opened again, given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import httpx2
import pytest
from mcp_types import JSONRPCMessage

from servers.mcp import exchange, standing
from servers.mcp.bodies import read_events
from servers.mcp.client import connect
from servers.mcp.exchange import is_final
from servers.mcp.standing import StandingStream
from servers.mcp.types import ConnectionLost, ServerError, ServerUnavailable
from tests.fakes.http_calls import connected, on_get, settings_for
from tests.fakes.mcp_helpers import Recorder, http_settings
from tests.fakes.mcp_http import EVENTS, JSON, FakeHttp, Reply, Request, event
from tests.fakes.mcp_server import Behaviour, Message

CHANGED: Message = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@pytest.fixture
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is opened again at once."""
    monkeypatch.setattr(standing, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(standing, "MAX_DELAY", 0.0)


async def test_a_server_may_speak_on_its_own() -> None:
    """A24: it announces other tools."""
    observer = Recorder()
    async with connected(standing=True, observer=observer) as (server, connection):
        before = len((await connection.tools()).tools)
        await server.until(server.gets)
        server.fake.behaviour.tools = server.fake.behaviour.tools[:2]
        server.push(CHANGED)
        while not observer.notices:  # noqa: ASYNC110  the observer has no event for notices
            await asyncio.sleep(0)
        assert before > len((await connection.tools()).tools) == 2
    asked = server.gets()[0].headers
    assert asked["accept"] == EVENTS
    assert asked["mcp-session-id"]
    assert asked["mcp-protocol-version"] == "2025-11-25"
    assert "last-event-id" not in asked


async def test_a_question_on_the_stream_is_answered_by_a_message() -> None:
    async with connected(standing=True) as (server, _):
        server.push({"jsonrpc": "2.0", "id": "q", "method": "ping"})
        await server.until(lambda: [r for r in server.requests if b'"id":"q"' in r.body])
    answer = next(r for r in server.requests if b'"id":"q"' in r.body)
    assert answer.message["result"] == {}


async def test_an_answer_on_the_stream_counts_too() -> None:
    """Some servers send everything there."""

    async def script(request: Request) -> Reply | None:
        if request.rpc != "tools/call":
            return None
        result = {"content": [{"type": "text", "text": "from aside"}]}
        server.push({"jsonrpc": "2.0", "id": request.message["id"], "result": result})
        server.push({"jsonrpc": "2.0", "id": 999, "result": {}})
        await asyncio.Event().wait()
        return None

    async with (
        FakeHttp(script=script, standing=True) as server,
        connect(settings_for(server)) as connection,
    ):
        assert (await connection.call_tool("echo", {}, timeout=20)).text == "from aside"


async def test_no_stream_is_opened_where_the_revision_knows_none() -> None:
    """2026-07-28: GET is gone."""
    behaviour = Behaviour(era="modern")
    async with connected(behaviour=behaviour, sessions=False) as (server, connection):
        assert (await connection.call_tool("echo", {})).ok
    assert server.gets() == []


REFUSALS = {
    **{str(status): Reply(status) for status in (400, 401, 403, 404, 405, 406, 410, 501)},
    "json": Reply(200, {"content-type": JSON}, b'{"ok":true}'),
    "html": Reply(200, {"content-type": "text/html"}, b"<h1>hello</h1>"),
    "nothing": Reply(204),
    "elsewhere": Reply(302, {"location": "http://other.example/mcp"}),
}


@asynccontextmanager
async def stream_to(server: FakeHttp) -> AsyncIterator[StandingStream]:
    """A stream of its own, without a session around it."""
    async with httpx2.AsyncClient(timeout=20) as client:

        @asynccontextmanager
        async def opener(last_event_id: str) -> AsyncIterator[httpx2.Response]:
            headers = {"last-event-id": last_event_id} if last_event_id else {}
            async with client.stream("GET", server.url, headers=headers) as response:
                yield response

        yield StandingStream(opener, ignore, 1000)


async def ignore(message: JSONRPCMessage) -> None:
    """Nobody wants to know."""


@pytest.mark.usefixtures("in_no_time")
@pytest.mark.parametrize("reply", REFUSALS.values(), ids=REFUSALS)
async def test_a_server_without_the_stream_is_healthy_and_asked_only_once(reply: Reply) -> None:
    """B04, U99."""
    observer = Recorder()
    async with connected(on_get(reply), observer=observer) as (server, connection):
        await server.until(server.gets)
        for _ in range(3):
            assert (await connection.call_tool("echo", {})).ok
        assert (await connection.list_tools()).warnings == []
    first = 4 if reply.status == 302 else 1  # a redirect could be one of the moment
    assert len(server.gets()) <= first
    assert observer.notices == []
    assert server.rpcs().count("initialize") == 1


BREAKS = {
    "empty": Reply(200, {"content-type": EVENTS}),
    "comment": Reply(200, {"content-type": EVENTS}, b": hello\n\n"),
    "ping": Reply(200, {"content-type": EVENTS}, b"event: ping\ndata: {}\n\n"),
    "rubbish": Reply(200, {"content-type": EVENTS}, b"data: {oops\n\n"),
    "too large": Reply(200, {"content-type": EVENTS}, b"data: " + b"0" * 2_000_000),
}


@pytest.mark.usefixtures("in_no_time")
@pytest.mark.parametrize("reply", BREAKS.values(), ids=BREAKS)
async def test_a_stream_that_ends_at_once_is_given_up_after_a_few_openings(reply: Reply) -> None:
    """B05."""
    async with FakeHttp(script=on_get(reply)) as server, stream_to(server) as stream:
        await stream.run()
    assert len(server.gets()) == standing.MAX_MISSES


@pytest.mark.usefixtures("in_no_time")
@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503])
async def test_a_refusal_of_the_moment_gets_a_few_attempts(status: int) -> None:
    """B05: the door turns statuses into errors."""
    async with connected(on_get(Reply(status))) as (server, connection):
        await server.until(lambda: len(server.gets()) == standing.MAX_MISSES)
        assert (await connection.call_tool("echo", {})).ok
    assert len(server.gets()) == standing.MAX_MISSES


def test_the_wait_doubles_with_each_miss_up_to_half_a_minute() -> None:
    """B05: so the rate of requests stays bounded."""
    stream = StandingStream(_never, ignore, 1000)
    waits = []
    for _ in range(8):
        stream._count(useful=False)
        waits.append(stream.delay)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    stream._count(useful=True)
    assert stream.delay == 1


@pytest.mark.usefixtures("in_no_time")
async def test_a_stream_that_said_something_is_opened_again_where_it_broke_off() -> None:
    """Resumability: the server numbers its events."""
    said = event(CHANGED, identity="e1")

    def script(request: Request) -> Reply | None:
        if request.method != "GET":
            return None
        return Reply(200, {"content-type": EVENTS}, said) if len(server.gets()) < 8 else Reply(405)

    async with FakeHttp(script=script) as server, stream_to(server) as stream:
        await stream.run()
    seen = [request.headers.get("last-event-id") for request in server.gets()]
    assert seen == [None, *["e1"] * 7]


@pytest.mark.usefixtures("in_no_time")
async def test_a_server_that_has_its_client_poll_is_not_given_up() -> None:
    """SEP-1699: it numbers an empty event and closes; what it has to say waits for the next."""

    def script(request: Request) -> Reply | None:
        if request.method != "GET":
            return None
        polled = b"id: p1\nretry: 0\ndata:\n\n"
        return (
            Reply(200, {"content-type": EVENTS}, polled) if len(server.gets()) < 9 else Reply(405)
        )

    async with FakeHttp(script=script) as server, stream_to(server) as stream:
        await stream.run()
    assert len(server.gets()) == 9


def test_the_server_may_ask_for_a_longer_wait() -> None:
    stream = StandingStream(_never, ignore, 1000)
    stream._asked_delay = 5.0
    stream._count(useful=True)
    assert stream.delay == 5
    stream._asked_delay = 3600.0
    assert stream.delay == standing.MAX_DELAY


async def test_only_the_beginning_of_the_stream_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U41: the request's limit counts until the response begins."""
    running: list[float | None] = []

    @asynccontextmanager
    async def clock(seconds: float | None) -> AsyncIterator[None]:
        running.append(seconds)
        yield
        running.remove(seconds)

    monkeypatch.setattr("servers.mcp.exchange.deadlines.timeout", clock)
    async with FakeHttp(standing=True) as server:
        door = exchange.Door(http_settings(server.url, request_timeout=7))
        async with door.open("GET", server.url, headers={}) as response:
            server.push(CHANGED)
            async with aclosing(read_events(response, 1000)) as events:
                assert (await anext(events)).kind == "message"
                assert running == []
        await door.client.aclose()


async def test_the_beginning_of_the_stream_is_bounded() -> None:
    """U41."""

    async def script(request: Request) -> Reply | None:
        await asyncio.Event().wait()
        return None

    async with FakeHttp(script=script) as server:
        door = exchange.Door(http_settings(server.url, request_timeout=0.1))
        with pytest.raises(ServerUnavailable, match=r"did not begin to answer within 0\.1 seconds"):
            async with door.open("GET", server.url, headers={}):
                pass
        await door.client.aclose()


async def test_a_stream_that_does_not_begin_harms_no_call() -> None:
    """U41, B04."""

    async def script(request: Request) -> Reply | None:
        if request.method == "GET":
            await asyncio.Event().wait()
        return None

    async with connected(script, settings={"request_timeout": 5}) as (server, connection):
        await server.until(server.gets)
        assert (await connection.call_tool("echo", {})).ok


async def test_a_new_session_has_a_stream_of_its_own() -> None:
    """B01."""
    async with connected(standing=True) as (server, connection):
        await server.until(server.gets)
        server.known_sessions.clear()
        assert (await connection.call_tool("echo", {})).ok
        await server.until(lambda: len(server.gets()) == 2)
    first, second = (request.headers["mcp-session-id"] for request in server.gets())
    assert first != second


async def test_the_stream_ends_with_the_connection() -> None:
    async with FakeHttp(standing=True) as server:
        async with connect(settings_for(server)):
            await server.until(server.gets)
        assert server.requests[-1].method == "DELETE"
        await server.until_left()


def _never(last_event_id: str) -> AbstractAsyncContextManager[httpx2.Response]:
    raise ServerError("nobody opens this")


def test_a_lost_connection_is_an_error_of_the_moment() -> None:
    """A network that is down comes back."""
    assert not is_final(ConnectionLost("reset"))
