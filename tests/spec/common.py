"""What every revision wants of clients alike."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from servers.mcp import stdio
from servers.mcp.types import InvalidArguments, ServerError
from tests.fakes.mcp_helpers import Recorder
from tests.fakes.mcp_http import FakeHttp
from tests.fakes.mcp_server import Behaviour, Message, object_schema, text
from tests.spec.support import Spec, StdioServer, error, on, wire

TEXT: Message = {"type": "text", "text": "words", "annotations": {"audience": ["user"]}}
IMAGE: Message = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
AUDIO: Message = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
LINK: Message = {"type": "resource_link", "uri": "file:///a.rs", "name": "a.rs"}
EMBEDDED: Message = {
    "type": "resource",
    "resource": {"uri": "file:///a.rs", "mimeType": "text/x-rust", "text": "fn main() {}"},
}


def tool(name: str, schema: Message | None = None, **fields: Any) -> Message:
    return {"name": name, "inputSchema": schema or object_schema(), **fields}


class MessagesOfEach(Spec):
    """Overview, Messages."""

    async def test_each_request_has_an_identifier_of_its_own(self, way: str) -> None:
        """Requests: a string or an integer, never null, used once."""
        async with wire(way, self.revision) as (server, connection):
            await connection.list_tools()
            await asyncio.gather(*(connection.call_tool("echo", {}) for _ in range(3)))
        requests = [message for message in server.messages if "id" in message]
        identities = [request["id"] for request in requests]
        assert len(requests) >= 5
        assert all(type(identity) in (int, str) for identity in identities)
        assert len(set(identities)) == len(identities)

    async def test_each_message_has_the_form_of_the_protocol(self, way: str) -> None:
        """Messages: JSON-RPC 2.0, with an object for parameters."""
        async with wire(way, self.revision) as (server, connection):
            await connection.list_tools()
            await connection.call_tool("echo", {"a": 1})
        assert server.messages
        for message in server.messages:
            assert message["jsonrpc"] == "2.0"
            assert isinstance(message["method"], str)
            assert isinstance(message.get("params", {}), dict)
            assert set(message) <= {"jsonrpc", "id", "method", "params"}


class ProgressOfEach(Spec):
    """Utilities (2026-07-28: Patterns), Progress."""

    async def test_each_active_call_has_a_token_of_its_own(self, way: str) -> None:
        """Progress Flow: a string or an integer, unique across all active requests."""
        async with wire(way, self.revision) as (server, connection):
            calls = [asyncio.create_task(connection.call_tool("late", {})) for _ in range(3)]
            await server.until(lambda: len(server.sent("tools/call")) == 3)
            await connection.call_tool("release", {})
            await asyncio.gather(*calls)
        tokens = [each["params"]["_meta"]["progressToken"] for each in server.sent("tools/call")]
        assert all(type(token) in (int, str) for token in tokens)
        assert len(set(tokens)) == 4

    async def test_what_a_server_reports_reaches_the_caller(self, stream_way: str) -> None:
        """Progress Flow."""
        seen: list[tuple[float, float | None, str | None]] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total, message))

        async with wire(stream_way, self.revision) as (_, connection):
            arguments = {"steps": 2, "interval": 0}
            assert (await connection.call_tool("progress", arguments, on_progress=report)).ok
        assert seen == [(1, None, "step 1"), (2, None, "step 2")]

    async def test_values_may_be_fractions_and_totals_may_be_given(self) -> None:
        """Progress Flow: floating point."""
        seen: list[tuple[float, float | None, str | None]] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total, message))

        async with wire("stdio", self.revision) as (server, connection):
            call = asyncio.create_task(connection.call_tool("late", {}, on_progress=report))
            await server.until(lambda: server.sent("tools/call"))
            token = server.params("tools/call")["_meta"]["progressToken"]
            await server.say(progress(token, progress=0.5, total=1.5))
            await connection.call_tool("release", {})
            await call
        assert seen == [(0.5, 1.5, None)]

    @pytest.mark.parametrize("token", ["nobody", 999, None, [], {}])
    async def test_reports_for_nobody_are_ignored(self, token: Any) -> None:
        """Behavior Requirements: only tokens of active requests count."""
        seen: list[float] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        async with wire("stdio", self.revision) as (server, connection):
            call = asyncio.create_task(connection.call_tool("late", {}, on_progress=report))
            await server.until(lambda: server.sent("tools/call"))
            await server.say(progress(token, progress=1))
            await connection.call_tool("release", {})
            assert (await call).ok
        assert seen == []

    async def test_a_report_behind_the_answer_is_ignored(self) -> None:
        """Implementation Notes: progress stops after completion."""
        seen: list[float] = []

        async def report(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        async with wire("stdio", self.revision) as (server, connection):
            await connection.call_tool("echo", {}, on_progress=report)
            token = server.params("tools/call")["_meta"]["progressToken"]
            await server.say(progress(token, progress=1))
            assert (await connection.call_tool("echo", {})).ok
        assert seen == []


def progress(token: Any, **values: float) -> Message:
    params = {"progressToken": token, **values}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


class ToolsOfEach(Spec):
    """Server Features, Tools (U22)."""

    content: tuple[Message, ...] = (TEXT, IMAGE, EMBEDDED)

    async def test_a_call_names_the_tool_and_its_arguments(self, way: str) -> None:
        """Calling Tools."""
        async with wire(way, self.revision) as (server, connection):
            await connection.list_tools()
            arguments = {"location": "Neu-Ulm\n“ü”", "nested": {"a": [1, None, 2.5]}}
            result = await connection.call_tool("echo", arguments)
        assert json.loads(result.text) == arguments
        params = server.params("tools/call")
        assert set(params) == {"name", "arguments", "_meta"}
        assert (params["name"], params["arguments"]) == ("echo", arguments)

    async def test_a_call_without_arguments_sends_an_empty_object(self, way: str) -> None:
        """Calling Tools."""
        async with wire(way, self.revision) as (server, connection):
            await connection.call_tool("echo", {})
        assert server.params("tools/call")["arguments"] == {}

    async def test_names_are_told_apart_by_case(self, way: str) -> None:
        """Data Types, Tool: a unique identifier."""
        behaviour = Behaviour(tools=[tool("Echo"), tool("echo"), tool("a.b/C-d_1")])
        async with wire(way, self.revision, behaviour=behaviour) as (_, connection):
            listed = await connection.list_tools()
        assert [each.name for each in listed.tools] == ["Echo", "echo", "a.b/C-d_1"]

    async def test_a_server_that_declares_no_tools_is_not_asked_for_any(self, way: str) -> None:
        """Capabilities."""
        behaviour = Behaviour(capabilities={"prompts": {}})
        async with wire(way, self.revision, behaviour=behaviour) as (server, connection):
            assert (await connection.list_tools()).tools == []
        assert server.sent("tools/list") == []

    async def test_an_error_of_the_tool_is_a_result_with_its_words(self, way: str) -> None:
        """Error Handling: tool execution errors are for the one who called."""
        async with wire(way, self.revision) as (_, connection):
            result = await connection.call_tool("fail", {"text": "Rate limit exceeded"})
        assert (result.ok, result.text) == (False, "Rate limit exceeded")

    async def test_an_error_of_the_protocol_is_told_with_its_code(self, way: str) -> None:
        """Error Handling: protocol errors."""
        async with wire(way, self.revision) as (_, connection):
            result = await connection.call_tool("invalid_tool_name", {})
        assert (result.ok, result.error) == (False, "Unknown tool: invalid_tool_name (-32602)")

    async def test_all_kinds_of_content_come_through(self, way: str) -> None:
        """Tool Result."""
        parts = list(self.content)
        async with wire(way, self.revision) as (_, connection):
            result = await connection.call_tool("content", {"parts": parts})
        assert result.ok
        assert result.content == parts


class StructuredToolsOfEach(ToolsOfEach):
    """From 2025-06-18 on tools may have output schemas."""

    content = (TEXT, IMAGE, AUDIO, LINK, EMBEDDED)
    schema: Message = {**object_schema(temperature={"type": "number"}), "required": ["temperature"]}

    @pytest.mark.parametrize(
        ("structured", "fits"), [({"temperature": 22.5}, True), ({"temperature": "warm"}, False)]
    )
    async def test_structured_results_are_checked_by_their_schema(
        self, way: str, structured: Message, fits: bool
    ) -> None:
        """Output Schema: what does not match is delivered, with a warning."""
        behaviour = Behaviour(tools=[tool("raw", outputSchema=self.schema)])
        async with wire(way, self.revision, behaviour=behaviour) as (_, connection):
            await connection.list_tools()
            answer = {**text(json.dumps(structured)), "structuredContent": structured}
            result = await connection.call_tool("raw", {"result": answer})
        assert result.structured == structured
        assert (result.warnings == []) is fits

    async def test_titles_are_for_display_and_names_for_calls(self, way: str) -> None:
        """Data Types, Tool."""
        behaviour = Behaviour(tools=[tool("echo", title="Says it again")])
        async with wire(way, self.revision, behaviour=behaviour) as (server, connection):
            [listed] = (await connection.list_tools()).tools
            await connection.call_tool(listed.name, {})
        assert (listed.name, listed.title) == ("echo", "Says it again")
        assert server.params("tools/call")["name"] == "echo"


class PaginationOfEach(Spec):
    """Utilities, Pagination (U22, A24)."""

    @pytest.mark.parametrize("cursor", ["eyJwYWdlIjogM30=", " ü\n%20\u2028", "", "null", "0"])
    async def test_cursors_go_back_as_they_came(self, way: str, cursor: str) -> None:
        """Implementation Guidelines: opaque tokens, neither parsed nor modified."""
        pages: list[Message] = [
            {"result": {"tools": [tool("a")], "nextCursor": cursor}},
            {"result": {"tools": [tool("b")]}},
        ]

        def script(message: Message) -> Message | None:
            return pages.pop(0) if message["method"] == "tools/list" else None

        async with wire(way, self.revision, script=script) as (server, connection):
            listed = await connection.list_tools()
        assert [each.name for each in listed.tools] == ["a", "b"]
        asked = [each.get("params", {}) for each in server.sent("tools/list")]
        assert ["cursor" in params for params in asked] == [False, True]
        assert asked[1]["cursor"] == cursor

    async def test_pages_may_be_of_any_size(self, way: str) -> None:
        """Pagination Model: no fixed page size; an empty page does not end the list."""
        sizes = [2, 0, 1]
        names = iter("abc")

        def script(message: Message) -> Message | None:
            if message["method"] != "tools/list":
                return None
            page: Message = {"tools": [tool(next(names)) for _ in range(sizes.pop(0))]}
            return {"result": {**page, "nextCursor": f"{len(sizes)}"} if sizes else page}

        async with wire(way, self.revision, script=script) as (_, connection):
            listed = await connection.list_tools()
        assert [each.name for each in listed.tools] == ["a", "b", "c"]

    async def test_a_list_without_a_cursor_is_one_page(self, way: str) -> None:
        """Implementation Guidelines: a missing `nextCursor` is the end."""
        async with wire(way, self.revision) as (server, connection):
            assert (await connection.list_tools()).tools
        assert len(server.sent("tools/list")) == 1

    async def test_a_cursor_is_not_kept_beyond_its_list(self, way: str) -> None:
        """Implementation Guidelines: no cursor outlives its session."""
        async with wire(way, self.revision, behaviour=Behaviour(page_size=20)) as (server, first):
            await first.list_tools()
            await first.list_tools()
        asked = [each.get("params", {}) for each in server.sent("tools/list")]
        assert ["cursor" in params for params in asked] == [False, True] * 2

    async def test_a_refused_cursor_is_an_error_in_the_servers_words(self, way: str) -> None:
        """Error Handling: -32602."""
        script = on("tools/list", error(-32602, "Invalid cursor"))
        async with wire(way, self.revision, script=script) as (_, connection):
            with pytest.raises(ServerError, match="Invalid cursor"):
                await connection.list_tools()
            assert (await connection.call_tool("echo", {})).ok


class StdioOfEach(Spec):
    """Transports, stdio."""

    async def test_each_message_is_one_line_of_utf8(self) -> None:
        """Messages are delimited by newlines and contain none."""
        arguments = {"text": "one\ntwo\r\n\u2028three ü 世界 \U0001f600"}
        async with wire("stdio", self.revision) as (server, connection):
            await connection.call_tool("echo", arguments)
        line = server.heard[-1].raw
        assert json.loads(line.decode("utf-8"))["params"]["arguments"] == arguments

    async def test_words_on_standard_error_are_no_error(self) -> None:
        """The server may log to standard error."""
        observer = Recorder()
        async with wire("stdio", self.revision, observer=observer) as (server, connection):
            assert isinstance(server, StdioServer)
            server.stderr.feed_data(b"ERROR: this is only a log\n")
            async with asyncio.timeout(20):
                await observer.news.wait()
            assert (await connection.call_tool("echo", {})).ok
        assert observer.lines == ["ERROR: this is only a log"]

    async def test_the_end_begins_with_the_end_of_the_servers_input(self) -> None:
        """Shutdown: standard input is closed, and the server may end by itself."""
        async with wire("stdio", self.revision) as (server, _):
            assert isinstance(server, StdioServer)
            assert server.end == []
        assert server.end == ["stdin closed"]

    async def test_a_server_that_stays_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Shutdown: forcibly, after a while."""
        monkeypatch.setattr(stdio, "CLOSE_GRACE", 0.01)
        async with wire("stdio", self.revision) as (server, _):
            assert isinstance(server, StdioServer)
            server.obeys_eof = False
        assert server.end == ["stdin closed", "killed"]


