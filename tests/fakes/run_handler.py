"""A run behind a broker, in memory: what `jobs.broker` tests and the benches talk to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jobs.broker.protocol import BrokerError
from servers.mcp.types import CallResult


class FakeRun:
    """Implements `BrokerHandler`; `calls` lists what arrived.

    Tools of the server `demo`: `echo` answers with its arguments, `broken` reports an error,
    `slow` waits until `release` is set, `structured` answers without text.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.state: dict[str, Any] = {}
        self.release = asyncio.Event()
        self.running = 0
        self.most_running = 0
        self.cancelled = 0

    async def mcp_tools(self, server: str | None) -> list[dict[str, Any]]:
        if server not in (None, "demo"):
            raise BrokerError(f"no server {server} is attached to this job")
        return [
            {"server": "demo", "name": "echo", "title": "", "description": "Repeats.\nMore."},
            {"server": "demo", "name": "broken", "title": "Breaks", "description": ""},
        ]

    async def mcp_call(self, server: str, tool: str, arguments: dict[str, Any]) -> CallResult:
        self.calls.append(("mcp_call", server, tool, arguments))
        if tool == "broken":
            return CallResult(ok=False, text="it broke", error="it broke")
        if tool == "structured":
            return CallResult(ok=True, text="", structured={"n": 1})
        if tool == "crash":
            raise RuntimeError("a bug of ours with a secret in it")
        if tool == "slow":
            await self._wait()
        return CallResult(ok=True, text=json.dumps(arguments, ensure_ascii=False))

    async def _wait(self) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def state_get(self, key: str) -> Any:
        return self.state[key]

    async def state_set(self, key: str, value: Any) -> None:
        self.state[key] = value

    async def state_list(self) -> list[str]:
        return sorted(self.state)

    async def output_set(self, name: str, value: Any) -> None:
        self.calls.append(("output_set", name, value))

    async def step(self, name: str) -> None:
        self.calls.append(("step", name))

    async def summary(self, text: str) -> None:
        self.calls.append(("summary", text))

    async def fail(self, reason: str) -> None:
        self.calls.append(("fail", reason))
