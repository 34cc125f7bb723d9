"""A server that accepts and never answers, beside others that are healthy, in one run."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from jobs import connections
from servers.mcp.types import ConnectionSettings, ServerUnavailable
from tests.fakes.mcp_http import FakeHttp, Reply, Request
from tests.fakes.mcp_server import TOOLS, Behaviour
from tests.fakes.toolboxes import Bench

CAP = 30  # seconds after which a test that waits has failed
HEALTHY = ("one", "two", "three")


async def silence(request: Request) -> Reply:
    await asyncio.Event().wait()
    return Reply()


async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts, reads and says nothing, not even in HTTP."""
    await reader.read()
    writer.close()


async def settings_of(kind: str, stack: AsyncExitStack) -> ConnectionSettings:
    if kind == "of HTTP":
        url = (await stack.enter_async_context(FakeHttp(script=silence))).url
    else:
        server = await stack.enter_async_context(await asyncio.start_server(mute, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    return ConnectionSettings(name="mute", transport="http", url=url)


@pytest.mark.parametrize("kind", ["of HTTP", "of TCP"])
async def test_healthy_servers_are_used_at_once_and_the_mute_one_is_named(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F01, F13, P70: all connect in parallel, and the whole wait is that of the slowest."""
    monkeypatch.setattr(connections, "CONNECT_LIMIT", 2.0)
    bench = Bench()
    async with asyncio.timeout(CAP), AsyncExitStack() as stack:
        links = [bench.attach("mute", settings=await settings_of(kind, stack))]
        for name, era in zip(HEALTHY, ("legacy", "modern", "both"), strict=True):
            fake = FakeHttp(Behaviour(era=era), sessions=era != "modern")
            url = (await stack.enter_async_context(fake)).url
            settings = ConnectionSettings(name=name, transport="http", url=url)
            links.append(bench.attach(name, settings=settings))
        for name in HEALTHY:
            assert len(await bench.box.list_tools(name)) == len(TOOLS)
            assert (await bench.box.call(name, "echo", {"a": 1})).ok
        assert bench.recorder.of("server.unavailable") == []  # it may still answer
        with pytest.raises(ServerUnavailable, match="MCP server mute is unavailable: no answer"):
            await bench.box.call("mute", "echo", {})
        assert {item.server for item in await bench.box.list_tools()} == set(HEALTHY)
        assert [event["server"] for event in bench.recorder.of("server.unavailable")] == ["mute"]
        for link in links:
            await link.close()
        await bench.line.close()