class SchemasOfEach(Spec):
    """Overview, JSON Schema Usage (from 2025-11-25 on)."""

    @pytest.mark.parametrize(
        "dialect", [{}, {"$schema": "https://json-schema.org/draft/2020-12/schema"}]
    )
    async def test_arguments_are_checked_by_2020_12_unless_the_schema_says_otherwise(
        self, way: str, dialect: Message
    ) -> None:
        """Schema Dialect: `prefixItems` is of 2020-12."""
        pair = {"type": "array", "prefixItems": [{"type": "string"}], "items": False}
        behaviour = Behaviour(tools=[tool("echo", {**dialect, **object_schema(pair=pair)})])
        async with wire(way, self.revision, behaviour=behaviour) as (server, connection):
            await connection.list_tools()
            with pytest.raises(InvalidArguments):
                await connection.call_tool("echo", {"pair": ["a", "b"]})
            assert (await connection.call_tool("echo", {"pair": ["a"]})).ok
        assert len(server.sent("tools/call")) == 1

    async def test_an_explicit_dialect_counts(self, way: str) -> None:
        """Schema Dialect: in draft 07 a list of `items` goes by position."""
        pair = {"type": "array", "items": [{"type": "string"}], "additionalItems": False}
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", **object_schema(pair=pair)}
        behaviour = Behaviour(tools=[tool("echo", schema)])
        async with wire(way, self.revision, behaviour=behaviour) as (_, connection):
            await connection.list_tools()
            with pytest.raises(InvalidArguments):
                await connection.call_tool("echo", {"pair": ["a", "b"]})
            assert (await connection.call_tool("echo", {"pair": ["a"]})).ok

    @pytest.mark.parametrize(
        ("schema", "words"),
        [
            ({"$schema": "https://example.com/own", "type": "object"}, "dialect"),
            ({"type": "object", "properties": {"a": {"type": "nonsense"}}}, "nonsense"),
        ],
    )
    async def test_what_cannot_be_checked_is_left_out_with_a_reason(
        self, way: str, schema: Message, words: str
    ) -> None:
        """Implementation Requirements: unsupported dialects are handled gracefully; Schema
        Validation: schemas are valid according to their dialect."""
        behaviour = Behaviour(tools=[tool("odd", schema), tool("fine")])
        async with wire(way, self.revision, behaviour=behaviour) as (_, connection):
            listed = await connection.list_tools()
        assert [each.name for each in listed.tools] == ["fine"]
        [warning] = listed.warnings
        assert "odd" in warning
        assert words in warning

    async def test_a_reference_to_the_network_is_not_followed(self, way: str) -> None:
        """`$ref` Resolution (2026-07-28): not dereferenced; the schema is rejected."""
        async with FakeHttp() as elsewhere:
            schema = object_schema(a={"$ref": elsewhere.url})
            behaviour = Behaviour(tools=[tool("odd", schema), tool("fine", outputSchema=schema)])
            async with wire(way, self.revision, behaviour=behaviour) as (_, connection):
                listed = await connection.list_tools()
            assert elsewhere.connections == 0
        assert [each.name for each in listed.tools] == ["fine"]
        assert len(listed.warnings) == 2

    async def test_a_reference_within_the_schema_is_followed(self, way: str) -> None:
        """`$ref` Resolution: local definitions."""
        schema = {**object_schema(a={"$ref": "#/$defs/n"}), "$defs": {"n": {"type": "number"}}}
        async with wire(way, self.revision, behaviour=Behaviour(tools=[tool("echo", schema)])) as (
            _,
            connection,
        ):
            await connection.list_tools()
            with pytest.raises(InvalidArguments):
                await connection.call_tool("echo", {"a": "x"})
