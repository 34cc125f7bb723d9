"""Faults of arguments and schemas in words that people read."""

from __future__ import annotations

from typing import Any

import pytest

from servers.limits import KIB, STANDARD, STRICT
from servers.mcp.schema_words import bytes_in_words, path_of
from servers.mcp.schemas import check_arguments

Schema = dict[str, Any]


TOOL = {
    "type": "object",
    "required": ["message"],
    "properties": {
        "message": {"type": "string", "minLength": 2},
        "count": {"type": "integer", "maximum": 10},
        "mode": {"enum": ["fast", "slow"]},
        "since": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "where": {"oneOf": [{"required": ["city"]}, {"required": ["zip"]}], "type": "object"},
        "rows": {
            "type": "array",
            "items": {"type": "object", "required": ["id"], "properties": {"a b": {"const": 1}}},
        },
        "code": {"pattern": "^[A-Z]+$"},
        "tags": {"uniqueItems": True, "contains": {"const": "x"}},
        "never": False,
        "keys": {"propertyNames": {"maxLength": 2}},
        "even": {"multipleOf": 2},
        "void": {"not": {"type": "string"}},
        "near": {"anyOf": [{"properties": {"x": {"type": "string"}}}, {"type": "null"}]},
        "pair": {"prefixItems": [{}], "unevaluatedItems": False},
        "both": {"dependentRequired": {"x": ["y"]}},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "message is missing"),
        ({"message": 5}, "message must be of type string"),
        ({"message": "h"}, "message is shorter than 2 characters"),
        ({"count": "1"}, "count must be of type integer"),
        ({"count": 11}, "count is greater than the maximum of 10"),
        ({"mode": "quick"}, 'mode must be one of "fast", "slow"'),
        ({"since": 5}, "since must be of type string or null"),
        ({"where": {}}, "where has none of the forms that the schema allows"),
        (
            {"where": {"city": 1, "zip": 1}},
            "where has more than one of the forms that exclude each other",
        ),
        ({"rows": {}}, "rows must be of type array"),
        ({"rows": [{"id": 1}, {}]}, "rows[1].id is missing"),
        ({"rows": [{"id": 1, "a b": 2}]}, 'rows[0]["a b"] must be 1'),
        ({"code": "x"}, "code does not match the pattern ^[A-Z]+$"),
        ({"tags": ["x", "x"]}, "tags has non-unique elements"),
        ({"tags": []}, "tags lacks an item that the schema asks for"),
        ({"never": 1}, "never is not allowed"),
        ({"keys": {"long": 1}}, "keys has a property with a name that is not allowed"),
        ({"even": 3}, "even is not a multiple of 2"),
        ({"void": "x"}, "void is not allowed"),
        ({"near": {"x": 1}}, "near has none of the forms that the schema allows"),
        ({"pair": [1, "secret"]}, "pair breaks the rule unevaluatedItems"),
        ({"both": {"x": 1}}, "both.y is missing"),
        ({"messag": 1}, "messag is not known"),
        ({"x": 1, "y": 2}, "x, y are not known"),
    ],
)
def test_a_fault_names_its_path_and_the_rule(arguments: dict[str, Any], words: str) -> None:
    arguments = arguments if not arguments else {"message": "hi", **arguments}
    fault = check_arguments(TOOL, arguments, STANDARD)
    assert fault == f"The arguments do not match the tool's input schema: {words}."


def test_only_the_first_faults_are_told() -> None:
    many = {"items": {"type": "string"}}
    fault = check_arguments({"properties": {"a": many}}, {"a": list(range(100))}, STANDARD)
    assert fault.count("must be of type string") == 5
    assert fault.endswith("; and more.")
    assert len(fault) < 1000


def test_the_words_of_a_schema_are_cleaned_and_cut() -> None:
    """A28, H16: they are the server's own."""
    schema = {"properties": {"a\x1b[1m": {"enum": ["e\u202e" * 1000]}}}
    fault = check_arguments(schema, {"a\x1b[1m": 1}, STANDARD)
    assert "\x1b" not in fault
    assert "\u202e" not in fault
    assert len(fault) < 500


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (
            {"a": "x" * (64 * KIB - 8)},
            {"a": "x" * (64 * KIB - 7)},
            "is larger than 64 KiB (max_argument_bytes)",
        ),
        ({"a": "ä" * 32_000}, {"a": "ä" * 33_000}, "is larger than 64 KiB (max_argument_bytes)"),
        (deep(32), deep(33), "is nested deeper than 32 levels (max_depth)"),
        (
            {"a": [0] * 9998},
            {"a": [0] * 9999},
            "holds more than 10000 values (max_nodes)",
        ),
    ],
)
def test_arguments_over_a_strict_limit_are_refused(
    good: dict[str, Any], bad: dict[str, Any], words: str
) -> None:
    """A43: 64 KiB, depth 32, 10,000 nodes."""
    assert check_arguments({}, good, STRICT) == ""
    assert check_arguments({}, bad, STRICT) == f"The arguments cannot be sent: their JSON {words}."
    assert check_arguments({}, bad, STANDARD) == ""


@pytest.mark.parametrize(
    "arguments", [{"a": {1, 2}}, {"a": float("nan")}, {"a": float("inf")}, {"a": b"x"}, {(1,): 2}]
)
def test_arguments_that_are_no_json_are_refused(arguments: dict[str, Any]) -> None:
    fault = check_arguments({}, arguments, STANDARD)
    assert fault.startswith("The arguments cannot be sent as JSON: ")


def test_what_the_check_cannot_read_is_left_to_the_server() -> None:
    schema = {"properties": {"a": {"maximum": 5}}}
    assert check_arguments(schema, {1: 2}, STANDARD) == ""  # type: ignore[dict-item]


def test_lone_surrogates_are_checked_like_other_text() -> None:
    """C17."""
    schema = {"properties": {"a": {"type": "string", "maxLength": 1}}}
    assert check_arguments(schema, {"a": "\ud800"}, STANDARD) == ""
    assert "a is longer than" in check_arguments(schema, {"a": "\ud800\ud800"}, STANDARD)


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1000, "1000 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**24, "16 MiB")],
)
def test_sizes_are_written_as_people_write_them(count: int, words: str) -> None:
    assert bytes_in_words(count) == words


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ([], "the whole value"),
        (["a", 0, "b"], "a[0].b"),
        ([0], "[0]"),
        (["a.b", "c"], '["a.b"].c'),
        (["$ref", "x-y"], "$ref.x-y"),
    ],
)
def test_paths_are_written_without_doubt(path: list[str | int], words: str) -> None:
    assert path_of(path) == words
