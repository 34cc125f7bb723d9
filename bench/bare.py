"""The yardstick: the SDK's own client, used as its manual says, without anything around it.

It starts with the handshake at once (`legacy`), since that is what these servers speak; its
usual probe would only make the yardstick longer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TextIO

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from bench.servers import ARGUMENTS, TOOL, Target

LIMIT = 60.0  # seconds for one measurement


def connect_list_call(targets: Sequence[Target]) -> float:
    """Seconds until the last of all servers, connected to at once, has answered its call."""
    with open(os.devnull, "w") as nowhere:
        return asyncio.run(_limited(targets, nowhere, lists=True))


def connect_list(targets: Sequence[Target]) -> float:
    """Seconds until the last of all servers, connected to at once, has listed its tools."""
    with open(os.devnull, "w") as nowhere:
        return asyncio.run(_limited(targets, nowhere, lists=True, calls=False))


def calls(url: str, tool: str, arguments: dict[str, Any], parallel: int, count: int) -> float:
    """Seconds for `count` calls over one connection, at most `parallel` at once."""
    return asyncio.run(_calls(url, tool, arguments, parallel, count))


async def _calls(
    url: str, tool: str, arguments: dict[str, Any], parallel: int, count: int
) -> float:
    async with Client(url, mode="legacy") as client:
        left = iter(range(count))

        async def worker() -> None:
            for _ in left:
                await client.call_tool(tool, arguments)

        started = time.monotonic()
        await asyncio.gather(*(worker() for _ in range(parallel)))
        return time.monotonic() - started


def connect_call(target: Target) -> float:
    """Seconds of one server's own start, connect and call."""
    with open(os.devnull, "w") as nowhere:
        return asyncio.run(_limited([target], nowhere, lists=False))


async def _limited(
    targets: Sequence[Target], nowhere: TextIO, *, lists: bool, calls: bool = True
) -> float:
    async with asyncio.timeout(LIMIT):
        started = time.monotonic()
        work = (_one(target, nowhere, lists=lists, calls=calls) for target in targets)
        return max(await asyncio.gather(*work)) - started


async def _one(target: Target, nowhere: TextIO, *, lists: bool, calls: bool) -> float:
    """The moment of the last answer; closing the connection is not part of it."""
    async with _client(target, nowhere) as client:
        if lists:
            await client.list_tools()
        if not calls:
            return time.monotonic()
        result = await client.call_tool(TOOL, ARGUMENTS)
        answered = time.monotonic()
    if result.is_error:
        raise RuntimeError(f"{target.name} answered with an error: {result.content}")
    return answered


@asynccontextmanager
async def _client(target: Target, nowhere: TextIO) -> AsyncIterator[Client]:
    if target.url:
        async with Client(target.url, mode="legacy") as client:
            yield client
        return
    parameters = StdioServerParameters(command=target.command, args=list(target.args))
    async with Client(stdio_client(parameters, errlog=nowhere), mode="legacy") as client:
        yield client
