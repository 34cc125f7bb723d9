"""MCP 2026-07-28: subscriptions to changes of the tools, and how long a list is fresh."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from servers.mcp import freshness, listening
from tests.fakes.mcp_http import EVENTS, Reply, Request, event
from tests.fakes.mcp_server import Behaviour, Message
from tests.spec.common import tool
from tests.spec.support import (
    HttpServer,
    Script,
    Server,
    Spec,
    StdioServer,
    Watcher,
    error,
    never,
    on,
    wire,
)

REVISION = "2026-07-28"
LISTEN = "subscriptions/listen"
CHANGED = "notifications/tools/list_changed"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def announcing() -> Behaviour:
    return Behaviour(capabilities={"tools": {"listChanged": True}})


def notification(method: str, subscription: Any, **params: Any) -> Message:
    meta = {SUBSCRIPTION: subscription}
    return {"jsonrpc": "2.0", "method": method, "params": {"_meta": meta, **params}}


def acknowledged(subscription: Any, **agreed: bool) -> Message:
    method = "notifications/subscriptions/acknowledged"
    return notification(method, subscription, notifications=agreed)


async def listening_to(server: Server, count: int = 1) -> Message:
    """The last of so many requests for announcements."""
    await server.until(lambda: len(server.sent(LISTEN)) == count)
    return server.sent(LISTEN)[-1]


class Stream:
    """What a listener hears: over HTTP on a stream of its own."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Message] = asyncio.Queue()

    def script(self, way: str) -> Script:
        answer = never() if way == "stdio" else Reply(200, {"content-type": EVENTS}, self._events())
        return on(LISTEN, answer)

    async def announce(self, server: Server, message: Message) -> None:
        if isinstance(server, StdioServer):
            await server.say(message)
        else:
            await self._queue.put(message)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        while True:
            yield event(await self._queue.get())


class TestListening(Spec):
    """Patterns, Subscriptions."""

    revision = REVISION

    async def test_only_changes_of_tools_are_asked_for(self, way: str) -> None:
        """Opening a Stream; Notification Filter: an omitted field is no subscription."""
        async with wire(way, REVISION, behaviour=announcing()) as (server, _):
            request = await listening_to(server)
        assert set(request["params"]) == {"notifications", "_meta"}
        assert request["params"]["notifications"] == {"toolsListChanged": True}
        if isinstance(server, HttpServer):
            headers = server.bearing(LISTEN).headers
            assert headers["mcp-method"] == LISTEN
            assert headers["mcp-protocol-version"] == REVISION
            assert "text/event-stream" in headers["accept"]

    async def test_where_nothing_is_announced_nobody_listens(self, way: str) -> None:
        """Tools, Capabilities: `listChanged` says whether notifications will come."""
        async with wire(way, REVISION) as (server, connection):
            await connection.call_tool("echo", {})
        assert server.sent(LISTEN) == []

    async def test_an_announcement_has_the_tools_listed_again(self, stream_way: str) -> None:
        """Receiving Notifications; Caching: it invalidates the list at once."""
        observer, stream = Watcher(), Stream()
        options: dict[str, Any] = {"behaviour": announcing(), "observer": observer}
        options["script"] = stream.script(stream_way)
        async with wire(stream_way, REVISION, **options) as (server, connection):
            await connection.tools()
            request = await listening_to(server)
            await stream.announce(server, acknowledged(request["id"], toolsListChanged=True))
            await stream.announce(server, notification(CHANGED, request["id"]))
            await observer.until_noticed()
            await connection.tools()
            await connection.tools()
        assert len(server.sent("tools/list")) == 2

    async def test_a_server_may_agree_to_less(self) -> None:
        """Acknowledgment: unsupported types are handled gracefully."""
        script = on(LISTEN, never())
        async with wire("stdio", REVISION, behaviour=announcing(), script=script) as (
            server,
            connection,
        ):
            request = await listening_to(server)
            await server.say(acknowledged(request["id"]))
            assert (await connection.call_tool("echo", {})).ok
        assert len(server.sent(LISTEN)) == 1

    @pytest.mark.parametrize("code", [-32601, -32602, -32603])
    async def test_a_server_that_refuses_is_healthy(self, way: str, code: int) -> None:
        """Nothing depends on the stream."""
        script = on(LISTEN, error(code))
        async with wire(way, REVISION, behaviour=announcing(), script=script) as (
            server,
            connection,
        ):
            await listening_to(server)
            assert (await connection.list_tools()).tools
            assert (await connection.call_tool("echo", {})).ok
        assert len(server.sent(LISTEN)) == 1


