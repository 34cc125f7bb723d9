"""Results of calls as text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.limits import KIB, STANDARD, STRICT
from servers.mcp.client import connect
from servers.mcp.results import MAX_PARTS, MAX_VALUES, read_result, render_part
from servers.mcp.types import CallResult
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import FakeHttp
from tests.fakes.mcp_server import Behaviour

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
kinds = st.sampled_from(["text", "image", "audio", "resource_link", "resource", "hologram"])
fields = ("text", "data", "mimeType", "uri", "resource", "annotations", "_meta")
parts = st.fixed_dictionaries({"type": kinds | values}, optional=dict.fromkeys(fields, values))
results = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(parts | values) | values,
        "structuredContent": values,
        "isError": values,
    },
)


async def called(tool: str, arguments: dict[str, Any], **behaviour: Any) -> CallResult:
    async with (
        FakeHttp(Behaviour(**behaviour)) as server,
        connect(http_settings(server.url)) as connection,
    ):
        await connection.list_tools()
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
    assert result.warnings == []


OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "structured", "warning"),
    [
        (OUTPUT, None, "announces structured content, but the result holds none"),
        (OUTPUT, {"n": "1"}, "the tool's output schema: n must be of type integer."),
        (OUTPUT, {}, "the tool's output schema: n is missing."),
        (OUTPUT, [], "the whole value must be of type object"),
        ({"type": "objekt"}, {"n": 1}, "not checked: the tool's output schema has a fault at type"),
        ({"$ref": "http://h/a"}, {"n": 1}, "refers to http://h/a, which is not fetched"),
    ],
)
async def test_a_result_that_is_not_as_announced_is_kept_with_a_warning(
    schema: dict[str, Any], structured: Any, warning: str
) -> None:
    """D14 (a), (b), (d)."""
    tools = [{"name": "raw", "inputSchema": {"type": "object"}, "outputSchema": schema}]
    raw = {"content": [{"type": "text", "text": "good"}], "structuredContent": structured}
    result = await called("raw", {"result": raw}, tools=tools)
    assert (result.ok, result.text, result.structured) == (True, "good", structured)
    assert len(result.warnings) == 1
    assert warning in result.warnings[0]


@pytest.mark.parametrize("schema", [OUTPUT, None, "x", {}])
async def test_a_result_as_announced_has_no_warning(schema: Any) -> None:
    """D14 (c)."""
    tools = [{"name": "raw", "inputSchema": {"type": "object"}, "outputSchema": schema}]
    result = await called("raw", {"result": {"structuredContent": {"n": 1}}}, tools=tools)
    assert (result.ok, result.warnings) == (True, [])


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


@given(results | values)
def test_nothing_that_a_server_can_answer_breaks_the_reader(raw: Any) -> None:
    """D15: and what was read has a text for each part."""
    result = read_result(raw, 1.0)
    assert result.ok == (isinstance(raw, dict) and raw.get("isError") is not True)
    assert bool(result.error) == (not result.ok)
    json.dumps(result.content).encode()
    assert "\x00" not in result.text


def sized(size: int) -> dict[str, Any]:
    """A result of so many bytes of JSON."""
    frame = len('{"content":[{"type":"text","text":""}]}')
    return {"content": [{"type": "text", "text": "x" * (size - frame)}]}


def test_a_result_over_the_limit_is_an_error_that_names_it() -> None:
    """A41: its content is not kept, and the call counts as one that happened."""
    fits = read_result(sized(128 * KIB), 1.0, STRICT)
    assert fits.ok
    result = read_result(sized(128 * KIB + 1), 1.0, STRICT)
    assert (result.ok, result.text, result.content, result.structured) == (False, "", [], None)
    assert result.error == (
        "The result is larger than 128 KiB (max_result_bytes) and was not kept. "
        "The call itself may have happened."
    )


@pytest.mark.parametrize(
    "raw",
    [
        {"structuredContent": {"a": ["x" * 3000]}},
        {"content": [{"type": "image", "data": "A" * 3000}]},
        {"content": [{"type": "hologram", "a": {"b": "ä" * 1500}}]},
        {"content": [{"type": "text", "text": "x" * 3000}], "isError": True},
        {"content": [], "_meta": {"a": "x" * 3000}},
    ],
)
def test_every_part_of_a_result_counts_towards_its_limit(raw: dict[str, Any]) -> None:
    """A41: bytes of UTF-8, whatever escapes the server wrote."""
    result = read_result(raw, 1.0, replace(STANDARD, result_bytes=2 * KIB))
    assert "larger than 2 KiB (max_result_bytes)" in result.error


def test_results_are_kept_whole_up_to_the_limit_of_a_message() -> None:
    """Section 0 of the requirements, "Limits per server"."""
    result = read_result(sized(5 * 1024 * KIB), 1.0)
    assert result.ok
    assert len(result.text) > 5_000_000


def test_parts_without_end_are_cut_with_a_warning() -> None:
    result = read_result({"content": [{}] * (MAX_PARTS + 1)}, 1.0)
    assert len(result.content) == MAX_PARTS
    assert result.warnings == [f"The result has {MAX_PARTS + 1} parts; the first 10000 are kept."]


def test_content_without_a_bottom_is_cut_with_a_warning() -> None:
    """I17."""
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    result = read_result({"content": [{"type": "x", "a": deep}], "structuredContent": deep}, 1.0)
    assert "nested deeper than 200 levels" in result.warnings[0]
    assert json.dumps(result.structured).count("[") == 200


def test_a_result_of_too_many_values_is_not_kept() -> None:
    """A41: cleaning and masking them would take minutes, whatever their bytes."""
    result = read_result({"structuredContent": [0] * MAX_VALUES}, 1.0)
    assert (result.ok, result.content, result.structured) == (False, [], None)
    assert "holds more than 1,000,000 values" in result.error
    assert read_result({"structuredContent": [0] * (MAX_VALUES - 2)}, 1.0).ok
