"""Calls that take longer than what libraries wait for by themselves, in real seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path

from servers.mcp.client import connect
from tests.fakes.http_calls import settings_for
from tests.fakes.mcp_helpers import WAYS, reached
from tests.fakes.mcp_http import FakeHttp

# Five seconds are the default of the HTTP library between two bytes, ten are common caps.
SILENCE = 11.0


async def over(way: str) -> str:
    async with reached(way, tool_timeout=120.0) as connection:
        return (await connection.call_tool("sleep", {"seconds": SILENCE})).text


async def over_a_socket(path: Path, answer: str) -> str:
    async with (
        FakeHttp(socket_path=str(path), answer=answer) as server,
        connect(settings_for(server, tool_timeout=120.0)) as connection,
    ):
        return (await connection.call_tool("sleep", {"seconds": SILENCE})).text


async def test_no_hidden_default_cuts_a_call_that_is_silent_for_long(short_dir: Path) -> None:
    """F05: JSON and events, both revisions, the old transport, stdio and sockets; all at once."""
    calls = [over(way) for way in WAYS]
    calls += [over_a_socket(short_dir / shape, shape) for shape in ("json", "sse")]
    assert await asyncio.gather(*calls) == ["slept"] * len(calls)
