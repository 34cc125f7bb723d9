"""Results of calls as text."""

from __future__ import annotations

from typing import Any

import pytest

from servers.mcp.client import connect
from servers.mcp.results import read_result, render_part
from servers.mcp.types import CallResult
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import FakeHttp
from tests.fakes.mcp_server import Behaviour


async def called(tool: str, arguments: dict[str, Any], **behaviour: Any) -> CallResult:
    async with (
        FakeHttp(Behaviour(**behaviour)) as server,
        connect(http_settings(server.url)) as connection,
    ):
        return await connection.call_tool(tool, arguments)


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ({"type": "text", "text": "hi"}, "hi"),
        (
            {"type": "image", "mimeType": "image/png", "data": "aGVsbG8="},
            "[image: image/png, 5 bytes]",
        ),
        (
            {"type": "audio", "mimeType": "audio/wav", "data": "aGVsbG8h"},
            "[audio: audio/wav, 6 bytes]",
        ),
        ({"type": "image", "data": "%%%"}, "[image: unknown type, 2 bytes]"),
        ({"type": "image"}, "[image: unknown type, 0 bytes]"),
        ({"type": "resource_link", "uri": "file:///a"}, "[resource link: file:///a]"),
        ({"type": "resource_link"}, "[resource link: unknown]"),
        ({"type": "resource", "resource": {"uri": "x:1", "text": "words"}}, "words"),
        (
            {"type": "resource", "resource": {"uri": "x:1", "mimeType": "a/b", "blob": "aGk="}},
            "[resource: x:1, a/b, 2 bytes]",
        ),
        ({"type": "resource", "resource": {"uri": "x:1"}}, "[resource: x:1]"),
        (
            {"type": "resource", "resource": None},
            '[resource] {"type": "resource", "resource": null}',
        ),
        ({"type": "hologram", "w": 1}, '[hologram] {"type": "hologram", "w": 1}'),
        ({"type": "text", "text": None}, '[text] {"type": "text", "text": null}'),
        ({}, "[unknown] {}"),
    ],
)
def test_every_kind_of_part_has_a_text(part: dict[str, Any], shown: str) -> None:
    """D15 and reference, "Result rendering"."""
    assert render_part(part) == shown


async def test_parts_are_joined_by_line_ends_and_kept_raw() -> None:
    """D15."""
    parts = [{"type": "text", "text": "a"}, {"type": "hologram"}, {"type": "text", "text": "b"}]
    result = await called("content", {"parts": parts})
    assert result.ok
    assert result.text == 'a\n[hologram] {"type": "hologram"}\nb'
    assert result.content == parts


@pytest.mark.parametrize("parts", [[], None])
async def test_a_result_without_content_is_an_empty_text(parts: Any) -> None:
    """D15."""
    result = await called("content", {"parts": parts})
    assert (result.ok, result.text, result.content) == (True, "", [])


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({}, ""),
        ({"content": "words"}, '[unknown] {"type": "unknown", "value": "words"}'),
        ({"content": [7]}, '[unknown] {"type": "unknown", "value": 7}'),
        ({"structuredContent": {"a": "ä"}}, '{"a": "ä"}'),
        ({"content": [], "structuredContent": [1]}, "[1]"),
        ({"content": [{"type": "text", "text": "t"}], "structuredContent": {"a": 1}}, "t"),
    ],
)
async def test_any_shape_of_result_becomes_one(raw: dict[str, Any], text: str) -> None:
    """D14, D15: structured content is the text only where there is no other."""
    result = await called("raw", {"result": raw})
    assert result.ok
    assert result.text == text
    assert result.structured == raw.get("structuredContent")


async def test_an_error_of_the_tool_is_shown_whatever_the_schema_wants() -> None:
    """D13."""
    schema = {"type": "object", "required": ["data"]}
    tools = [{"name": "raw", "inputSchema": {"type": "object"}, "outputSchema": schema}]
    raw = {
        "isError": True,
        "content": [{"type": "text", "text": "token expired"}],
        "structuredContent": {"error": {}},
    }
    result = await called("raw", {"result": raw}, tools=tools)
    assert (result.ok, result.error, result.text) == (False, "token expired", "token expired")


async def test_an_error_without_words_gets_some() -> None:
    result = await called("raw", {"result": {"isError": True}})
    assert (result.ok, result.error) == (False, "The tool reported an error without a text.")


async def test_an_error_of_the_protocol_is_a_failed_result() -> None:
    """P74."""
    result = await called("rpc_error", {"code": -32005, "message": "timed out"})
    assert (result.ok, result.text, result.error) == (False, "", "timed out (-32005)")


async def test_an_unknown_tool_is_a_failed_result() -> None:
    result = await called("no_such_tool", {})
    assert result.error == "Unknown tool: no_such_tool (-32602)"


async def test_a_tool_that_wants_input_from_a_person_fails_with_a_reason() -> None:
    result = await called("raw", {"result": {"resultType": "input_required"}})
    assert not result.ok
    assert "asks a person for input" in result.error


def test_what_cannot_be_stored_is_cleaned_everywhere() -> None:
    """C17, H16."""
    raw = {
        "content": [{"type": "text", "text": "a\x00b"}, {"type": "image", "mimeType": "x\ud800"}],
        "structuredContent": {"k\x00": ["\ud800"]},
    }
    result = read_result(raw, 1.0)
    assert result.text == "ab\n[image: x\ufffd, 0 bytes]"
    assert result.content[0]["text"] == "ab"
    assert result.structured == {"k": ["\ufffd"]}
