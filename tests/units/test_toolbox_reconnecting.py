"""Servers that go away in mid-run, or come late: connected again with their next use (F10, F15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jobs import connections
from jobs.attempts import AT_ONCE, PAUSE
from jobs.permission import DISABLED, Permission
from jobs.toolbox import ToolNotFound, ToolRefused
from servers.mcp.types import (
    CallResult,
    ConnectionLost,
    ConnectionSettings,
    LoginRequired,
    ServerUnavailable,
    ToolList,
)
from servers.policy import Policy
from tests.fakes.lines import somebody_waits
from tests.fakes.runs import FakeServer, FakeServers, tool, unavailable
from tests.fakes.toolboxes import CAP, Bench, OnABench, call

DIED = "The server ended with exit code 7: out of memory"


def dies(server: FakeServer, *, answers: bool = False) -> Callable[..., CallResult]:
    """What a call does to a server that ends with it, after its answer or in its place."""

    def answer(_name: str, _arguments: dict[str, Any]) -> CallResult:
        server.end = DIED
        if answers:
            return CallResult(ok=True, text="done")
        raise ConnectionLost(f"{DIED}. The call may have happened.")

    return answer


async def lost(bench: Bench, servers: FakeServers) -> None:
    """A server that was connected, and is not any more."""
    await bench.attach("good").ready()
    servers["good"].end = DIED


def kinds(bench: Bench) -> list[str]:
    return [event.kind for event in bench.recorder.events]


class TestAConnectionThatEnded(OnABench):
    async def test_the_call_under_way_fails_once_and_the_next_one_is_answered(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """F10: nothing is sent twice."""
        bench.attach("good")
        servers["good"].answer = dies(servers["good"])
        failed = await call(bench)
        assert not failed.ok
        assert failed.error.endswith("The call may have happened.")
        assert len(servers["good"].calls) == servers["good"].connections == 1
        servers["good"].answer = None
        assert (await call(bench)).ok
        assert (len(servers["good"].calls), servers["good"].connections) == (2, 2)

    async def test_the_timeline_says_that_it_is_connected_again_and_after_what(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        await lost(bench, servers)
        await call(bench)
        first, second = bench.recorder.of("server.connected")
        assert second == {**first, "after": DIED}
        assert kinds(bench)[1:] == ["server.connected", "tool.call", "tool.result"]
        assert bench.recorder.events[1].ms is not None

    @pytest.mark.parametrize("server", [None, "good"])
    async def test_listing_is_a_use_as_well(
        self, bench: Bench, servers: FakeServers, server: str | None
    ) -> None:
        await lost(bench, servers)
        assert len(await bench.box.list_tools(server)) == 2
        assert servers["good"].connections == 2

    async def test_nothing_is_connected_that_nobody_uses(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        await lost(bench, servers)
        bench.attach("other", settings=None, problem="There is no secret named KEY.")
        with pytest.raises(ServerUnavailable):
            await call(bench, server="other")
        assert servers["good"].connections == 1

    async def test_all_who_use_it_wait_for_one_attempt(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        await lost(bench, servers)
        servers["good"].gate = asyncio.Event()
        waiting = [asyncio.create_task(call(bench)) for _ in range(5)]
        waiting.append(asyncio.create_task(bench.box.list_tools()))  # type: ignore[arg-type]
        while not servers["good"].closed:  # noqa: ASYNC110  the last one is left first
            await asyncio.sleep(0)
        servers["good"].gate.set()
        await asyncio.gather(*waiting)
        assert (servers["good"].connections, len(servers["good"].calls)) == (2, 5)

    async def test_one_task_opens_and_closes_all_of_them(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """F15."""
        await lost(bench, servers)
        await call(bench)
        servers["good"].end = DIED
        await call(bench)
        await bench.links["good"].close()
        assert len(servers["good"].tasks) == 6  # three were opened, three closed
        assert len(set(servers["good"].tasks)) == 1
        assert servers["good"].closed

    async def test_what_worked_is_tried_first(self, bench: Bench, servers: FakeServers) -> None:
        await lost(bench, servers)
        assert servers.connected_with["good"].remembered == {}
        await call(bench)
        assert servers.connected_with["good"].remembered == servers["good"].remembered

    async def test_tools_that_changed_meanwhile_are_recorded_and_judged_anew(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """A29."""
        bench.now = Permission("agent", policy=Policy("guarded"))
        await lost(bench, servers)
        servers["good"].change(tool("echo", destructive=True), tool("fresh"))
        with pytest.raises(ToolRefused):
            await call(bench)
        assert bench.recorder.of("server.tools_changed") == [
            {"server": "good", "added": ["fresh"], "removed": ["look"], "changed": ["echo"]}
        ]
        assert servers["good"].calls == []

    async def test_a_server_that_was_disabled_meanwhile_is_not_contacted(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """P59, A13: neither for a call nor for a list."""
        await lost(bench, servers)
        bench.now = Permission("creator", problem=DISABLED)
        with pytest.raises(ToolRefused):
            await call(bench)
        assert bench.recorder.of("tool.refused")[0]["reason"] == DISABLED
        assert await bench.box.list_tools("good") == []
        assert await bench.box.list_tools() == []
        assert servers["good"].connections == 1

    async def test_one_that_ends_while_a_call_waits_for_a_slot_costs_no_call(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """Nothing was sent, so that it may be sent now; but the tool is looked up again."""
        link = bench.attach("good")
        await link.ready()
        await bench.fill(link)
        waiting = asyncio.create_task(call(bench, "look"))
        gone = asyncio.create_task(call(bench, "echo"))
        await somebody_waits(bench.line)
        servers["good"].end = DIED
        servers["good"].change(tool("look"))
        bench.store.tickets = bench.store.tickets[link.max_inflight :]
        async with asyncio.timeout(CAP):
            assert (await waiting).ok
            with pytest.raises(ToolNotFound):
                await gone
        assert servers["good"].calls == [("look", {"message": "hi"})]
        assert {end["tool"]: end["ok"] for end in bench.recorder.of("tool.result")} == {
            "look": True,
            "echo": False,
        }
        async with asyncio.timeout(CAP):
            while bench.store.tickets:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


class TestOneThatEndsAgainAndAgain(OnABench):
    async def test_it_is_left_alone_after_some_times_and_says_why(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.attach("good")
        servers["good"].answer = dies(servers["good"])
        for _ in range(1 + AT_ONCE):
            assert not (await call(bench)).ok
        with pytest.raises(ServerUnavailable) as caught:
            await call(bench)
        assert caught.value.message == (
            f"MCP server good is unavailable: {DIED}. 3 more attempts were in vain; "
            "the next one comes in 30 seconds at the earliest."
        )
        assert len(servers["good"].calls) == servers["good"].connections == 1 + AT_ONCE
        bench.time += PAUSE
        assert not (await call(bench)).ok
        with pytest.raises(ServerUnavailable, match="4 more attempts"):
            await call(bench)

    async def test_one_that_answers_before_it_ends_is_used_for_as_long_as_it_does(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.attach("good")
        servers["good"].answer = dies(servers["good"], answers=True)
        for _ in range(3 * AT_ONCE):
            assert (await call(bench)).ok

    async def test_the_timeline_tells_of_it_up_to_a_number(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "MAX_NOTICES", 2)
        bench.attach("good")
        servers["good"].answer = dies(servers["good"], answers=True)
        for _ in range(6):
            await call(bench)
        assert len(bench.recorder.of("server.connected")) == 1 + 2
        assert bench.recorder.of("server.notice") == [
            {"server": "good", "message": connections.NOTICES_NOTE}
        ]


class TestOneThatCannotBeReached(OnABench):
    async def test_a_failed_attempt_is_an_event_and_the_last_reason_is_given_at_once(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        await lost(bench, servers)
        servers["good"].error = unavailable("Connection refused")
        for _ in range(3):
            with pytest.raises(ServerUnavailable, match=r"refused\. One more attempt was in vain"):
                await call(bench)
        assert await bench.box.list_tools() == []
        assert [event["reason"] for event in bench.recorder.of("server.unavailable")] == [
            "Connection refused"
        ]
        bench.time += PAUSE
        servers["good"].error = None
        assert (await call(bench)).ok
        assert bench.recorder.of("server.connected")[-1]["after"] == "Connection refused"

    async def test_a_server_that_was_restarting_when_the_run_began_is_found_later(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        servers["good"].error = unavailable("Connection refused")
        bench.attach("good")
        for _ in range(2):
            with pytest.raises(ServerUnavailable, match=r"refused\. The next attempt comes in 30"):
                await call(bench)
        servers["good"].error = None
        bench.time += PAUSE
        assert (await call(bench)).ok
        assert bench.recorder.of("server.tools_changed") == []  # none were known before

    @pytest.mark.parametrize("attempts", [1, 2, 5])
    async def test_there_is_one_attempt_in_each_pause_however_often_it_is_used(
        self, bench: Bench, servers: FakeServers, attempts: int
    ) -> None:
        servers["good"].error = unavailable()
        bench.attach("good")
        for _ in range(attempts):
            for _ in range(4):
                with pytest.raises(ServerUnavailable):
                    await call(bench)
            bench.time += PAUSE
        assert len(bench.recorder.of("server.unavailable")) == attempts

    @pytest.mark.parametrize(
        ("values", "error"),
        [({}, LoginRequired("401")), ({"settings": None, "problem": "No secret KEY."}, None)],
        ids=["a login", "a secret"],
    )
    async def test_what_the_settings_lack_is_not_tried_again(
        self, bench: Bench, servers: FakeServers, values: dict[str, Any], error: Exception | None
    ) -> None:
        servers["good"].error = error
        bench.attach("good", **values)
        for _ in range(2):
            with pytest.raises(ServerUnavailable, match=r"unavailable: (401|No secret KEY\.)$"):
                await call(bench)
            bench.time += 1e6
        assert len(bench.recorder.of("server.unavailable")) == 1

    async def test_several_are_tried_at_the_same_time_by_a_list_of_all(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        gates = [asyncio.Event(), asyncio.Event()]
        for name, gate in zip(("one", "two"), gates, strict=True):
            servers[name] = FakeServer(error=unavailable())
            with pytest.raises(ServerUnavailable):
                await bench.attach(name).ready()
            servers[name].error, servers[name].gate = None, gate
        bench.time += PAUSE
        listing = asyncio.create_task(bench.box.list_tools())
        gates[1].set()
        async with asyncio.timeout(CAP):
            while bench.recorder.of("server.connected") == []:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert not listing.done()
            gates[0].set()
            assert {found.server for found in await listing} == {"one", "two"}


class TestWaiting(OnABench):
    async def test_a_call_waits_no_longer_than_it_may_take(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        """The attempt goes on, for the next one."""
        settings = ConnectionSettings(
            name="good", transport="http", url="http://127.0.0.1/mcp", tool_timeout=0.01
        )
        await bench.attach("good", settings=settings).ready()
        servers["good"].end = DIED
        servers["good"].gate = asyncio.Event()
        with pytest.raises(ServerUnavailable, match="connecting again takes longer than 0 seconds"):
            await call(bench)
        servers["good"].gate.set()
        async with asyncio.timeout(CAP):
            await bench.links["good"].ready()
        assert (await call(bench)).ok
        assert servers["good"].connections == 2

    async def test_an_attempt_has_the_limit_of_the_first(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P70."""
        await lost(bench, servers)
        monkeypatch.setattr(connections, "CONNECT_LIMIT", 0.01)
        servers["good"].gate = asyncio.Event()
        with pytest.raises(ServerUnavailable, match="no answer within 0 seconds"):
            await call(bench)

    async def test_the_end_of_the_run_ends_an_attempt(
        self, bench: Bench, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "CLOSE_LIMIT", 0.01)
        await lost(bench, servers)
        servers["good"].gate = asyncio.Event()
        waiting = asyncio.create_task(call(bench))
        while not servers["good"].closed:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await bench.links["good"].close()
        with pytest.raises(ServerUnavailable, match=r"the run was ended$"):
            await waiting
        assert bench.recorder.of("server.unavailable") == []

    async def test_a_link_that_is_closed_at_once_keeps_nobody_waiting(self, bench: Bench) -> None:
        link = bench.attach("good")
        await link.close()
        with pytest.raises(ServerUnavailable, match=r"the run was ended$"):
            await call(bench)


class TestWhatTheServersPageIsTold(OnABench):
    async def test_it_is_the_first_attempt_only(self, bench: Bench, servers: FakeServers) -> None:
        servers["bad"] = FakeServer(error=unavailable())
        for name in ("good", "bad"):
            bench.attach(name)
        await call(bench)
        servers["bad"].error = None
        servers["good"].end = DIED
        bench.time += PAUSE
        assert len(await bench.box.list_tools()) == 4
        assert len(bench.reported) == 2
        assert {type(outcome) for outcome in bench.reported} == {ToolList, type(unavailable())}
