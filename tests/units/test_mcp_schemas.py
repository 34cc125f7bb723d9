"""Schemas that servers write: which can be used, and how they are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servers.limits import STANDARD
from servers.mcp import schemas
from servers.mcp.schemas import ReadSchema, check_arguments, check_output, fault_of, read_schema

Schema = dict[str, Any]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "objekt"}, 'has a fault at type: "objekt" is no type'),
        ({"type": 5}, "has a fault at type: 5 is no type"),
        ({"required": True}, "has a fault at required: true is not of type array"),
        ({"properties": {"a": {"minimum": "1"}}}, "has a fault at properties.a.minimum"),
        ({"properties": {"a": 5}}, "has a fault at properties.a: 5 is not of type boolean or"),
        ({"anyOf": []}, "has a fault at anyOf: [] is not allowed there"),
        ({"patternProperties": {"([": {}}}, 'a pattern at patternProperties["(["] that cannot be'),
        ({"$ref": "http://10.0.0.1/a.json#/b"}, "refers to http://10.0.0.1/a.json, which is not"),
        ({"$ref": "file:///etc/passwd"}, "refers to file:///etc/passwd, which is not fetched"),
        ({"items": {"$ref": "other.json"}}, "refers to other.json, which is not fetched"),
        ({"$dynamicRef": "http://h/a"}, "refers to http://h/a, which is not fetched"),
        ({"$ref": "#/$defs/a"}, "refers to #/$defs/a, which it does not hold"),
        ({"$ref": "#a"}, "refers to #a, which it does not hold"),
        ({"$schema": "https://example.com/mine"}, "a dialect that is not supported: https://exa"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "a dialect that is not supported"),
        ({"maximum": float("inf")}, "is no JSON: "),
        ({"pattern": "^(?=a)", "minimum": "x"}, "has a fault at minimum"),
        ({"pattern": "([", "allOf": [{"pattern": "(["}, 5]}, "has a fault at allOf[1]"),
        ({"$defs": {str(n): {"$ref": "#"} for n in range(5001)}}, "more than 5000 references"),
        ({"allOf": [{"pattern": f"a{n}"} for n in range(501)]}, "more than 500 patterns"),
        ({"patternProperties": {f"a{n}": {} for n in range(501)}}, "more than 500 patterns"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema: Schema, words: str) -> None:
    """D08."""
    assert words in fault_of(schema, STANDARD)


def test_a_reference_to_a_file_is_not_followed(tmp_path: Path) -> None:
    """Design, "JSON Schema": references inside the document only."""
    pipe = tmp_path / "schema.json"
    os.mkfifo(pipe)  # whoever opens it waits for ever
    for reference in (str(pipe), f"file://{pipe}"):
        assert "is not fetched" in fault_of({"$ref": reference}, STANDARD)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}, {}]},
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "a"},
        {"items": [{"type": "string"}]},  # draft 7, without saying so
        {"minimum": 1, "exclusiveMinimum": True},  # draft 4, without saying so
        {"definitions": {"a": {}}, "$ref": "#/definitions/a"},
        {"$id": "https://h/tool", "$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"$ref": "#a", "$defs": {"x": {"$anchor": "a"}}},
        {"properties": {"a": {"type": "string", "nullable": True, "format": "made-up"}}},
        {"properties": {"pattern": {"type": "string"}, "$ref": {"type": "string"}}},
        {"properties": {"a": {"pattern": "(["}}},
        {"properties": {"a": {"allOf": [{"pattern": "(["}, True]}}},
        {"properties": {"a": {"pattern": r"^(?=.*\d)(?!x)"}}},
        {"properties": {"a": {"pattern": r"^[\w.-]{1,255}$"}}},
        {"properties": {"a": {"pattern": r"(\p{L}{1,99}){1,99}"}}},  # too large to be compiled
    ],
)
def test_schemas_that_can_be_meant_are_used(schema: Schema) -> None:
    """D08: older dialects, foreign keywords and patterns of other languages."""
    assert fault_of(schema, STANDARD) == ""
    assert check_arguments(schema, {}, STANDARD) == ""


def test_older_dialects_are_checked_by_their_own_rules() -> None:
    items = {"properties": {"a": {"items": [{"type": "string"}]}}}
    assert "a[0] must be of type string" in check_arguments(items, {"a": [1]}, STANDARD)
    number = {"properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}}
    assert "a is less than or equal to" in check_arguments(number, {"a": 1}, STANDARD)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\d+$", "12", "a"),
        (r"^(?=.*\d)[a-z\d]+$", "a1", "ab"),
        (r"^(a|b)\1$", "aa", "ab"),
        (r"^\p{L}+$", "üä", "1"),
    ],
)
def test_patterns_of_either_engine_are_checked(pattern: str, good: str, bad: str) -> None:
    schema = {"properties": {"a": {"pattern": pattern}}}
    assert check_arguments(schema, {"a": good}, STANDARD) == ""
    assert "a does not match the pattern" in check_arguments(schema, {"a": bad}, STANDARD)


def test_a_pattern_that_cannot_be_read_loses_only_its_own_check() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": r"\h\Z"}, "b": {"pattern": "^x"}}}
    assert check_arguments(schema, {"a": "anything"}, STANDARD) == ""
    assert "a must be of type string" in check_arguments(schema, {"a": 1}, STANDARD)
    assert "b does not match" in check_arguments(schema, {"b": "y"}, STANDARD)


def test_formats_are_left_to_the_server() -> None:
    schema = {"properties": {"a": {"format": "date"}}}
    assert check_arguments(schema, {"a": "tomorrow"}, STANDARD) == ""


def test_a_result_without_structured_content_is_warned_about() -> None:
    """D14 (a)."""
    assert check_output({"type": "object"}, None) == (
        "The tool announces structured content, but the result holds none."
    )


def test_a_schema_that_is_no_json_refuses_nothing() -> None:
    """Such a tool is not listed; a schema may come from elsewhere."""
    assert check_arguments({"maximum": float("nan")}, {}, STANDARD) == ""
    assert check_output({"maximum": float("nan")}, {}).startswith("The result was not checked")


def test_what_is_clean_is_kept_as_it_is_and_the_rest_is_cleaned() -> None:
    """H16."""
    clean = {"type": "object", "description": 'two\nlines, a \\ and "ä"'}
    assert read_schema(clean, STANDARD).schema is clean
    for ugly in ("a\x00b", "a\x1b[1mb", "a\u202eb", "a\x7fb"):
        assert read_schema({"description": ugly}, STANDARD).schema == {"description": "ab"}
    assert read_schema({"a\ud800": "\ud800"}, STANDARD).schema == {"a\ufffd": "\ufffd"}


def test_a_schema_deeper_than_what_can_be_kept_is_refused_whatever_the_limit() -> None:
    """Half a schema would let everything below the cut pass."""
    schema: Schema = {"type": "string"}
    for _ in range(198):
        schema = {"not": schema}
    very_deep = replace(STANDARD, depth=512)
    size = len(json.dumps(schema, separators=(",", ":")))
    assert read_schema(schema, very_deep) == ReadSchema(schema, "", size)
    deeper = {"not": {"not": schema}}
    found = read_schema(deeper, very_deep)
    assert (found.schema, found.fault) == (None, "is nested deeper than 200 levels (max_depth)")


def test_the_size_of_a_schema_is_in_bytes() -> None:
    assert read_schema({"a": "ä"}, STANDARD).size == len('{"a":"ä"}'.encode())


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which schemas are compiled, with a cache of its own that holds three."""
    seen: list[str] = []
    real: Callable[[Schema, str], Any] = schemas._compile

    def counting(schema: Schema, text: str) -> Any:
        seen.append(text)
        return real(schema, text)

    monkeypatch.setattr(schemas, "_compile", counting)
    monkeypatch.setattr(schemas, "_cache", schemas._Cache())
    monkeypatch.setattr(schemas, "CACHED_SCHEMAS", 3)
    return seen


