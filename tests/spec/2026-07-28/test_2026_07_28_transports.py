"""MCP 2026-07-28: Streamable HTTP without sessions, and cancellation on either transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from servers.mcp.types import CallTimedOut, ConnectionLost
from tests.fakes.mcp_http import EVENTS, JSON, Reply, Request, event
from tests.fakes.mcp_server import Behaviour, Message, object_schema, text
from tests.spec.support import SECONDS, Spec, error, events, http_wire, on, wire

REVISION = "2026-07-28"
META_VERSION = "io.modelcontextprotocol/protocolVersion"


class TestSending(Spec):
    """Streamable HTTP, Sending Messages."""

    revision = REVISION

    async def test_there_are_only_posts_of_single_requests(self, http_way: str) -> None:
        """1 and 4: no GET stream, no DELETE, no responses, no notifications."""
        async with http_wire(http_way, REVISION) as (server, connection):
            await connection.list_tools()
            await asyncio.gather(*(connection.call_tool("echo", {}) for _ in range(3)))
            with pytest.raises(CallTimedOut):
                await connection.call_tool("hang", {}, timeout=0.1)
        assert {heard.method for heard in server.heard} == {"POST"}
        assert {heard.path for heard in server.heard} == {"/mcp"}
        assert all({"id", "method"} <= message.keys() for message in server.messages)
        assert len(server.messages) == len(server.heard) == 6

    async def test_each_post_accepts_json_and_events(self, http_way: str) -> None:
        """2."""
        async with http_wire(http_way, REVISION) as (server, connection):
            await connection.call_tool("echo", {})
        for post in server.heard:
            accepted = {part.strip() for part in post.headers["accept"].split(",")}
            assert accepted >= {"application/json", "text/event-stream"}
            assert post.headers["content-type"] == "application/json"

    async def test_answers_may_be_json_or_events(self, http_way: str) -> None:
        """6."""
        async with http_wire(http_way, REVISION) as (_, connection):
            assert (await connection.list_tools()).tools
            assert (await connection.call_tool("echo", {"a": 1})).structured == {"a": 1}

    async def test_sessions_of_servers_are_not_taken_up(self, http_way: str) -> None:
        """Earlier Streamable HTTP Revisions: no session ids, nothing to end."""

        def requests(request: Request) -> Reply | None:
            if request.rpc != "server/discover":
                return None
            result = {"supportedVersions": [REVISION], "capabilities": {"tools": {}}}
            body = {"jsonrpc": "2.0", "id": request.message["id"], "result": result}
            headers = {"content-type": JSON, "mcp-session-id": "s9"}
            return Reply(200, headers, json.dumps(body).encode())

        async with http_wire(http_way, REVISION, requests=requests) as (server, connection):
            assert (await connection.list_tools()).tools
        assert all("mcp-session-id" not in heard.headers for heard in server.heard)
        assert server.of("DELETE") == []

    async def test_an_unknown_method_is_no_reason_to_look_for_older_transports(
        self, http_way: str
    ) -> None:
        """Protocol Version Header: 404 with -32601."""

        def requests(request: Request) -> Reply | None:
            if request.rpc != "tools/list":
                return None
            body = {"jsonrpc": "2.0", "id": request.message["id"], **error(-32601)}
            return Reply(404, {"content-type": JSON}, json.dumps(body).encode())

        async with http_wire(http_way, REVISION, requests=requests) as (server, connection):
            assert (await connection.list_tools()).tools == []
        assert server.methods() == ["server/discover", "tools/list"]
        assert server.of("GET") == []


class TestReceiving(Spec):
    """Streamable HTTP, Receiving Messages."""

    revision = REVISION

    async def test_comments_are_no_messages(self) -> None:
        """Lines that begin with a colon are ignored, also between the parts of an answer."""

        def requests(request: Request) -> Reply | None:
            if request.rpc != "tools/call":
                return None
            answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": text("done")}
            return events(b":\r\n", b": keep-alive\n\n:\n", event(answer))

        async with http_wire("events", REVISION, requests=requests) as (_, connection):
            assert (await connection.call_tool("echo", {})).text == "done"

    async def test_a_broken_stream_is_not_resumed(self) -> None:
        """Resumable streams via `Last-Event-ID` are not supported."""
        script = on("tools/call", events(b"id: e1\nretry: 0\ndata: \n\n", cut=True))
        async with http_wire("events", REVISION, script=script) as (server, connection):
            with pytest.raises(ConnectionLost, match="may have happened"):
                await connection.call_tool("count", {})
        assert server.of("GET") == []
        assert all("last-event-id" not in heard.headers for heard in server.heard)
        assert len(server.sent("tools/call")) == 1


class TestHeaders(Spec):
    """Streamable HTTP, Request Metadata."""

    revision = REVISION

    async def test_headers_repeat_what_the_body_says(self, http_way: str) -> None:
        """Protocol Version Header, Standard Request Headers: on every POST."""
        async with http_wire(http_way, REVISION) as (server, connection):
            await connection.list_tools()
            await connection.call_tool("echo", {})
        assert len(server.heard) == 3
        for post in server.heard:
            body = post.message
            assert post.headers["mcp-protocol-version"] == body["params"]["_meta"][META_VERSION]
            assert post.headers["mcp-method"] == body["method"]
            assert post.headers.get("mcp-name") == body["params"].get("name")

    @pytest.mark.parametrize(
        ("name", "header"),
        [
            ("get_weather", "get_weather"),
            ("Grüße", "=?base64?R3LDvMOfZQ==?="),
            ("two words", "two words"),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ],
    )
    async def test_names_that_no_header_can_hold_are_encoded(
        self, http_way: str, name: str, header: str
    ) -> None:
        """Value Encoding: the same rule applies to `Mcp-Name`."""
        async with http_wire(http_way, REVISION) as (server, connection):
            await connection.call_tool(name, {})
        assert server.bearing("tools/call").headers["mcp-name"] == header


def marked(header: Any, kind: str = "string") -> Message:
    return {"type": kind, "x-mcp-header": header}


class TestParameterHeaders(Spec):
    """Streamable HTTP, Custom Headers from Tool Parameters; Tools, x-mcp-header."""

    revision = REVISION

    async def headers(self, http_way: str, schema: Message, arguments: Message) -> dict[str, str]:
        behaviour = Behaviour(tools=[{"name": "echo", "inputSchema": schema}])
        async with http_wire(http_way, REVISION, behaviour=behaviour) as (server, connection):
            await connection.list_tools()
            assert (await connection.call_tool("echo", arguments)).ok
        sent = server.bearing("tools/call").headers
        return {name: value for name, value in sent.items() if name.startswith("mcp-param-")}

    @pytest.mark.parametrize(
        ("value", "header"),
        [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ],
    )
    async def test_texts_are_encoded_as_the_specification_shows(
        self, http_way: str, value: str, header: str
    ) -> None:
        """Value Encoding: the table of examples."""
        schema = object_schema(region=marked("Region"), query={"type": "string"})
        arguments = {"region": value, "query": "SELECT"}
        assert await self.headers(http_way, schema, arguments) == {"mcp-param-region": header}

    @pytest.mark.parametrize(
        ("kind", "value", "header"),
        [("integer", 42, "42"), ("integer", -7, "-7"), ("boolean", True, "true")],
    )
    async def test_other_values_become_texts(
        self, http_way: str, kind: str, value: Any, header: str
    ) -> None:
        """Value Encoding: type conversion."""
        schema = object_schema(v=marked("V", kind))
        assert await self.headers(http_way, schema, {"v": value}) == {"mcp-param-v": header}

    async def test_what_is_not_given_has_no_header(self, http_way: str) -> None:
        """Server Behavior, table: null and absent values are omitted."""
        schema = object_schema(a={**marked("A"), "type": ["string", "null"]}, b=marked("B"))
        given = {"a": None}
        assert await self.headers(http_way, schema, given) == {}

    async def test_nested_properties_are_read_at_their_path(self, http_way: str) -> None:
        """Schema Extension: any chain of `properties`."""
        schema = object_schema(place=object_schema(region=marked("Region")))
        found = await self.headers(http_way, schema, {"place": {"region": "eu"}})
        assert found == {"mcp-param-region": "eu"}

    @pytest.mark.parametrize(
        "properties",
        [
            {"a": marked("")},
            {"a": marked("two words")},
            {"a": marked("line\r\nbreak")},
            {"a": marked(5)},
            {"a": marked("Same"), "b": marked("sAME")},
            {"a": marked("A", "number")},
            {"a": marked("A", "object")},
            {"a": {"type": "array", "items": marked("A")}},
            {"a": {"anyOf": [marked("A")]}},
        ],
    )
    async def test_a_tool_with_an_invalid_mark_is_left_out(
        self, http_way: str, properties: Message
    ) -> None:
        """Schema Extension: excluded from the list, with a warning; the others stay."""
        bad = {"name": "bad_one", "inputSchema": object_schema(**properties)}
        good = {"name": "good_one", "inputSchema": object_schema(a=marked("A"))}
        behaviour = Behaviour(tools=[bad, good])
        async with http_wire(http_way, REVISION, behaviour=behaviour) as (_, connection):
            listed = await connection.list_tools()
        assert [tool.name for tool in listed.tools] == ["good_one"]
        [warning] = listed.warnings
        assert "bad_one" in warning

    async def test_over_stdio_marks_mean_nothing(self) -> None:
        """Schema Extension: other transports may ignore them."""
        bad = {"name": "echo", "inputSchema": object_schema(a=marked(""))}
        async with wire("stdio", REVISION, behaviour=Behaviour(tools=[bad])) as (_, connection):
            assert [tool.name for tool in (await connection.list_tools()).tools] == ["echo"]

    async def test_tools_are_listed_for_their_marks_before_the_first_call(
        self, http_way: str
    ) -> None:
        """Client Behavior, 3: the tool's schema is inspected."""
        tools = [{"name": "echo", "inputSchema": object_schema(a=marked("A"))}]
        behaviour = Behaviour(tools=tools)
        async with http_wire(http_way, REVISION, behaviour=behaviour) as (server, connection):
            await connection.call_tool("echo", {"a": "x"})
        assert server.bearing("tools/call").headers["mcp-param-a"] == "x"

    @pytest.mark.parametrize("changed", [True, False])
    async def test_a_mismatch_has_the_tools_listed_again(
        self, http_way: str, changed: bool
    ) -> None:
        """Client Behavior: `tools/list`, then the request with the appropriate headers."""
        behaviour = Behaviour(tools=[{"name": "echo", "inputSchema": object_schema()}])

        def requests(request: Request) -> Reply | None:
            if request.rpc != "tools/call" or "mcp-param-region" in request.headers:
                return None
            if changed:
                behaviour.tools[0]["inputSchema"] = object_schema(region=marked("Region"))
            answer = error(-32020, "Header mismatch: Mcp-Param-Region is missing")
            body = {"jsonrpc": "2.0", "id": request.message["id"], **answer}
            return Reply(400, {"content-type": JSON}, json.dumps(body).encode())

        options: dict[str, Any] = {"behaviour": behaviour, "requests": requests}
        async with http_wire(http_way, REVISION, **options) as (server, connection):
            await connection.list_tools()
            result = await connection.call_tool("echo", {"region": "eu"})
        assert result.ok is changed
        calls = [heard for heard in server.heard if heard.headers["mcp-method"] == "tools/call"]
        sent = [call.headers.get("mcp-param-region") for call in calls]
        assert sent == ([None, "eu"] if changed else [None])
        assert len(server.sent("tools/list")) == 2


