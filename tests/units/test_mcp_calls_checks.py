"""What is checked around a call: arguments before it, output after it, the list in between."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from servers.limits import STRICT
from servers.mcp import listening
from servers.mcp.calls import IN_DOUBT
from servers.mcp.client import connect
from servers.mcp.types import CallTimedOut, ConnectionLost, InvalidArguments
from tests.fakes.mcp_helpers import Recorder, http_settings, reached
from tests.fakes.mcp_http import FakeHttp, Reply, Request
from tests.fakes.mcp_server import Behaviour, Message, object_schema

WAYS_WITH_NEWS = ("stdio", "events", "sse")


def strict_echo(**more: Any) -> Behaviour:
    schema = {**object_schema(text={"type": "string"}), "required": ["text"]}
    return Behaviour(tools=[{"name": "echo", "inputSchema": schema, **more}])


async def calls_of(connection: Any) -> dict[str, int]:
    counts: dict[str, int] = json.loads((await connection.call_tool("calls", {})).text)
    return counts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({}, "text"), ({"text": 5}, "text"), ({"text": None}, "text")],
    ids=["missing", "wrong type", "null"],
)
async def test_arguments_that_do_not_match_are_not_sent(arguments: Message, words: str) -> None:
    """Issue 3, section 3: the error names the path."""
    async with reached("stdio", strict_echo()) as connection:
        await connection.list_tools()
        with pytest.raises(InvalidArguments, match=words):
            await connection.call_tool("echo", arguments)
        assert (await connection.call_tool("echo", {"text": "hi"})).ok
        assert (await calls_of(connection))["echo"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "x" * 70_000},
        {"text": "a", "more": list(range(10_001))},
        {"text": "a", "deep": json.loads("[" * 33 + "]" * 33)},
    ],
    ids=["bytes", "nodes", "depth"],
)
@pytest.mark.parametrize("listed", [True, False])
async def test_arguments_over_the_limits_are_not_sent(arguments: Message, listed: bool) -> None:
    """A43: whether or not the tool is known."""
    async with reached("stdio", strict_echo(), limits=STRICT) as connection:
        if listed:
            await connection.list_tools()
        with pytest.raises(InvalidArguments):
            await connection.call_tool("echo", arguments)
        assert "echo" not in await calls_of(connection)


async def test_a_tool_that_the_server_does_not_list_is_left_to_the_server() -> None:
    async with reached("stdio", strict_echo()) as connection:
        await connection.list_tools()
        result = await connection.call_tool("nothing", {})
    assert (result.ok, result.error) == (False, "Unknown tool: nothing (-32602)")


@pytest.mark.parametrize("way", WAYS_WITH_NEWS)
async def test_announced_changes_are_listed_before_the_next_call(way: str) -> None:
    """Issue 3, section 1: `list_changed`."""
    observer = Recorder()
    async with reached(way, observer=observer) as connection:
        before = await connection.tools()
        assert (await connection.tools()) is before
        await connection.call_tool("change", {})
        after = await connection.tools()
        assert {tool.name for tool in after.tools} - {tool.name for tool in before.tools} == {"new"}
        assert observer.steps.count("Listing tools") == 2
        assert observer.notices == ["The server announced that its tools have changed."]


@pytest.mark.parametrize("way", WAYS_WITH_NEWS)
async def test_what_is_announced_before_the_first_list_is_no_news(way: str) -> None:
    """Many servers announce their tools at every start; the list holds them all the same."""
    observer = Recorder()
    async with reached(way, observer=observer) as connection:
        await connection.call_tool("change", {})
        assert "new" in {tool.name for tool in (await connection.tools()).tools}
        assert observer.notices == []


ANNOUNCING = {"tools": {"listChanged": True}}


@pytest.mark.parametrize("way", ["stdio modern", "events modern"])
async def test_a_modern_server_is_listened_to(way: str) -> None:
    """Spec 2026-07-28, subscriptions: announcements come only to those who listen."""
    observer = Recorder()
    behaviour = Behaviour(capabilities=ANNOUNCING)
    async with reached(way, behaviour, observer=observer) as connection:
        await connection.tools()
        for _ in range(100):  # the first may come before the server knows of the listener
            if not observer.notices:
                await connection.call_tool("change", {})
        assert "new" in {tool.name for tool in (await connection.tools()).tools}
    assert observer.notices == ["The server announced that its tools have changed."]


@pytest.mark.parametrize(
    ("capabilities", "version"),
    [
        ({"tools": {}}, "modern"),
        ({"tools": {"listChanged": "yes"}}, "modern"),
        (ANNOUNCING, "legacy"),
    ],
)
async def test_nobody_listens_where_nothing_is_announced(capabilities: Any, version: str) -> None:
    async with FakeHttp(Behaviour(era=version, capabilities=capabilities)) as server:
        async with connect(http_settings(server.url)) as connection:
            await connection.call_tool("echo", {})
        assert "subscriptions/listen" not in server.rpcs()


@pytest.mark.parametrize(
    ("reply", "openings"),
    [
        (Reply(200, {"content-type": "text/event-stream"}, b": hello\n\n"), 5),
        (Reply(500), 5),
        (
            Reply(
                200,
                {"content-type": "application/json"},
                b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"No"}}',
            ),
            1,
        ),
    ],
    ids=["ends at once", "fails", "is not known"],
)
async def test_listening_is_given_up_where_it_leads_nowhere(
    reply: Reply, openings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B05: the rate stays bounded, and the server is healthy."""
    waits: list[float] = []
    done = asyncio.Event()

    async def no_wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == openings:
            done.set()

    monkeypatch.setattr(listening, "pause", no_wait)

    def script(request: Request) -> Reply | None:
        if request.rpc != "subscriptions/listen":
            return None
        if openings == 1:
            done.set()
        return reply

    behaviour = Behaviour(era="modern", capabilities=ANNOUNCING)
    async with FakeHttp(behaviour, script=script) as server:
        async with connect(http_settings(server.url)) as connection:
            await asyncio.wait_for(done.wait(), 5)
            assert (await connection.call_tool("echo", {})).ok
        assert server.rpcs().count("subscriptions/listen") == openings
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0][: len(waits)]