class TestEndsOfListening(Spec):
    """Patterns, Subscriptions, Cancellation."""

    revision = REVISION

    async def test_over_stdio_the_client_ends_it_by_name(self) -> None:
        """The client sends `notifications/cancelled` with the id of its request."""
        async with wire("stdio", REVISION, behaviour=announcing()) as (server, _):
            request = await listening_to(server)
        assert server.params("notifications/cancelled")["requestId"] == request["id"]

    async def test_over_http_the_client_closes_its_stream(self) -> None:
        """The client closes the SSE stream, and sends nothing."""
        gone = asyncio.Event()

        async def stream() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield b": keep-alive\n\n"
                    await asyncio.sleep(0.01)
            finally:
                gone.set()

        script = on(LISTEN, Reply(200, {"content-type": EVENTS}, stream()))
        async with wire("json", REVISION, behaviour=announcing(), script=script) as (server, _):
            await listening_to(server)
        async with asyncio.timeout(20):
            await gone.wait()
        assert server.sent("notifications/cancelled") == []

    @pytest.mark.parametrize(
        "end",
        [
            lambda request: {
                "jsonrpc": "2.0",
                "id": request["id"],
                "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: request["id"]}},
            },
            lambda request: {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": request["id"]},
            },
        ],
        ids=["by its result", "by a notification"],
    )
    async def test_a_stream_that_the_server_ends_is_opened_again(
        self, end: Callable[[Message], Message], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server tears it down; what it announced meanwhile is made up for by a new list."""
        monkeypatch.setattr(listening, "pause", at_once)
        observer = Watcher()
        options: dict[str, Any] = {"behaviour": announcing(), "observer": observer}
        async with wire("stdio", REVISION, **options) as (server, connection):
            await connection.tools()
            first = await listening_to(server)
            await server.say(end(first))
            second = await listening_to(server, 2)
            await connection.tools()
        assert second["id"] != first["id"]
        assert len(server.sent("tools/list")) == 2
        assert observer.notices == []

    @pytest.mark.parametrize("stood", [True, False])
    async def test_a_stream_that_stood_is_opened_again_for_ever(
        self, stood: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The transport closes, as proxies see to; one that never stands is given up (B05)."""
        monkeypatch.setattr(listening, "STEADY_SECONDS", 0 if stood else 60)
        waits: list[float] = []
        enough = asyncio.Event()

        async def note(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) >= (12 if stood else 5):
                enough.set()

        monkeypatch.setattr(listening, "pause", note)
        script = on(LISTEN, {"result": {"resultType": "complete"}})
        async with wire("stdio", REVISION, behaviour=announcing(), script=script) as (server, _):
            async with asyncio.timeout(20):
                await enough.wait()
        assert waits[:5] == ([1.0] * 5 if stood else [1.0, 2.0, 4.0, 8.0, 16.0])
        assert (len(server.sent(LISTEN)) > 5) is stood

    async def test_an_end_of_another_request_is_ignored(self) -> None:
        """Cancellation: servers end nothing but subscriptions so."""
        async with wire("stdio", REVISION, behaviour=announcing()) as (server, connection):
            await listening_to(server)
            call = asyncio.create_task(connection.call_tool("late", {}))
            await server.until(lambda: server.sent("tools/call"))
            [sent] = server.sent("tools/call")
            params = {"requestId": sent["id"]}
            cancelled = "notifications/cancelled"
            await server.say({"jsonrpc": "2.0", "method": cancelled, "params": params})
            await connection.call_tool("release", {})
            assert (await call).ok

    async def test_a_stream_that_breaks_over_http_is_opened_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The transport closes: by a new request, not by `Last-Event-ID`."""
        monkeypatch.setattr(listening, "pause", at_once)
        broken: list[Request] = []

        def requests(request: Request) -> Reply | None:
            if request.rpc != LISTEN or broken:
                return None
            broken.append(request)
            first = json.dumps(acknowledged(request.message["id"], toolsListChanged=True))
            return Reply(200, {"content-type": EVENTS}, f"id: 1\ndata: {first}\n\n".encode())

        options: dict[str, Any] = {"behaviour": announcing(), "requests": requests}
        async with wire("events", REVISION, **options) as (server, _):
            await listening_to(server, 2)
        assert {heard.method for heard in server.heard} == {"POST"}
        assert all("last-event-id" not in heard.headers for heard in server.heard)


async def at_once(seconds: float) -> None:
    """In place of a pause."""


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(freshness, "now", lambda: self.seconds)


def listed(*hints: Any) -> Script:
    """Lists of one page each with these hints: None is none, "fails" an error."""
    left = list(hints)

    def script(message: Message) -> Message | None:
        if message["method"] != "tools/list":
            return None
        hint = left.pop(0)
        if hint == "fails":
            return error(-32603, "not now")
        page: Message = {"resultType": "complete", "tools": [tool("echo")]}
        return {"result": page if hint is None else {**page, "ttlMs": hint}}

    return script


class TestCaching(Spec):
    """Server Features, Utilities, Caching."""

    revision = REVISION

    async def test_a_list_is_used_while_it_is_fresh_and_then_asked_for_again(
        self, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Time-to-Live, Freshness Calculation: looked at on access, not in the background."""
        clock = Clock(monkeypatch)
        async with wire(way, REVISION, script=listed(300_000, 300_000)) as (server, connection):
            await connection.tools()
            clock.seconds += 299
            await connection.call_tool("echo", {})
            assert len(server.sent("tools/list")) == 1
            clock.seconds += 2
            assert len(server.sent("tools/list")) == 1
            await connection.call_tool("echo", {})
            assert len(server.sent("tools/list")) == 2
            await connection.tools()
        assert len(server.sent("tools/list")) == 2

    @pytest.mark.parametrize("hint", [0, None, -5, "300", True, float("nan"), [], {}])
    async def test_without_a_positive_hint_only_announcements_count(
        self, hint: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With 0 the client may ask every time; without a hint its own rules hold."""
        clock = Clock(monkeypatch)
        async with wire("stdio", REVISION, script=listed(hint)) as (server, connection):
            await connection.tools()
            clock.seconds += 1e9
            await connection.tools()
        assert len(server.sent("tools/list")) == 1

    @pytest.mark.parametrize("hint", [1, 10**400, 1e300])
    async def test_a_hint_of_any_size_is_borne(
        self, hint: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However short, it does not double the requests of every call."""
        clock = Clock(monkeypatch)
        async with wire("stdio", REVISION, script=listed(hint)) as (server, connection):
            await connection.tools()
            clock.seconds += 1
            await connection.tools()
        assert len(server.sent("tools/list")) == 1

    async def test_an_old_list_serves_where_no_new_one_can_be_had(
        self, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Clients may serve stale responses if errors occur; later they ask again."""
        clock = Clock(monkeypatch)
        script = listed(10_000, "fails", 10_000)
        async with wire(way, REVISION, script=script) as (server, connection):
            before = await connection.tools()
            clock.seconds += 11
            assert await connection.tools() is before
            assert await connection.tools() is before
            assert len(server.sent("tools/list")) == 2
            clock.seconds += 11
            assert await connection.tools() is not before
        assert len(server.sent("tools/list")) == 3

    async def test_the_shortest_of_the_pages_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Interaction with Pagination: for one snapshot the list is fetched from the beginning."""
        clock = Clock(monkeypatch)
        hints = iter([300_000, 60_000] * 2)

        def script(message: Message) -> Message | None:
            if message["method"] != "tools/list":
                return None
            first = "cursor" not in message["params"]
            page: Message = {"tools": [tool("a" if first else "b")], "ttlMs": next(hints)}
            return {"result": {**page, "nextCursor": "2"} if first else page}

        async with wire("stdio", REVISION, script=script) as (server, connection):
            await connection.tools()
            clock.seconds += 61
            await connection.tools()
        cursors = ["cursor" in message["params"] for message in server.sent("tools/list")]
        assert cursors == [False, True] * 2
