"""What a run may use and how many calls at once: policies, trust and the calls in flight."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from jobs import toolbox
from jobs.permission import DISABLED, Permission
from jobs.toolbox import Toolbox, ToolNotFound, ToolRefused
from servers.limits import MAX_INFLIGHT_CALLS, TimeLimit
from servers.mcp.types import (
    CallResult,
    CallTimedOut,
    ConnectionSettings,
    ServerError,
)
from servers.policy import Policy
from tests.fakes.lines import somebody_waits
from tests.fakes.runs import FakeServers, tool
from tests.fakes.toolboxes import CAP, EVERYTHING, Bench, OnABench, call


class TestWhatARunMayUse(OnABench):
    """Enabled, attached, the job's list, the server's names, trust: at the list, at the look-up
    and right before the call is sent (A12-A15, A25, A29-A36, P59-P69)."""

    @pytest.mark.parametrize("name", ["echo", "nope"])
    async def test_denied_and_missing_tools_answer_alike(
        self, bench: Bench, servers: FakeServers, name: str
    ) -> None:
        bench.attach("good", allowed=("look",))
        with pytest.raises(ToolNotFound, match=f"^tool '{name}' of server 'good' not found$"):
            await call(bench, name)
        assert servers["good"].calls == []
        # A34: the timeline tells them apart; what does not exist was not refused.
        refused = bench.recorder.of("tool.refused")
        assert [payload["tool"] for payload in refused] == ["echo"] * (name == "echo")

    @pytest.mark.parametrize(
        ("permission", "reason"),
        [
            (Permission("creator", problem=DISABLED), DISABLED),
            (Permission("creator", ("look",)), "it is not among the tools that the job may use"),
            (
                Permission("creator", policy=Policy(blocked_tools=("echo",))),
                "the server's policy blocks it",
            ),
            (
                Permission("creator", policy=Policy(allowed_tools=("look",))),
                "it is not among the server's allowed tools",
            ),
            (
                Permission("agent", policy=Policy("guarded", tool_levels={"echo": ("creator",)})),
                "the server's policy keeps it for runs started by creator",
            ),
            (
                Permission("public", policy=Policy("guarded")),
                "the server's policy keeps it for runs started by creator",
            ),
            (
                Permission("agent", policy=Policy("guarded", allowed_trust_levels=("public",))),
                "the server's policy keeps it for runs started by public",
            ),
        ],
    )
    async def test_each_rule_hides_refuses_and_stops_a_call(
        self, bench: Bench, servers: FakeServers, permission: Permission, reason: str
    ) -> None:
        """A12-A15, A25, A29, A34: the three places are one rule."""
        servers["good"].listed = [tool("echo", destructive=True), tool("look", read_only=True)]
        link = bench.attach("good")
        await link.ready()
        bench.now = permission  # changed since the run began
        with pytest.raises(ToolRefused, match=r"^tool 'echo' of server 'good' not found$"):
            await call(bench)  # looked up with what was known; stopped right before the send
        assert "echo" not in [item.tool.name for item in await bench.box.list_tools("good")]
        with pytest.raises(ToolRefused):
            await call(bench)  # refused by its name
        refusal = {"server": "good", "tool": "echo", "reason": reason}
        assert bench.recorder.of("tool.refused") == [refusal, refusal]
        assert servers["good"].calls == []
        [stopped] = bench.recorder.of("tool.result")
        assert (stopped["ok"], stopped["error"]) == (
            False,
            "tool 'echo' of server 'good' not found",
        )

    async def test_a_refused_call_gives_its_slot_back(self, bench: Bench) -> None:
        link = bench.attach("good")
        await link.ready()
        bench.now = Permission("creator", ("look",))
        for _ in range(link.max_inflight + 1):
            link.permission = EVERYTHING
            with pytest.raises(ToolRefused):
                await call(bench)
        assert (await call(bench, "look")).ok

    async def test_what_is_asked_right_before_the_call_is_the_database(self, bench: Bench) -> None:
        link = bench.attach("good")
        await call(bench)
        assert bench.asked == [link.server.id]

    async def test_what_was_allowed_meanwhile_counts_too(self, bench: Bench) -> None:
        bench.attach("good", allowed=("look",))
        with pytest.raises(ToolRefused):
            await call(bench)
        bench.now = EVERYTHING
        assert (await call(bench)).ok

    @pytest.mark.parametrize(
        ("trust", "seen"),
        [
            ("creator", ["plain", "looks", "wipes", "roams"]),
            ("agent", ["plain", "looks"]),
            ("public", ["plain", "looks"]),
        ],
    )
    async def test_a_guarded_server_keeps_risky_tools_for_people(
        self, bench: Bench, servers: FakeServers, trust: str, seen: list[str]
    ) -> None:
        """A29, A31: destructive or open-world; an absent hint restricts nothing."""
        servers["good"].listed = [
            tool("plain"),
            tool("looks", read_only=True),
            tool("wipes", destructive=True),
            tool("roams", open_world=True),
        ]
        bench.now = Permission(trust, policy=Policy("guarded"))
        bench.attach("good")
        found = [item.tool.name for item in await bench.box.list_tools("good")]
        assert found == seen
        for name in ("wipes", "roams"):
            if trust == "creator":
                assert (await call(bench, name)).ok
                continue
            with pytest.raises(ToolRefused):
                await call(bench, name)

    @pytest.mark.parametrize(
        ("policy", "seen"),
        [
            (Policy("guarded", allowed_trust_levels=("public",)), ["wipes", "plain"]),
            (Policy("guarded", tool_levels={"wipes": ("public",)}), ["wipes", "plain"]),
            (
                Policy("guarded", allowed_trust_levels=("agent",), tool_levels={"plain": ()}),
                [],
            ),
            (Policy("open", tool_levels={"plain": ("creator",)}), ["wipes", "plain"]),
        ],
    )
    async def test_levels_widen_and_narrow(
        self, bench: Bench, servers: FakeServers, policy: Policy, seen: list[str]
    ) -> None:
        """A14, A15, A30, A33; an open server's trust settings rest."""
        servers["good"].listed = [tool("wipes", destructive=True), tool("plain")]
        bench.now = Permission("public", policy=policy)
        bench.attach("good")
        assert [item.tool.name for item in await bench.box.list_tools("good")] == seen

    async def test_refusals_are_counted_with_the_calls(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P75: a script that asks for ever does not fill the timeline."""
        monkeypatch.setattr(toolbox, "MAX_RECORDED", 2)
        bench.attach("good", allowed=("look",))
        for _ in range(4):
            with pytest.raises(ToolRefused):
                await call(bench)
        assert len(bench.recorder.of("tool.refused")) == 2


class TestInFlight(OnABench):
    """U5, A38, A50"""

    async def test_no_more_calls_are_out_than_the_server_takes(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        out, most = 0, 0

        async def slow(_name: str, _arguments: dict[str, Any]) -> CallResult:
            nonlocal out, most
            out, most = out + 1, max(most, out + 1)
            await asyncio.sleep(0.005)  # the others would come in now
            out -= 1
            return CallResult(ok=True, text="")

        servers["good"].answer = slow
        settings = ConnectionSettings(name="good", transport="http", max_inflight=3)
        bench.attach("good", settings=settings)
        results = await asyncio.gather(*(call(bench) for _ in range(9)))
        assert all(result.ok for result in results)
        assert most == 3

    def test_four_are_the_default(self) -> None:
        assert ConnectionSettings(name="good", transport="http").max_inflight == 4
        assert MAX_INFLIGHT_CALLS == 4

    async def test_waiting_for_a_busy_server_is_bounded_by_the_calls_limit(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        settings = ConnectionSettings(name="good", transport="http", tool_timeout=0.02)
        link = bench.attach("good", settings=settings)
        await bench.fill(link)
        result = await call(bench)
        assert result.error == ("good was busy with other calls for 0 seconds; nothing was sent.")
        assert servers["good"].calls == []

    async def test_without_a_limit_the_runs_end_bounds_the_wait(self, bench: Bench) -> None:
        """`tool_timeout_secs` 0"""
        settings = ConnectionSettings(name="good", transport="http", tool_timeout=0)
        link = bench.attach("good", settings=settings)
        await bench.fill(link)
        box = Toolbox(
            bench.links,
            bench.recorder,  # type: ignore[arg-type]
            bench.permit,
            bench.line,
            bench.meter,
            deadline=time.monotonic() + 0.02,
        )
        async with asyncio.timeout(CAP):
            result = await box.call("good", "echo", {})
        assert result.error == "good was busy with other calls; nothing was sent."
        assert bench.box._patience(TimeLimit(None, "")) is None

    @pytest.mark.parametrize("error", [CallTimedOut("it may have happened"), None])
    async def test_a_slot_is_taken_until_the_call_has_really_ended(
        self, bench: Bench, servers: FakeServers, error: ServerError | None
    ) -> None:
        """A50: after a time-out the server may still be at work."""

        def answer(_name: str, _arguments: dict[str, Any]) -> CallResult:
            if error is not None:
                raise error
            return CallResult(ok=True, text="")

        servers["good"].answer, servers["good"].settle = answer, False
        settings = ConnectionSettings(name="good", transport="http", max_inflight=1)
        bench.attach("good", settings=settings)
        await call(bench)
        waiting = asyncio.create_task(call(bench))
        async with asyncio.timeout(CAP):
            await somebody_waits(bench.line)
            assert len(servers["good"].calls) == 1
            servers["good"].unsettled.pop()()
            await waiting
        assert len(servers["good"].calls) == 2
