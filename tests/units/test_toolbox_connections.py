"""The servers of a run: connecting at once, failing alone, telling what changed (P70, P71)."""

from __future__ import annotations

import asyncio

import pytest

from jobs import connections, toolbox
from jobs.permission import Permission
from jobs.toolbox import ToolNotFound, ToolRefused
from servers.mcp.types import (
    ServerError,
    ServerUnavailable,
    Tool,
)
from servers.policy import Policy
from tests.fakes.runs import FakeServer, FakeServers, tool
from tests.fakes.toolboxes import Bench, OnABench, call
from umpteenth.core import deadlines


class TestConnecting(OnABench):
    async def test_a_slow_server_is_waited_for_by_its_own_calls_only(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """F01: all connect at once."""
        gate = asyncio.Event()
        servers["slow"] = FakeServer(gate=gate)
        bench.attach("slow")
        bench.attach("good")
        waiting = asyncio.create_task(call(bench, server="slow"))
        assert (await call(bench)).text == "hi"
        assert not waiting.done()
        gate.set()
        assert (await waiting).ok

    async def test_a_success_is_an_event_with_tools_and_time(self, bench: Bench) -> None:
        await bench.attach("good").ready()
        [event] = bench.recorder.events
        assert event.kind == "server.connected"
        assert event.payload == {
            "server": "good",
            "tools": 2,
            "transport": "http",
            "protocol_version": "2026-07-28",
            "how": "It answered server/discover.",
        }
        assert event.ms is not None

    async def test_a_socket_is_named_beside_what_is_spoken_over_it(self, bench: Bench) -> None:
        """U12."""
        await bench.attach("good", transport="unix").ready()
        [payload] = bench.recorder.of("server.connected")
        assert (payload["transport"], payload["socket"]) == ("http", True)

    async def test_a_failure_is_an_event_with_its_reason(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """P71"""
        error = ServerUnavailable("exited", hint="Set the key.", stderr_tail="no key", exit_code=1)
        servers["bad"] = FakeServer(error=error)
        bench.attach("bad")
        with pytest.raises(ServerUnavailable, match="MCP server bad is unavailable: exited"):
            await call(bench, server="bad")
        assert bench.recorder.of("server.unavailable") == [
            {
                "server": "bad",
                "message": "MCP server bad is unavailable",
                "reason": "exited",
                "hint": "Set the key.",
                "exit_code": 1,
                "stderr_tail": "no key",
            }
        ]

    async def test_a_server_has_two_minutes(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P70"""
        assert connections.CONNECT_LIMIT == 120
        monkeypatch.setattr(connections, "CONNECT_LIMIT", 0.01)
        servers["mute"] = FakeServer(gate=asyncio.Event())
        link = bench.attach("mute")
        with pytest.raises(ServerUnavailable, match="no answer within"):
            await link.ready()

    async def test_connecting_in_time_lifts_the_limit(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits: list[deadlines.Timeout] = []

        def kept(delay: float | None) -> deadlines.Timeout:
            limits.append(deadlines.Timeout(asyncio.get_running_loop().time() + (delay or 0)))
            return limits[-1]

        monkeypatch.setattr(deadlines, "timeout", kept)
        link = bench.attach("good")
        await link.ready()
        assert [limit.when() for limit in limits] == [None]
        assert (await call(bench)).ok

    async def test_a_reference_that_does_not_resolve_is_the_reason(self, bench: Bench) -> None:
        bench.attach("good", settings=None, problem="There is no secret named KEY.")
        with pytest.raises(ServerUnavailable, match="no secret named KEY"):
            await call(bench)

    async def test_closing_is_quick_even_while_connecting(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "CLOSE_LIMIT", 0.05)
        servers["mute"] = FakeServer(gate=asyncio.Event())
        link = bench.attach("mute")
        waiting = asyncio.create_task(call(bench, server="mute"))
        await asyncio.sleep(0)
        await link.close()
        with pytest.raises(ServerUnavailable):
            await waiting
        assert bench.recorder.of("server.unavailable") == []

    async def test_what_goes_wrong_at_the_end_is_no_event(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        servers["good"].close_error = ServerError("HTTP 500 to the DELETE")
        link = bench.attach("good")
        await link.ready()
        await link.close()
        assert bench.recorder.of("server.unavailable") == []

    async def test_connections_are_closed(self, bench: Bench, servers: FakeServers) -> None:
        """A44: none is left open at the end."""
        link = bench.attach("good")
        await link.ready()
        await link.close()
        assert servers["good"].closed


class TestWhatAServerTellsMeanwhile(OnABench):
    async def test_a_changed_list_counts_for_the_next_call_and_is_recorded(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.attach("good")
        assert (await call(bench)).ok
        servers["good"].change(tool("look"), tool("fresh"))
        assert (await call(bench, "fresh")).ok
        assert bench.recorder.of("server.tools_changed") == [
            {"server": "good", "added": ["fresh"], "removed": ["echo"], "changed": ["look"]}
        ]
        with pytest.raises(ToolNotFound):
            await call(bench)

    async def test_the_same_tools_again_are_no_event(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.attach("good")
        await call(bench)
        servers["good"].change(*[Tool(**vars(item)) for item in FakeServer().listed])
        await bench.box.list_tools()
        assert bench.recorder.of("server.tools_changed") == []

    async def test_a_tool_that_became_risky_is_judged_as_it_is_now(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """A29"""
        bench.now = Permission("agent", policy=Policy("guarded"))
        bench.attach("good")
        assert (await call(bench)).ok
        servers["good"].change(tool("echo", destructive=True))
        with pytest.raises(ToolRefused):
            await call(bench)

    async def test_a_list_that_fails_leaves_what_was_known(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.attach("good")
        await bench.links["good"].ready()
        servers["good"].change()
        servers["good"].list_error = ServerError("timed out")
        assert (await call(bench)).ok
        assert bench.recorder.of("server.notice") == [
            {"server": "good", "message": "The tools could not be listed again: timed out"}
        ]

    async def test_notices_are_recorded_up_to_a_number(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "MAX_NOTICES", 2)
        await bench.attach("good").ready()
        observer = servers["good"].observer
        assert observer is not None
        observer.step("Connecting")
        observer.stderr("a line")
        for number in range(5):
            observer.notice(f"declined {number}\x1b[31m")
        messages = [payload["message"] for payload in bench.recorder.of("server.notice")]
        assert messages == ["declined 0", "declined 1", connections.NOTICES_NOTE]

    async def test_progress_is_recorded_now_and_then(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the call's span; at most one a second and a hundred a call."""
        assert (toolbox.PROGRESS_INTERVAL, toolbox.MAX_PROGRESS) == (1.0, 100)
        servers["good"].reports = [(n, 9.0, f"step {n}") for n in range(5)]
        bench.attach("good")
        await call(bench)
        [first] = bench.recorder.of("tool.progress")
        assert first == {
            "server": "good",
            "tool": "echo",
            "progress": 0,
            "total": 9.0,
            "message": "step 0",
        }
        spans = {event.span for event in bench.recorder.events if event.kind.startswith("tool.")}
        assert len(spans) == 1
        monkeypatch.setattr(toolbox, "PROGRESS_INTERVAL", 0.0)
        monkeypatch.setattr(toolbox, "MAX_PROGRESS", 3)
        await call(bench)
        assert len(bench.recorder.of("tool.progress")) == 1 + 3

    async def test_a_call_that_is_not_recorded_has_no_progress(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(toolbox, "MAX_RECORDED", 0)
        servers["good"].reports = [(1, None, None)]
        bench.attach("good")
        await call(bench, "look")
        assert bench.recorder.of("tool.progress") == []
