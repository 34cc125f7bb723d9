"""Shortcuts of the tests that talk to the fake MCP server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers.mcp.types import Asker, ConnectionSettings
from tests.fakes.mcp_http import FakeHttp
from tests.fakes.mcp_server import Behaviour
from tests.fakes.spawner import BareSpawner

if TYPE_CHECKING:
    from servers.mcp.client import Connection

FAKE = Path(__file__).with_name("mcp_server.py")


class Recorder:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []
        self.notices: list[str] = []
        self.news = asyncio.Event()

    def step(self, label: str) -> None:
        self.steps.append(label)

    def stderr(self, line: str) -> None:
        self.lines.append(line)
        self.news.set()

    def notice(self, sentence: str) -> None:
        self.notices.append(sentence)


def stdio_settings(behaviour: Behaviour | None = None, **options: Any) -> ConnectionSettings:
    given = json.dumps(asdict(behaviour or Behaviour()))
    arguments = ("-I", "-S", "-X", "utf8", str(FAKE), given)
    return ConnectionSettings(
        name="fake", transport="stdio", command=sys.executable, args=arguments, **options
    )


def shell_settings(script: str, **options: Any) -> ConnectionSettings:
    return ConnectionSettings(
        name="fake", transport="stdio", command="sh", args=("-c", script), **options
    )


def http_settings(url: str, **options: Any) -> ConnectionSettings:
    return ConnectionSettings(name="fake", transport="http", url=url, **options)


# Every way to reach a server: transport, shape of the answers, era.
WAYS = ("stdio", "stdio modern", "json", "events", "events modern", "sse")


@asynccontextmanager
async def reached(
    way: str,
    behaviour: Behaviour | None = None,
    *,
    observer: Recorder | None = None,
    ask: Asker | None = None,
    **options: Any,
) -> AsyncIterator[Connection]:
    """A connection to the fake in one of `WAYS`; `options` are those of `ConnectionSettings`."""
    from servers.mcp.client import connect

    kind, _, era = way.partition(" ")
    behaviour = replace(behaviour or Behaviour(), era=era or "legacy")
    given: dict[str, Any] = {"observer": observer, "ask": ask}
    if kind == "stdio":
        settings = stdio_settings(behaviour, **options)
        async with connect(settings, spawn=BareSpawner(), **given) as connection:
            yield connection
        return
    shapes = {"json": {}, "events": {"answer": "sse"}, "sse": {"transport": "sse"}}
    async with (
        FakeHttp(behaviour, **shapes[kind]) as server,  # type: ignore[arg-type]
        connect(http_settings(server.url, **options), **given) as connection,
    ):
        yield connection