def test_schemas_in_use_are_compiled_once_and_only_some_are_kept(compiled: list[str]) -> None:
    def check(number: int) -> None:
        assert check_arguments({"maxProperties": number}, {}, STANDARD) == ""

    for number in (1, 1, 2, 3, 1):
        check(number)
    assert len(compiled) == 3
    check(4)  # in place of 2, which was used longest ago
    check(1)
    check(3)
    assert len(compiled) == 4
    check(2)
    assert len(compiled) == 5


def test_large_schemas_do_not_fill_the_memory(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "CACHED_BYTES", 200)
    small, large = {"description": "x" * 150}, {"description": "x" * 300}
    for schema in (small, large, large, small, {"description": "y" * 150}, small):
        check_arguments(schema, {}, STANDARD)
    assert [len(text) > 250 for text in compiled] == [False, True, True, False, False]


def test_runs_in_many_threads_share_what_is_compiled(compiled: list[str]) -> None:
    def check(number: int) -> str:
        schema = {"properties": {"a": {"maximum": number % 5}}}
        return check_arguments(schema, {"a": number % 5 + 1}, STANDARD)

    with ThreadPoolExecutor(8) as pool:
        faults = list(pool.map(check, range(200)))
    assert all(f"maximum of {number % 5}" in fault for number, fault in enumerate(faults))
