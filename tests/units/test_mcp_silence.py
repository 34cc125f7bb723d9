"""Servers that say nothing, at every point of a conversation: one configured number ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from servers.mcp.client import connect
from servers.mcp.types import Answer, CallTimedOut, Question, ServerError, ServerUnavailable
from tests.fakes.mcp_helpers import WAYS, Recorder, http_settings, reached, stdio_settings
from tests.fakes.mcp_http import EVENTS, JSON, FakeHttp, Reply, Request
from tests.fakes.mcp_server import Behaviour
from tests.fakes.spawner import BareSpawner

SOON = 5  # seconds; everything here must end by its own limit of a fraction of one


async def never() -> AsyncGenerator[bytes, None]:
    await asyncio.Event().wait()
    yield b"late"


async def endpoint_then_nothing() -> AsyncGenerator[bytes, None]:
    yield b"event: endpoint\ndata: /messages\n\n"
    await asyncio.Event().wait()


async def drip(of: bytes) -> AsyncGenerator[bytes, None]:
    while True:
        yield of
        await asyncio.sleep(0.02)


def bodies(name: str) -> Reply:
    """An answer that begins and never ends."""
    return {
        "headers only, json": lambda: Reply(200, {"content-type": JSON}, never()),
        "headers only, events": lambda: Reply(200, {"content-type": EVENTS}, never()),
        "drops of json": lambda: Reply(200, {"content-type": JSON}, drip(b" ")),
        "drops of comments": lambda: Reply(200, {"content-type": EVENTS}, drip(b": x\n\n")),
        "drops of one line": lambda: Reply(200, {"content-type": EVENTS}, drip(b"x")),
    }[name]()


BODIES = (
    "headers only, json",
    "headers only, events",
    "drops of json",
    "drops of comments",
    "drops of one line",
)
EVERY_BODY_OF_A_CALL = [("tools/call", body) for body in BODIES]
OTHERS = [("initialize", BODIES[0]), ("initialize", BODIES[3]), ("tools/list", BODIES[3])]


@pytest.mark.parametrize(("at", "body"), [*EVERY_BODY_OF_A_CALL, *OTHERS])
async def test_an_answer_that_never_ends_is_cut_by_the_total_time(at: str, body: str) -> None:
    """F06: by the wall clock, not by the byte."""

    def script(request: Request) -> Reply | None:
        return bodies(body) if request.rpc == at else None

    async def use(url: str) -> None:
        settings = http_settings(url, request_timeout=0.3, remembered={"mode": "handshake"})
        async with connect(settings) as connection:
            await connection.list_tools()
            await connection.call_tool("echo", {})

    async with FakeHttp(script=script) as server:
        with pytest.raises(ServerError, match=r"within 0\.3 seconds \(request_timeout_secs\)"):
            await asyncio.wait_for(use(server.url), SOON)


async def test_a_stream_that_names_its_address_and_then_nothing_is_given_up() -> None:
    """F06: the transport of 2024-11-05."""

    def script(request: Request) -> Reply | None:
        if request.method == "GET":
            return Reply(200, {"content-type": EVENTS}, endpoint_then_nothing())
        return Reply(405 if request.path == "/sse" else 202)

    async with FakeHttp(transport="sse", script=script) as server:
        settings = http_settings(server.url, request_timeout=1.0, remembered={"transport": "sse"})
        with pytest.raises(ServerUnavailable, match="initialize got no answer within 1 seconds"):
            async with connect(settings):
                pass


async def test_a_silent_start_ends_at_its_own_limit() -> None:
    """C10, F06."""
    spawn = BareSpawner()
    settings = stdio_settings(Behaviour(start="mute"), start_timeout=0.4)
    with pytest.raises(ServerUnavailable, match=r"within 0\.4 seconds \(start_timeout_secs\)"):
        async with connect(settings, spawn=spawn):
            pass
    assert spawn.alive() == []
    assert len(spawn.started) == 1  # a time-out is no reason to start it again


@pytest.mark.parametrize("way", ["stdio", "json", "events", "sse"])
async def test_calls_after_a_silent_one_get_their_answers(way: str) -> None:
    """F06: the connection is free afterwards."""
    async with reached(way) as connection:
        for _ in range(3):
            with pytest.raises(CallTimedOut):
                await connection.call_tool("hang", {}, timeout=0.1)
        results = await asyncio.gather(*(connection.call_tool("echo", {"n": n}) for n in range(9)))
        assert [result.structured for result in results] == [{"n": n} for n in range(9)]


@pytest.mark.parametrize("way", WAYS)
async def test_one_option_bounds_the_calls_of_a_server_however_it_is_reached(way: str) -> None:
    """U44, F06: and the error names it."""
    async with reached(way, tool_timeout=0.2) as connection:
        for tool in ("hang", "progress"):
            with pytest.raises(CallTimedOut, match=r"0\.2 seconds \(.*tool_timeout_secs"):
                await connection.call_tool(tool, {"steps": 1, "interval": 600})
        assert (await connection.call_tool("echo", {})).ok


@pytest.mark.parametrize("way", WAYS)
async def test_a_request_limit_that_nobody_set_cuts_no_call(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F05, U42 as section 0 has it: else the slow classes would be dead over HTTP."""
    async with reached(way, tool_timeout=30.0) as connection:
        monkeypatch.setattr("servers.limits.REQUEST_TIMEOUT", 0.1)
        assert (await connection.call_tool("sleep", {"seconds": 0.4})).text == "slept"


async def test_leaving_ends_the_asking() -> None:
    """F15: nobody goes on thinking about a question of a connection that is gone."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def think(question: Question) -> Answer:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return Answer("decline")

    params = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    async with reached("stdio", ask=think) as connection:
        call = asyncio.create_task(
            connection.call_tool("ask", {"method": "elicitation/create", "params": params})
        )
        await asked.wait()
    with pytest.raises(ServerError, match="closed while the request was waiting"):
        await call
    assert left.is_set()


async def test_a_failed_connection_is_not_tried_again_by_the_rules_of_calls() -> None:
    """U21, U49."""

    def script(request: Request) -> Reply | None:
        if request.rpc != "initialize":
            return None
        body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32006,"message":"at capacity"}}'
        return Reply(200, {"content-type": JSON}, body)

    async with FakeHttp(script=script) as server:
        with pytest.raises(ServerUnavailable, match="at capacity"):
            async with connect(http_settings(server.url)):
                pass
        assert server.rpcs().count("initialize") == 1


async def test_a_list_that_is_refused_is_not_asked_for_again_by_the_rules_of_calls() -> None:
    """U49: only calls are retried so."""
    observer = Recorder()
    async with FakeHttp(Behaviour(list_error=-32006)) as server:
        async with connect(http_settings(server.url), observer=observer) as connection:
            with pytest.raises(ServerError, match="No list today"):
                await connection.list_tools()
        assert server.rpcs().count("tools/list") == 1
    assert observer.notices == []


async def test_a_read_only_call_whose_connection_broke_is_not_sent_again() -> None:
    """U49: only an answer of the server can ask for it."""

    def script(request: Request) -> Reply | None:
        return Reply(abort=True) if request.rpc == "tools/call" else None

    async with FakeHttp(script=script) as server:
        async with connect(http_settings(server.url)) as connection:
            await connection.list_tools()
            with pytest.raises(ServerError):
                await connection.call_tool("echo", {})
        assert server.rpcs().count("tools/call") == 1
