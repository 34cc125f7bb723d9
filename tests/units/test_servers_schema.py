"""A tool's schema as rows; no database."""

from __future__ import annotations

from typing import Any

import pytest

from servers.schema import MAX_ROWS, parameters, type_words


def test_properties_become_rows_with_nested_ones_after_their_parent() -> None:
    schema = {
        "type": "object",
        "required": ["filter"],
        "properties": {
            "filter": {
                "type": "object",
                "properties": {"since": {"type": "string", "description": "A date"}},
            },
            "ids": {"type": "array", "items": {"type": "integer"}, "default": [1]},
            "mode": {"enum": ["a", "b"]},
        },
    }
    rows = parameters(schema)
    assert [row.path for row in rows] == ["filter", "filter.since", "ids", "mode"]
    assert rows[0].required
    assert rows[1].description == "A date"
    assert (rows[2].type, rows[2].default) == ("list of integer", "[1]")
    assert (rows[3].type, rows[3].choices) == ("any", '"a", "b"')


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        "object",
        {},
        {"type": "objekt"},
        {"properties": []},
        {"properties": {"a": None}},
        {"properties": {"a": {"type": ["string", "null"], "enum": None, "items": []}}},
        {"properties": {"a": {"$ref": "#/nowhere", "description": 3, "required": 1}}},
    ],
)
def test_an_odd_schema_is_no_error(schema: Any) -> None:
    """D08."""
    parameters(schema)


def test_what_is_shown_of_a_huge_schema_is_bounded() -> None:
    """I17."""
    deep: dict[str, Any] = {}
    for _ in range(50):
        deep = {"properties": {"a": deep}}
    assert len(parameters(deep)) == 4
    wide = {"properties": {str(i): {"description": "x" * 5000} for i in range(1000)}}
    rows = parameters(wide)
    assert len(rows) == MAX_ROWS
    assert len(rows[0].description) == 1000


def test_alternatives_are_named() -> None:
    options = [{"type": "string"}, {"type": "null"}]
    assert type_words({"anyOf": options}) == "string or null"
    assert type_words({"type": ["integer", "null"]}) == "integer or null"
