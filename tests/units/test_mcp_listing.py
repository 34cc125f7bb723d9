"""Lists of tools: pages, limits, and tools that are not as they should be."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from servers.limits import MAX_PAGES, MAX_TOOLS
from servers.mcp.client import connect
from servers.mcp.listing import read_pages, read_tool
from servers.mcp.types import ServerError, ToolList
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import FakeHttp
from tests.fakes.mcp_server import Behaviour


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


async def listed(**behaviour: Any) -> ToolList:
    async with (
        FakeHttp(Behaviour(**behaviour)) as server,
        connect(http_settings(server.url)) as connection,
    ):
        return await connection.list_tools()


async def read_items(items: Any) -> ToolList:
    async def fetch(cursor: str | None) -> dict[str, Any]:
        return {"tools": items}

    return await read_pages(fetch)


def names(found: ToolList) -> list[str]:
    return [tool.name for tool in found.tools]


async def test_pages_are_read_to_the_last() -> None:
    """U22."""
    found = await listed(tools=named(*"abcdefg"), page_size=3)
    assert names(found) == list("abcdefg")
    assert found.warnings == []


async def test_a_cursor_that_comes_again_ends_the_list_with_a_warning() -> None:
    """D01."""
    found = await listed(tools=named(*"abc"), page_size=2, cursor="repeat")
    assert names(found) == ["a", "b"]
    assert "a page of tools that was read before" in found.warnings[0]


async def test_endless_new_cursors_end_at_the_page_limit() -> None:
    """D01."""
    asked: list[str | None] = []

    async def fetch(cursor: str | None) -> dict[str, Any]:
        asked.append(cursor)
        return {"tools": named("a"), "nextCursor": str(len(asked))}

    found = await read_pages(fetch)
    assert len(asked) == MAX_PAGES
    assert names(found) == ["a"]
    assert found.warnings[-1] == (
        f"The server has more than {MAX_PAGES} pages of tools; the rest is left out."
    )


async def test_an_empty_cursor_is_a_cursor_like_any_other() -> None:
    """D02 (a)."""
    found = await listed(tools=named(*"abcd"), page_size=2, cursor="empty")
    assert names(found) == list("abcd")
    assert found.warnings == []


async def test_an_empty_cursor_that_repeats_ends_the_list() -> None:
    """D02 (b)."""

    async def fetch(cursor: str | None) -> dict[str, Any]:
        return {"tools": named("a"), "nextCursor": ""}

    found = await read_pages(fetch)
    assert names(found) == ["a"]
    assert "read before" in found.warnings[-1]


async def test_null_as_the_cursor_ends_the_list() -> None:
    """D02."""
    found = await listed(tools=named(*"ab"), page_size=2, cursor="null")
    assert names(found) == ["a", "b"]
    assert found.warnings == []


@pytest.mark.parametrize("cursor", [7, {"page": 2}, True])
async def test_a_cursor_that_is_no_text_ends_the_list(cursor: Any) -> None:
    """D01."""

    async def fetch(previous: str | None) -> dict[str, Any]:
        return {"tools": named("a"), "nextCursor": cursor}

    found = await read_pages(fetch)
    assert "Page 1 of the tools names an unusable next page" in found.warnings[0]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string"}, 'of type "string", not object'),
        ({"enum": ["A"], "type": "null"}, 'of type "null", not object'),
        ({"type": "objekt"}, 'of type "objekt", not object'),
        ({"type": ["string"]}, 'of type ["string"], not object'),
        ({"type": "object", "properties": []}, "properties of its input schema are no object"),
        ("object", "its input schema is no object"),
        ([], "its input schema is no object"),
    ],
)
async def test_a_tool_with_a_broken_schema_is_left_out_alone(schema: Any, reason: str) -> None:
    """D08."""
    found = await listed(tools=[*named("a"), {"name": "bad", "inputSchema": schema}, *named("b")])
    assert names(found) == ["a", "b"]
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith("Tool “bad” is left out: ")
    assert reason in found.warnings[0]


@pytest.mark.parametrize(
    ("definition", "schema"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"inputSchema": None}, {"type": "object", "properties": {}}),
        ({"inputSchema": {}}, {}),
        ({"inputSchema": {"anyOf": [{"type": "object"}]}}, {"anyOf": [{"type": "object"}]}),
        ({"inputSchema": {"type": ["object", "null"]}}, {"type": ["object", "null"]}),
    ],
)
def test_schemas_that_can_be_meant_are_accepted(
    definition: dict[str, Any], schema: dict[str, Any]
) -> None:
    """D08; a missing schema is an empty object schema."""
    assert read_tool({"name": "a", **definition}).input_schema == schema


async def test_null_hints_and_odd_fields_count_as_absent() -> None:
    """D11."""
    odd = {
        "name": "odd",
        "title": None,
        "description": None,
        "icons": "x",
        "outputSchema": None,
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": None, "title": None, "destructiveHint": "yes"},
        "future": {"field": 1},
    }
    found = await listed(tools=[odd, {**named("none")[0], "annotations": None}])
    assert names(found) == ["odd", "none"]
    assert found.warnings == []
    tool = found.tools[0]
    assert (tool.title, tool.description, tool.output_schema) == ("", "", None)
    assert (tool.read_only, tool.destructive, tool.open_world) == (None, None, None)


async def test_hints_title_and_schemas_are_read() -> None:
    """P33, P73."""
    tool = read_tool(
        {
            "name": "delete",
            "description": "Deletes",
            "outputSchema": {"type": "object"},
            "annotations": {
                "title": "Delete it",
                "readOnlyHint": False,
                "destructiveHint": True,
                "openWorldHint": False,
            },
        }
    )
    assert tool.title == "Delete it"
    assert (tool.read_only, tool.destructive, tool.open_world) == (False, True, False)
    assert tool.output_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("item", "label", "reason"),
    [
        (None, "number 2", "it is no object"),
        ("tool", "number 2", "it is no object"),
        ({}, "number 2", "it has no name"),
        ({"name": ""}, "number 2", "it has no name"),
        ({"name": 7}, "number 2", "it has no name"),
        ({"name": "n" * 1001}, "“" + "n" * 99 + "…”", "longer than 1000 characters"),
        ({"name": "a\x00b"}, "“ab”", "characters that cannot be shown"),
        ({"name": "a\ud800"}, "“a\ufffd”", "characters that cannot be shown"),
    ],
)
async def test_a_tool_without_a_usable_name_is_left_out(item: Any, label: str, reason: str) -> None:
    """D08, H16."""
    found = await read_items([*named("a"), item, *named("b")])
    assert names(found) == ["a", "b"]
    assert found.warnings == [f"Tool {label} is left out: {found.warnings[0].partition(': ')[2]}"]
    assert reason in found.warnings[0]


@pytest.mark.parametrize("name", ["catalog.get", "a/b", "New Tool", "überprüfen", "x" * 129])
async def test_names_of_any_characters_are_kept_as_they_are(name: str) -> None:
    """D04: the server is called by them."""
    assert names(await read_items(named(name))) == [name]


async def test_a_name_listed_twice_counts_once() -> None:
    found = await read_items([*named("a", "b"), {"name": "a", "description": "second"}])
    assert names(found) == ["a", "b"]
    assert found.tools[0].description == ""
    assert found.warnings == ["Tool “a” is listed twice; the first one counts."]


async def test_tools_beyond_the_limit_are_left_out() -> None:
    found = await read_items(named(*map(str, range(MAX_TOOLS + 5))))
    assert len(found.tools) == MAX_TOOLS
    assert found.warnings == ["The server has more than 512 tools; the rest is left out."]


async def test_definitions_beyond_the_size_limit_are_left_out() -> None:
    found = await read_items(
        [{"name": str(number), "description": "x" * 1024 * 1024} for number in range(10)]
    )
    assert len(found.tools) == 7
    assert "larger than 8 MiB" in found.warnings[0]


async def test_a_flood_of_bad_tools_makes_no_flood_of_warnings() -> None:
    found = await read_items([None] * 1000)
    assert len(found.warnings) == 51
    assert found.warnings[-1] == "There are more warnings of this kind."


@pytest.mark.parametrize("tools", [None, {}, "tools", 5])
async def test_an_answer_without_a_list_gives_no_tools_and_a_warning(tools: Any) -> None:
    found = await read_items(tools)
    assert found == ToolList([], ["Page 1 of the server's answer holds no list of tools."])


async def test_descriptions_are_cleaned() -> None:
    """H16."""
    found = await read_items([{"name": "a", "description": "x\x00\x1b[1my\ud800"}])
    assert found.tools[0].description == "xy\ufffd"


@pytest.mark.parametrize("capabilities", [{}, {"resources": {}}])
async def test_a_server_that_declares_no_tools_is_not_asked(capabilities: Any) -> None:
    """D17."""
    async with FakeHttp(Behaviour(capabilities=capabilities)) as server:
        async with connect(http_settings(server.url)) as connection:
            found = await connection.list_tools()
        assert "tools/list" not in server.rpcs()
    assert found == ToolList([], ["The server declares that it has no tools."])


async def test_a_server_that_does_not_know_the_request_has_no_tools() -> None:
    """D17."""
    found = await listed(list_error=-32601)
    assert found == ToolList([], ["The server does not know the request for its tools."])


async def test_any_other_error_is_one() -> None:
    """D17."""
    with pytest.raises(ServerError, match="No list today"):
        await listed(list_error=-32603)


async def test_a_long_list_is_read_fast() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20)}}
    items = [{"name": f"tool{n}", "inputSchema": schema} for n in range(500)]
    start = time.monotonic()
    found = await read_items(json.loads(json.dumps(items)))
    assert len(found.tools) == 500
    assert time.monotonic() - start < 2
