"""The way to a tool: lists, calls, records and limits (P61, P66, P75)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from jobs import toolbox
from jobs.toolbox import CallMeter, Toolbox, ToolNotFound
from servers.mcp.types import (
    CallResult,
    CallTimedOut,
    InvalidArguments,
    ServerUnavailable,
)
from tests.fakes.runs import FakeServer, FakeServers, ListRecorder, tool, unavailable
from tests.fakes.toolboxes import CAP, Bench, OnABench, call


class TestListing(OnABench):
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
        bench.attach("good", allowed=("look", "gone"))
        assert [item.tool.name for item in await bench.box.list_tools("good")] == ["look"]

    async def test_one_dead_server_does_not_hide_the_others(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """F13, A45: a server that fails contributes no tools."""
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

    async def test_a_skipped_server_says_why(self, bench: Bench) -> None:
        bench.skipped["odd"] = "disabled"
        with pytest.raises(ToolNotFound, match=r"^server 'odd' was skipped: disabled$"):
            await bench.box.list_tools("odd")
        with pytest.raises(ToolNotFound, match="was skipped"):
            await bench.box.call("odd", "echo", {})


class TestCalling(OnABench):
    async def test_both_ends_of_a_call_are_recorded(self, bench: Bench) -> None:
        bench.attach("good")
        assert (await call(bench)).ok
        first, second = bench.recorder.events[-2:]
        assert (first.kind, second.kind) == ("tool.call", "tool.result")
        assert first.payload == {"server": "good", "tool": "echo", "arguments": {"message": "hi"}}
        assert second.payload == {"server": "good", "tool": "echo", "ok": True, "text": "hi"}
        assert first.span == second.span != ""
        assert second.ms is not None

    async def test_a_failing_call_is_a_result(self, bench: Bench, servers: FakeServers) -> None:
        def fail(_name: str, _arguments: dict[str, Any]) -> CallResult:
            raise CallTimedOut("no answer within 120 seconds", hint="Raise tool_timeout_secs.")

        servers["good"].answer = fail
        bench.attach("good")
        result = await call(bench)
        assert not result.ok
        assert result.error == "no answer within 120 seconds. Raise tool_timeout_secs."
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

    async def test_an_abandoned_call_still_gets_its_end(self, bench: Bench) -> None:
        link = bench.attach("good")
        await link.ready()
        await bench.fill(link)
        waiting = asyncio.create_task(call(bench))
        async with asyncio.timeout(CAP):
            # What waits is shown after a moment, not only once it is over.
            while not bench.recorder.of("tool.call"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert bench.recorder.of("tool.result")[0]["error"] == toolbox.NEVER_ANSWERED

    async def test_what_a_result_holds_beside_its_text_is_kept(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """D14, D15: parts, warnings and the number of attempts."""
        parts = [{"type": "hologram", "x": 1}]
        servers["good"].answer = lambda _name, _arguments: CallResult(
            ok=True, text="[hologram]", content=parts, warnings=["odd"], attempts=2
        )
        bench.attach("good")
        await call(bench)
        payload = bench.recorder.of("tool.result")[0]
        assert (payload["content"], payload["warnings"], payload["attempts"]) == (parts, ["odd"], 2)

    async def test_structured_content_of_null_is_absent_and_of_nothing_is_kept(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.attach("good")
        found: list[Any] = [None, {}, []]
        servers["good"].answer = lambda _name, _arguments: CallResult(
            ok=True, text="", structured=found[len(servers["good"].calls) - 1]
        )
        for _ in found:
            await call(bench)
        kept = [payload.get("structured", "absent") for payload in bench.recorder.of("tool.result")]
        assert kept == ["absent", {}, []]

    async def test_arguments_that_do_not_fit_are_a_result(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        def refuse(_name: str, _arguments: dict[str, Any]) -> CallResult:
            raise InvalidArguments("/message must be a string.", "Nothing was sent.")

        servers["good"].answer = refuse
        bench.attach("good")
        assert (await call(bench)).error == "/message must be a string. Nothing was sent."

    async def test_the_end_of_the_run_bounds_every_call(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """Progress renews a call's limit, but never past the run's (U39-U48, section 0)."""
        bench.attach("good")
        box = Toolbox(
            bench.links,
            bench.recorder,  # type: ignore[arg-type]
            bench.permit,
            bench.line,
            bench.meter,
            deadline=time.monotonic() + 100,
        )
        await box.call("good", "echo", {})
        [deadline] = servers["good"].deadlines
        assert deadline is not None
        assert deadline <= time.monotonic() + 100


class TestMeter(OnABench):
    """P75"""

    async def test_after_a_thousand_calls_only_side_effects_are_recorded(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert (toolbox.MAX_RECORDED, toolbox.MAX_EFFECTS) == (1000, 200)
        monkeypatch.setattr(toolbox, "MAX_RECORDED", 3)
        monkeypatch.setattr(toolbox, "MAX_EFFECTS", 2)
        servers["good"].listed.append(tool("write", read_only=False))
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
