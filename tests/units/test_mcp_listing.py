"""Lists of tools: pages, limits, and tools that are not as they should be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from servers.limits import KIB, MAX_PAGES, MAX_TOOLS, STANDARD, STRICT, Limits
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


async def read_items(items: Any, limits: Limits = STANDARD) -> ToolList:
    async def fetch(cursor: str | None) -> dict[str, Any]:
        return {"tools": items}

    return await read_pages(fetch, limits)


def names(found: ToolList) -> list[str]:
    return [tool.name for tool in found.tools]


async def test_pages_are_read_to_the_last() -> None:
    """U22, A24."""
    found = await listed(tools=named(*"abcdefg"), page_size=3)
    assert names(found) == list("abcdefg")
    assert found.warnings == []


async def test_a_cursor_that_comes_again_ends_the_list_with_a_warning() -> None:
    """D01."""
    found = await listed(tools=named(*"abc"), page_size=2, cursor="repeat")
    assert names(found) == ["a", "b"]
    assert "a page of tools that was read before" in found.warnings[0]


@pytest.mark.parametrize("way", [(None, "1", "2", "1"), (None, "1", "1"), (None, "", "1", "")])
async def test_cursors_that_go_round_in_circles_end_the_list(way: tuple[str | None, ...]) -> None:
    """D01, D02: every page of the circle is kept, and none is asked for twice."""
    following = dict(pairwise(way))
    asked: list[str | None] = []

    async def fetch(cursor: str | None) -> dict[str, Any]:
        asked.append(cursor)
        return {"tools": named(f"after {cursor}"), "nextCursor": following[cursor]}

    found = await read_pages(fetch)
    assert asked == list(way[:-1])
    assert names(found) == [f"after {cursor}" for cursor in asked]
    assert "read before" in found.warnings[0]


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
        f"The server has more than {MAX_PAGES} pages of tools (max_tool_pages); "
        "the rest is left out."
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
        ({"type": "object", "properties": "a"}, "properties of its input schema are no object"),
        ("object", "its input schema is no object"),
        ([], "its input schema is no object"),
        (True, "its input schema is no object"),
        ({"$ref": "#/$defs/a"}, "its input schema refers to #/$defs/a, which it does not hold"),
        (
            {"properties": {"a": {"$ref": "http://10.0.0.1/a.json"}}},
            "its input schema refers to http://10.0.0.1/a.json, which is not fetched",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "objekt"}}},
            'its input schema has a fault at properties.a.type: "objekt" is no type',
        ),
        ({"anyOf": {"type": "object"}}, "its input schema has a fault at anyOf"),
        ({"type": "object", "required": "a"}, "its input schema has a fault at required"),
        (
            {"$schema": "http://json-schema.org/draft-03/schema#"},
            "a dialect that is not supported: http://json-schema.org/draft-03/schema#",
        ),
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
        (
            {"inputSchema": {"type": "object", "properties": None, "required": None}},
            {"type": "object"},
        ),
        ({"inputSchema": {"default": None}}, {"default": None}),
    ],
)
def test_schemas_that_can_be_meant_are_accepted(
    definition: dict[str, Any], schema: dict[str, Any]
) -> None:
    """D08; a missing schema is an empty object schema."""
    found = read_tool({"name": "a", **definition})
    assert (found.tool.input_schema, found.note) == (schema, "")


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


@pytest.mark.parametrize(
    "annotations", [None, [], "read-only", 5, {"readOnlyHint": 1}, {"readOnlyHint": "true"}]
)
def test_hints_of_a_wrong_kind_count_as_absent(annotations: Any) -> None:
    """D11, P73: nothing but a plain true makes a tool read-only."""
    found = read_tool({"name": "a", "title": 5, "description": {}, "annotations": annotations})
    assert found.note == ""
    assert (found.tool.title, found.tool.description, found.tool.read_only) == ("", "", None)


async def test_hints_title_and_schemas_are_read() -> None:
    """P33, P73."""
    found = read_tool(
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
    tool = found.tool
    assert found.note == ""
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
        ({"name": "名" * 1000}, "“" + "名" * 99 + "…”", "longer than 2500 bytes"),
        ({"name": "a\x00b"}, "“ab”", "characters that cannot be shown"),
        ({"name": "a\ud800"}, "“a\ufffd”", "characters that cannot be shown"),
        ({"name": "a\u202eb"}, "“ab”", "characters that cannot be shown"),
        ({"name": "a\nb"}, "“a\nb”", "characters that cannot be shown"),
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
    assert found.warnings == [
        "The server has more than 512 tools (max_tools); the rest is left out."
    ]


async def test_definitions_beyond_the_size_limit_are_left_out() -> None:
    found = await read_items(
        [{"name": str(number), "description": "x" * 1024 * 1024} for number in range(10)]
    )
    assert len(found.tools) == 7
    assert "larger than 8 MiB (max_definition_bytes)" in found.warnings[0]


async def test_a_flood_of_bad_tools_makes_no_flood_of_warnings() -> None:
    found = await read_items([None] * 1000)
    assert len(found.warnings) == 51
    assert found.warnings[-1] == "There are more warnings of this kind."


async def test_pages_without_lists_make_no_flood_of_warnings() -> None:
    """D01."""
    pages = iter(range(1, 200))

    async def fetch(cursor: str | None) -> dict[str, Any]:
        return {"tools": None, "nextCursor": str(next(pages))}

    found = await read_pages(fetch)
    assert len(found.warnings) == 52
    assert "max_tool_pages" in found.warnings[-1]


@pytest.mark.parametrize(
    ("schema", "note"),
    [
        ("x", "its output schema is no object and is ignored"),
        ([], "its output schema is no object and is ignored"),
        (
            {"type": "objekt"},
            'its output schema has a fault at type: "objekt" is no type; results are not checked',
        ),
        (
            {"$ref": "http://h/a"},
            "its output schema refers to http://h/a, which is not fetched; results are not checked",
        ),
    ],
)
async def test_a_broken_output_schema_costs_a_warning_and_not_the_tool(
    schema: Any, note: str
) -> None:
    """D14 (d)."""
    found = await read_items([{"name": "a", "outputSchema": schema}])
    assert names(found) == ["a"]
    assert found.warnings == [f"Tool “a”: {note}."]


def large_schema(size: int) -> dict[str, Any]:
    return {"type": "object", "description": "x" * size}


def deep_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    while depth > 1:
        schema = {"type": "object", "properties": {"a": schema}}
        depth -= 2
    return schema


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        (
            large_schema(16 * KIB - 100),
            large_schema(16 * KIB),
            "is larger than 16 KiB (max_schema_bytes)",
        ),
        (deep_schema(31), deep_schema(33), "is nested deeper than 32 levels (max_depth)"),
        (
            {"enum": list(range(900))},
            {"enum": list(range(1100))},
            "holds more than 1000 values (max_nodes)",
        ),
    ],
)
async def test_a_schema_over_a_strict_limit_costs_its_tool_alone(
    good: dict[str, Any], bad: dict[str, Any], reason: str
) -> None:
    """A42, A43: the profile for servers of strangers."""
    items = [{"name": "good", "inputSchema": good}, {"name": "bad", "inputSchema": bad}]
    limits = replace(STRICT, nodes=1000)
    found = await read_items([*items, *named("last")], limits)
    assert names(found) == ["good", "last"]
    assert found.warnings == [f"Tool “bad” is left out: its input schema {reason}."]
    found = await read_items([{"name": "bad", "outputSchema": bad}], limits)
    assert found.tools[0].output_schema is None
    assert found.warnings == [f"Tool “bad”: its output schema {reason}; it is ignored."]


async def test_the_strict_profile_takes_64_tools_and_20_pages() -> None:
    """A39, A40: more are left out, and the server is not failed."""
    found = await read_items(named(*map(str, range(65))), STRICT)
    assert len(found.tools) == 64
    assert found.warnings == [
        "The server has more than 64 tools (max_tools); the rest is left out."
    ]
    asked: list[str | None] = []

    async def fetch(cursor: str | None) -> dict[str, Any]:
        asked.append(cursor)
        return {"tools": named(f"t{len(asked)}"), "nextCursor": str(len(asked))}

    found = await read_pages(fetch, STRICT)
    assert (len(asked), len(found.tools)) == (20, 20)
    assert "more than 20 pages of tools (max_tool_pages)" in found.warnings[0]


async def test_the_limit_of_all_definitions_is_the_servers_own() -> None:
    limits = replace(STANDARD, definition_bytes=2 * KIB)
    found = await read_items([{"name": n, "description": "x" * 900} for n in "abc"], limits)
    assert names(found) == ["a", "b"]
    assert "larger than 2 KiB (max_definition_bytes)" in found.warnings[0]


async def test_a_long_list_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """F01: many tools of one server hold up no other."""
    monkeypatch.setattr("servers.mcp.listing.BREATH", 0.0)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await read_items(named(*map(str, range(500))))
    task.cancel()
    assert turns >= 10


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


async def test_thousands_of_tools_are_listed_with_one_look_at_each() -> None:
    """D01: a page that comes again and again is not read again and again."""
    looks = 0

    class Item(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal looks
            looks += key == "inputSchema"
            return super().get(key, default)

    page = [Item(item) for item in named(*map(str, range(100)))]
    cursors = iter(map(str, range(1, 1000)))

    async def fetch(cursor: str | None) -> dict[str, Any]:
        return {"tools": page, "nextCursor": next(cursors)}

    found = await read_pages(fetch)
    assert len(found.tools) == looks == 100
