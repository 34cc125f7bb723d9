"""Servers that say too much, and callers that leave twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import count

import pytest

from servers.mcp import client
from servers.mcp.client import connect
from servers.mcp.exchange import MAX_COOKIES
from servers.mcp.transport import MAX_ANSWERS
from servers.mcp.types import CallTimedOut
from tests.fakes.http_calls import connected, json_reply, result_of_call
from tests.fakes.mcp_helpers import shell_settings, stdio_settings
from tests.fakes.mcp_http import EVENTS, Reply, Request, event
from tests.fakes.mcp_server import Behaviour
from tests.fakes.spawner import BareSpawner


async def test_a_flood_of_requests_is_not_answered_with_a_flood_of_connections() -> None:
    """Whoever asks more than it takes answers for goes without some of them."""
    at_once: list[int] = []
    taken = asyncio.Event()

    async def flood() -> AsyncGenerator[bytes, None]:
        for number in range(20 * MAX_ANSWERS):
            yield event({"jsonrpc": "2.0", "id": f"q{number}", "method": "ping"})
        yield event(result_of_call("done"))

    async def script(request: Request) -> Reply | None:
        if request.rpc == "tools/call":
            return Reply(200, {"content-type": EVENTS}, flood())
        if request.method == "POST" and "result" in request.message:
            at_once.append(1)
            await taken.wait()
            return Reply(202)
        return None

    async with connected(script) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "done"
        assert 0 < len(at_once) <= MAX_ANSWERS
        taken.set()
        assert (await connection.list_tools()).tools


async def test_a_list_that_drips_page_by_page_has_a_limit_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D01, F06: each page in time, and no end in sight."""
    monkeypatch.setattr(client, "PROGRESS_FACTOR", 2)

    async def script(request: Request) -> Reply | None:
        if request.rpc == "tools/list":
            await asyncio.sleep(0.2)
        return None

    behaviour = Behaviour(page_size=1, cursor="endless")
    async with connected(script, behaviour=behaviour, settings={"request_timeout": 0.5}) as (
        server,
        connection,
    ):
        with pytest.raises(CallTimedOut, match=r"within 1 seconds \(2 times request_timeout_secs"):
            await connection.list_tools()
        assert 1 < server.rpcs().count("tools/list") < 6
        assert (await connection.call_tool("echo", {})).ok


async def test_cookies_are_sent_back_but_do_not_pile_up() -> None:
    """Some load balancers find the session's place by one; none needs a new one each time."""
    numbers = count()

    def script(request: Request) -> Reply | None:
        if request.rpc != "tools/call":
            return None
        cookie = f"c{next(numbers)}={'x' * 500}"
        reply = json_reply({"jsonrpc": "2.0", "id": request.message["id"], "result": {}})
        reply.headers["set-cookie"] = cookie
        return reply

    async with connected(script) as (server, connection):
        for _ in range(3 * MAX_COOKIES):
            await connection.call_tool("echo", {})
    sent = [request.headers.get("cookie", "") for request in server.requests]
    assert any(header.startswith("c0=") for header in sent)
    assert max(header.count("=") for header in sent) == MAX_COOKIES


# Answers the handshake, then asks without end and reads nothing any more.
DEAF = """
import itertools, json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    if message["method"] == "tools/call":
        break
while True:
    os.write(1, b'{"jsonrpc":"2.0","id":"%s","method":"ping"}\\n' % (b"x" * 900) * 50)
"""


async def test_a_server_that_never_reads_fills_no_memory() -> None:
    """C15: neither answers to its questions nor calls pile up before it."""
    spawn = BareSpawner()
    settings = replace(
        stdio_settings(),
        args=("-I", "-S", "-c", DEAF),
        remembered={"mode": "handshake"},
    )
    async with connect(settings, spawn=spawn) as connection:
        for _ in range(5):
            with pytest.raises(CallTimedOut):
                await connection.call_tool("echo", {"text": "x" * 500_000}, timeout=0.3)
        waiting = spawn.started[0].stdin.transport.get_write_buffer_size()
    assert waiting < 1_000_000
    assert spawn.alive() == []


@pytest.mark.parametrize("moments", [0, 1, 3])
async def test_a_caller_that_is_cancelled_again_while_it_leaves_leaves_nothing_behind(
    moments: int,
) -> None:
    """C24, F15: the block is over when the process is gone."""
    spawn, ready = BareSpawner(), asyncio.Event()

    async def use() -> None:
        async with connect(stdio_settings(Behaviour(ignore_eof=True)), spawn=spawn):
            ready.set()
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    user = asyncio.create_task(use())
    await ready.wait()
    for _ in range(3):
        user.cancel()
        for _ in range(moments):
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await user
    assert spawn.alive() == []
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("moments", [1, 5, 20, 500])
async def test_the_end_of_the_loop_kills_what_was_started(moments: int) -> None:
    """C24: also where everything is cancelled twice, as `asyncio.run` does after an interrupt."""
    spawn = BareSpawner()
    before = asyncio.all_tasks()

    async def use() -> None:
        async with connect(shell_settings("trap '' TERM; sleep 100"), spawn=spawn):
            pass

    user = asyncio.create_task(use())
    await spawn.news.wait()
    for _ in range(2):
        for _ in range(moments):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - before:
            task.cancel()
    while left := asyncio.all_tasks() - before:
        await asyncio.wait(left)
    assert user.cancelled()
    assert spawn.alive() == []