async def test_a_call_sees_the_schema_that_was_announced_last() -> None:
    """The list is asked for again even if the caller only calls."""
    schema = {**object_schema(id={"type": "integer"}), "required": ["id"]}
    behaviour = Behaviour()
    async with (
        FakeHttp(behaviour, answer="sse") as server,
        connect(http_settings(server.url)) as connection,
    ):
        await connection.tools()
        behaviour.tools[0] = {"name": "echo", "inputSchema": schema}
        assert (await connection.call_tool("echo", {})).ok
        await connection.call_tool("change", {})
        with pytest.raises(InvalidArguments, match="id"):
            await connection.call_tool("echo", {})


async def test_announcing_again_and_again_is_told_once_until_the_list_is_read() -> None:
    observer = Recorder()
    async with reached("stdio", observer=observer) as connection:
        await connection.tools()
        news = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n' * 50
        await connection.call_tool("bytes", {"hex": news.hex()})
        await connection.call_tool("echo", {})
        assert len(observer.notices) == 1


async def test_a_list_that_fails_after_an_announcement_stops_no_call() -> None:
    """D17: the tools known so far stay in force, and the list is asked for again."""
    behaviour = strict_echo()
    async with (
        FakeHttp(behaviour, answer="sse") as server,
        connect(http_settings(server.url)) as connection,
    ):
        await connection.tools()
        await connection.call_tool("change", {})
        behaviour.list_error = -32603
        assert (await connection.call_tool("echo", {"text": "hi"})).ok
        with pytest.raises(InvalidArguments):
            await connection.call_tool("echo", {})
        behaviour.list_error = 0
        assert "new" in {tool.name for tool in (await connection.tools()).tools}


