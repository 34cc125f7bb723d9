"""The only way to a tool: allow-lists, connecting at once, records, limits (P60-P71, P75)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobs import connections, toolbox
from jobs.connections import AttachedServer, ServerLink
from jobs.toolbox import CallMeter, Toolbox, ToolNotFound
from servers.mcp.types import CallResult, CallTimedOut, ConnectionSettings, ServerUnavailable
from tests.fakes.runs import FakeServer, FakeServers, ListRecorder, tool, unavailable
from umpteenth.core import deadlines

CAP = 5  # seconds after which a test that waits has failed


class Bench:
    """A toolbox over fake servers, with what it recorded."""

    def __init__(self) -> None:
        self.recorder = ListRecorder()
        self.meter = CallMeter(self.recorder)  # type: ignore[arg-type]
        self.links: dict[str, ServerLink] = {}
        self.allowed = True
        self.asked: list[tuple[UUID, str]] = []
        self.box = Toolbox(
            self.links,
            self.recorder,  # type: ignore[arg-type]
            self.permit,
            self.meter,
        )

    async def permit(self, server_id: UUID, name: str) -> bool:
        self.asked.append((server_id, name))
        return self.allowed

    def attach(self, name: str, **fields: Any) -> ServerLink:
        settings = ConnectionSettings(name=name, transport="http", url="http://127.0.0.1/mcp")
        values: dict[str, Any] = {"allowed_tools": None, "settings": settings}
        server = AttachedServer(uuid4(), name, "http", True, **(values | fields))
        self.links[name] = ServerLink(server, self.recorder)  # type: ignore[arg-type]
        self.links[name].start()
        return self.links[name]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    fakes = FakeServers(good=FakeServer())
    from servers.mcp import client

    monkeypatch.setattr(client, "connect", fakes.connect)
    return fakes


@pytest.fixture
async def bench(servers: FakeServers) -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    async with asyncio.timeout(CAP):
        for link in made.links.values():
            await link.close()


async def call(bench: Bench, name: str = "echo", server: str = "good") -> CallResult:
    async with asyncio.timeout(CAP):
        return await bench.box.call(server, name, {"message": "hi"})


class TestListing:
    async def test_all_tools_of_all_servers(self, bench: Bench) -> None:
        """P64: a new attachment allows all tools."""
        bench.attach("good")
        found = await bench.box.list_tools()
        assert [(item.server, item.tool.name) for item in found] == [
            ("good", "echo"),
            ("good", "look"),
        ]

    async def test_only_picked_tools_are_seen(self, bench: Bench) -> None:
        """P67"""
        bench.attach("good", allowed_tools=("look", "gone"))
        assert [item.tool.name for item in await bench.box.list_tools("good")] == ["look"]

    async def test_one_dead_server_does_not_hide_the_others(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """F13"""
        servers["bad"] = FakeServer(error=unavailable())
        for name in ("bad", "good"):
            bench.attach(name)
        assert {item.server for item in await bench.box.list_tools()} == {"good"}

    async def test_a_dead_server_says_so_when_asked_about(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        servers["bad"] = FakeServer(error=unavailable("Connection refused"))
        bench.attach("bad")
        with pytest.raises(ServerUnavailable, match="bad is unavailable: Connection refused"):
            await bench.box.list_tools("bad")

    async def test_what_no_engine_foresaw_concerns_one_server(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        servers["odd"] = FakeServer(error=ZeroDivisionError("by zero"))
        bench.attach("odd")
        bench.attach("good")
        assert len(await bench.box.list_tools()) == 2
        assert bench.recorder.of("server.unavailable")[0]["reason"] == "ZeroDivisionError: by zero"

    async def test_an_unknown_server_is_not_found(self, bench: Bench) -> None:
        bench.attach("good")
        with pytest.raises(ToolNotFound, match=r"server 'nope' not found.*good"):
            await bench.box.list_tools("nope")


class TestConnecting:
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
        }
        assert event.ms is not None

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

    async def test_connections_are_closed(self, bench: Bench, servers: FakeServers) -> None:
        link = bench.attach("good")
        await link.ready()
        await link.close()
        assert servers["good"].closed


class TestCalling:
    async def test_both_ends_of_a_call_are_recorded(self, bench: Bench) -> None:
        bench.attach("good")
        assert (await call(bench)).ok
        first, second = bench.recorder.events[-2:]
        assert (first.kind, second.kind) == ("tool.call", "tool.result")
        assert first.payload == {"server": "good", "tool": "echo", "arguments": {"message": "hi"}}
        assert second.payload == {"server": "good", "tool": "echo", "ok": True, "text": "hi"}
        assert first.span == second.span != ""
        assert second.ms is not None

    @pytest.mark.parametrize("name", ["echo", "nope"])
    async def test_denied_and_missing_tools_answer_alike(
        self, bench: Bench, servers: FakeServers, name: str
    ) -> None:
        bench.attach("good", allowed_tools=("look",))
        with pytest.raises(ToolNotFound, match=f"^tool '{name}' of server 'good' not found$"):
            await call(bench, name)
        assert servers["good"].calls == []

    async def test_a_permission_taken_away_in_the_meantime_counts(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """Asked again right before the call is sent."""
        link = bench.attach("good")
        await link.ready()
        bench.allowed = False
        with pytest.raises(ToolNotFound):
            await call(bench)
        assert servers["good"].calls == []
        assert bench.asked == [(link.server.id, "echo")]
        assert bench.recorder.of("tool.result")[0]["ok"] is False

    async def test_a_failing_call_is_a_result(self, bench: Bench, servers: FakeServers) -> None:
        def fail(_name: str, _arguments: dict[str, Any]) -> CallResult:
            raise CallTimedOut("no answer within 120 seconds", hint="Raise tool_timeout_secs.")

        servers["good"].answer = fail
        bench.attach("good")
        result = await call(bench)
        assert not result.ok
        assert result.error == "no answer within 120 seconds Raise tool_timeout_secs."
        assert bench.recorder.of("tool.result")[0]["error"] == result.error

    async def test_structured_content_and_errors_are_recorded(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        servers["good"].answer = lambda _name, _arguments: CallResult(
            ok=False, text="boom", structured={"code": 7}, error="boom"
        )
        bench.attach("good")
        await call(bench)
        payload = bench.recorder.of("tool.result")[0]
        assert (payload["structured"], payload["error"]) == ({"code": 7}, "boom")

    async def test_an_abandoned_call_still_gets_its_end(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.attach("good")
        await bench.links["good"].ready()
        for _ in range(connections.MAX_INFLIGHT):
            await bench.links["good"].slots.acquire()
        waiting = asyncio.create_task(call(bench))
        await asyncio.sleep(0.01)
        assert bench.recorder.of("tool.call")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert bench.recorder.of("tool.result")[0]["error"] == (
            "the run ended before the answer came"
        )

    async def test_at_most_four_calls_of_a_server_are_out_at_once(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        link = bench.attach("good")
        out, most = 0, 0

        async def slow(_name: str, _arguments: dict[str, Any]) -> CallResult:
            nonlocal out, most
            out += 1
            most = max(most, out)
            await asyncio.sleep(0.01)
            out -= 1
            return CallResult(ok=True, text="")

        monkeypatch.setattr(link, "call", slow)
        results = await asyncio.gather(*(call(bench) for _ in range(12)))
        assert all(result.ok for result in results)
        assert most == connections.MAX_INFLIGHT

    async def test_waiting_for_a_busy_server_is_bounded(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = ConnectionSettings(name="good", transport="http", tool_timeout=0.02)
        link = bench.attach("good", settings=settings)
        for _ in range(connections.MAX_INFLIGHT):
            await link.slots.acquire()
        result = await call(bench)
        assert "busy with other calls" in result.error


class TestMeter:
    """P75"""

    async def test_after_a_thousand_calls_only_side_effects_are_recorded(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert (toolbox.MAX_RECORDED, toolbox.MAX_EFFECTS) == (1000, 200)
        monkeypatch.setattr(toolbox, "MAX_RECORDED", 3)
        monkeypatch.setattr(toolbox, "MAX_EFFECTS", 2)
        servers["good"].tools.append(tool("write", read_only=False))
        bench.attach("good")
        for name in ["look"] * 5 + ["echo", "write", "echo", "look"]:
            await call(bench, name)
        bench.meter.close()
        recorded = [payload["tool"] for payload in bench.recorder.of("tool.call")]
        # P73: a tool without a hint counts as having side effects.
        assert recorded == ["look"] * 3 + ["echo", "write"]
        notes = [payload["message"] for payload in bench.recorder.of("log")]
        assert notes == [toolbox.LIMIT_NOTE, "4 further calls were made and not recorded"]
        assert len(servers["good"].calls) == 9

    def test_few_calls_need_no_note(self) -> None:
        recorder = ListRecorder()
        meter = CallMeter(recorder)  # type: ignore[arg-type]
        assert meter.admit(side_effects=False)
        meter.close()
        assert recorder.events == []