class TestCancellation(Spec):
    """Patterns, Cancellation."""

    revision = REVISION

    async def test_over_http_the_end_of_the_stream_is_the_message(self) -> None:
        """Transport-Specific Cancellation: the response stream is closed, nothing is sent."""
        gone = asyncio.Event()

        async def stream() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield b": still at work\n\n"
                    await asyncio.sleep(0.01)
            finally:
                gone.set()

        script = on("tools/call", Reply(200, {"content-type": EVENTS}, stream()))
        async with http_wire("events", REVISION, script=script) as (server, connection):
            with pytest.raises(CallTimedOut):
                await connection.call_tool("echo", {}, timeout=0.1)
            async with asyncio.timeout(SECONDS):
                await gone.wait()
        assert server.sent("notifications/cancelled") == []

    async def test_over_stdio_the_request_is_named(self) -> None:
        """Transport-Specific Cancellation; Behavior Requirements: issued and in progress."""
        async with wire("stdio", REVISION) as (server, connection):
            with pytest.raises(CallTimedOut):
                await connection.call_tool("hang", {}, timeout=0.1)
            await server.until(lambda: server.sent("notifications/cancelled"))
        [call] = server.sent("tools/call")
        [cancelled] = server.sent("notifications/cancelled")
        assert cancelled["params"]["requestId"] == call["id"]
        assert "id" not in cancelled

    async def test_an_answer_behind_the_cancellation_is_ignored(self, way: str) -> None:
        """Behavior Requirements: whatever arrives afterward."""
        async with wire(way, REVISION) as (_, connection):
            with pytest.raises(CallTimedOut):
                await connection.call_tool("late", {}, timeout=0.1)
            await connection.call_tool("release", {})
            assert (await connection.call_tool("echo", {"a": 1})).structured == {"a": 1}

    async def test_what_was_answered_is_not_cancelled(self, way: str) -> None:
        """Behavior Requirements: only requests in progress."""
        async with wire(way, REVISION) as (server, connection):
            await connection.call_tool("echo", {})
        assert server.sent("notifications/cancelled") == []
