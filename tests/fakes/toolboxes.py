"""A toolbox over fake servers and a line of calls in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobs.attempts import Attempts
from jobs.connections import AttachedServer, ServerLink
from jobs.permission import Denied, Permission
from jobs.toolbox import CallMeter, Toolbox
from servers.inflight import Line
from servers.mcp.types import CallResult, ConnectionSettings, ServerError, ToolList
from tests.fakes.lines import FakeStore, here
from tests.fakes.runs import FakeServer, FakeServers, ListRecorder

CAP = 5  # seconds after which a test that waits has failed
EVERYTHING = Permission("creator")


class Bench:
    """A toolbox over fake servers, with what it recorded. `now` is what the database says, `time`
    the seconds that have passed for attempts to connect."""

    def __init__(self) -> None:
        self.time = 0.0
        self.recorder = ListRecorder()
        self.meter = CallMeter(self.recorder)  # type: ignore[arg-type]
        self.links: dict[str, ServerLink] = {}
        self.skipped: dict[str, str] = {}
        self.now = EVERYTHING
        self.asked: list[UUID] = []
        self.reported: list[ToolList | ServerError] = []
        self.store = FakeStore()
        self.line = Line("token", here, look=self.look, kept_in=self.store)
        self.box = Toolbox(
            self.links,
            self.recorder,  # type: ignore[arg-type]
            self.permit,
            self.line,
            self.meter,
            skipped=self.skipped,
        )

    def look(self, server_id: UUID) -> Permission:
        self.asked.append(server_id)
        if self.now.problem:
            raise Denied(self.now.problem)
        return self.now

    async def permit(self, server_id: UUID) -> Permission:
        return self.now

    def attach(
        self, name: str, allowed: tuple[str, ...] | None = None, **fields: Any
    ) -> ServerLink:
        settings = ConnectionSettings(name=name, transport="http", url="http://127.0.0.1/mcp")
        if allowed is not None:
            self.now = Permission("creator", allowed)
        values: dict[str, Any] = {
            "transport": "http",
            "enabled": True,
            "permission": self.now,
            "settings": settings,
        }
        server = AttachedServer(uuid4(), name, **(values | fields))
        self.links[name] = ServerLink(
            server,
            self.recorder,  # type: ignore[arg-type]
            report=self.report,
            attempts=Attempts(lambda: self.time),
        )
        self.links[name].start()
        return self.links[name]

    def report(self, _link: ServerLink, _found: Any, outcome: ToolList | ServerError) -> None:
        self.reported.append(outcome)

    async def fill(self, link: ServerLink) -> None:
        """Take every slot of the server, as another run would."""
        taken = self.store.turn(link.server.id, "other", limit=1, take=link.max_inflight)
        assert len(taken.taken) == link.max_inflight


class OnABench:
    """Tests with a server `good`, attached by `bench.attach("good")`."""

    @pytest.fixture
    def servers(self, monkeypatch: pytest.MonkeyPatch) -> FakeServers:
        fakes = FakeServers(good=FakeServer())
        from servers.mcp import client

        monkeypatch.setattr(client, "connect", fakes.connect)
        return fakes

    @pytest.fixture
    async def bench(self, servers: FakeServers) -> AsyncIterator[Bench]:
        made = Bench()
        yield made
        async with asyncio.timeout(CAP):
            for link in made.links.values():
                await link.close()
            await made.line.close()


async def call(bench: Bench, name: str = "echo", server: str = "good") -> CallResult:
    async with asyncio.timeout(CAP):
        return await bench.box.call(server, name, {"message": "hi"})
