"""Shortcuts of the tests that talk to the fake MCP server."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from servers.mcp.types import ConnectionSettings
from tests.fakes.mcp_server import Behaviour

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