async def test_a_list_that_hangs_counts_into_the_time_of_the_call() -> None:
    """F06: nothing was sent, so nothing is in doubt."""
    hanging: list[bool] = []

    async def script(request: Request) -> Reply | None:
        if hanging and request.rpc == "tools/list":
            await asyncio.Event().wait()
        return None

    async with (
        FakeHttp(answer="sse", script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        await connection.tools()
        await connection.call_tool("change", {})
        hanging.append(True)
        with pytest.raises(CallTimedOut) as caught:
            await connection.call_tool("count", {}, timeout=0.2)
        assert IN_DOUBT not in caught.value.message
        assert "count" not in server.fake.calls


async def test_many_callers_list_once() -> None:
    async with (
        FakeHttp() as server,
        connect(http_settings(server.url)) as connection,
    ):
        lists = await asyncio.gather(*(connection.tools() for _ in range(20)))
        assert all(each is lists[0] for each in lists)
        assert server.rpcs().count("tools/list") == 1


OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "result", "warned"),
    [
        (OUTPUT, {"content": []}, True),
        (OUTPUT, {"content": [], "structuredContent": {"n": "much"}}, True),
        (OUTPUT, {"content": [], "structuredContent": {"n": 1}}, False),
        (OUTPUT, {"content": [], "structuredContent": [1]}, True),
        (None, {"content": [], "structuredContent": {"n": "much"}}, False),
    ],
    ids=["absent", "other", "matching", "no object", "no schema"],
)
async def test_output_that_does_not_match_is_delivered_with_a_warning(
    schema: Message | None, result: Message, warned: bool
) -> None:
    """D14."""
    tools = [{"name": "raw", "inputSchema": object_schema(), "outputSchema": schema}]
    async with reached("stdio", Behaviour(tools=tools)) as connection:
        await connection.tools()
        found = await connection.call_tool("raw", {"result": result})
    assert found.ok
    assert found.structured == result.get("structuredContent")
    assert bool(found.warnings) is warned


async def test_an_error_is_not_held_against_the_output_schema() -> None:
    """D13."""
    tools = [{"name": "fail", "inputSchema": object_schema(), "outputSchema": OUTPUT}]
    async with reached("stdio", Behaviour(tools=tools)) as connection:
        await connection.tools()
        found = await connection.call_tool("fail", {})
    assert (found.ok, found.error, found.warnings) == (False, "token expired", [])


async def test_warnings_of_the_settings_are_shown_with_the_list() -> None:
    """U27: such as a `token_ref` that was dropped."""
    async with reached("json", warnings=("token_ref @KEY is left out.",)) as connection:
        assert (await connection.list_tools()).warnings == ["token_ref @KEY is left out."]


def losing_once(reply: Reply, losses: list[str]) -> Any:
    """Answers the first call that bears a session with `reply`."""

    def script(request: Request) -> Reply | None:
        if request.rpc != "tools/call" or losses:
            return None
        losses.append(request.headers["mcp-session-id"])
        return reply

    return script


async def test_a_forgotten_session_is_renewed_on_the_record() -> None:
    """B01, U17."""
    observer = Recorder()
    losses: list[str] = []
    async with FakeHttp(script=losing_once(Reply(404), losses)) as server:
        settings = http_settings(server.url)
        async with connect(settings, observer=observer) as connection:
            assert (await connection.call_tool("count", {})).text == "1"
            assert server.requests[-1].headers["mcp-session-id"] != losses[0]
    assert observer.notices == ["The server had forgotten the session; it was renewed."]


async def test_a_forgotten_session_stays_so_where_that_is_wished() -> None:
    """U17: with `reinit_on_expired_session` off a 404 is an error, and the call did not happen."""
    losses: list[str] = []
    async with FakeHttp(script=losing_once(Reply(404), losses)) as server:
        settings = replace(http_settings(server.url), reinit_on_expired_session=False)
        async with connect(settings) as connection:
            with pytest.raises(ConnectionLost, match="forgotten the session") as caught:
                await connection.call_tool("count", {})
        assert IN_DOUBT not in str(caught.value)
        assert "reinit_on_expired_session" in caught.value.hint
        assert server.rpcs().count("initialize") == 1
        assert "count" not in server.fake.calls
