"""Schemas that servers write, and values that must match them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.limits import KIB, STANDARD, STRICT
from servers.mcp import schemas
from servers.mcp.schema_cost import Price, measure
from servers.mcp.schema_words import bytes_in_words, path_of
from servers.mcp.schemas import check_arguments, check_output, fault_of, read_schema

Schema = dict[str, Any]
TOO_LONG = "The result was not checked: its output schema would take too long to check."

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
objects = st.dictionaries(st.text(), values, max_size=5)
KEYWORDS = [
    "$anchor",
    "$defs",
    "$dynamicRef",
    "$id",
    "$ref",
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "else",
    "enum",
    "exclusiveMinimum",
    "if",
    "items",
    "maxItems",
    "maximum",
    "minLength",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
    "unevaluatedProperties",
    "uniqueItems",
]
# Anything under the names that mean something.
wild_schemas = st.recursive(
    scalars | st.sampled_from(["#", "#/$defs/a", "#a", "object", "string", "^a", "(["]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYWORDS) | st.sampled_from("ab"), inner, max_size=4)
    ),
    max_leaves=20,
)
wild_objects = st.dictionaries(st.sampled_from(KEYWORDS), wild_schemas, max_size=5)

names = st.sampled_from("abc")
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("xyz", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
# Such as people write, with references to the root and to one definition.
plain_schemas = st.recursive(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": ["integer", "null"]},
            {"enum": ["x", 1, None]},
            {"minimum": 2},
            {"maxLength": 1},
            {"pattern": "^x"},
            {"$ref": "#/$defs/d"},
            {"properties": {"a": {"$ref": "#"}}},
            {"items": {"$ref": "#"}},
            True,
            False,
        ]
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda found, needed, more: {
                "type": "object",
                "properties": found,
                "required": needed,
                "additionalProperties": more,
            },
            st.dictionaries(names, inner, max_size=3),
            st.lists(names, max_size=1),
            inner,
        ),
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
        st.builds(lambda one, two: {"allOf": [one, two]}, inner, inner),
        st.builds(lambda one, two: {"oneOf": [one, two]}, inner, inner),
        st.builds(lambda one: {"not": one}, inner),
        st.builds(lambda one, two: {"if": one, "then": two}, inner, inner),
    ),
    max_leaves=8,
)


@given(wild_objects)
def test_nothing_that_a_server_writes_as_a_schema_breaks_the_reader(schema: Schema) -> None:
    """D08: it can be used, or there are words for why not."""
    found = read_schema(schema, STANDARD)
    assert found.fault == fault_of(schema, STANDARD)
    assert isinstance(check_arguments(schema, {"a": 1}, STANDARD), str)
    assert isinstance(check_output(found.schema or {}, {"a": [1]}), str)


@given(plain_schemas, objects)
def test_any_arguments_get_an_answer(schema: Any, arguments: dict[str, Any]) -> None:
    """C17: also such as cannot be stored."""
    schema = {"allOf": [schema], "$defs": {"d": {"type": "string"}}}
    assert isinstance(check_arguments(schema, arguments, STANDARD), str)


@given(plain_schemas, st.dictionaries(names, plain_values, max_size=3))
def test_what_is_refused_is_what_the_schema_refuses(schema: Any, value: dict[str, Any]) -> None:
    """The bound on the work skips no check that people would miss."""
    schema = {"allOf": [schema], "$defs": {"d": {"type": "integer"}}}
    right = jsonschema_rs.is_valid(schema, value)
    assert fault_of(schema, STANDARD) == ""
    assert (check_arguments(schema, value, STANDARD) == "") == right
    assert (check_output(schema, value) == "") == right


@given(st.text("qwrtz", min_size=6), plain_schemas)
def test_no_fault_ever_quotes_a_value(secret: str, schema: Any) -> None:
    """E01: arguments may hold secrets."""
    tight = {"allOf": [schema, {"additionalProperties": {"maxLength": 3}}]}
    tight["$defs"] = {"d": {"const": "x"}}  # type: ignore[assignment]
    fault = check_arguments(tight, {"a": secret, "b": [secret]}, STANDARD)
    assert fault
    assert secret not in fault


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
    deep_one = fault_of({"default": deep(400)}, replace(STANDARD, depth=512))
    assert deep_one.startswith("cannot be read: ")


def test_a_schema_that_is_no_json_refuses_nothing() -> None:
    """Such a tool is not listed; a schema may come from elsewhere."""
    assert check_arguments({"maximum": float("nan")}, {}, STANDARD) == ""
    assert check_output({"maximum": float("nan")}, {}).startswith("The result was not checked")


def test_lone_surrogates_are_checked_like_other_text() -> None:
    """C17."""
    schema = {"properties": {"a": {"type": "string", "maxLength": 1}}}
    assert check_arguments(schema, {"a": "\ud800"}, STANDARD) == ""
    assert "a is longer than" in check_arguments(schema, {"a": "\ud800\ud800"}, STANDARD)


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


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|aa)+$", r"^(a*)*b$", r"^(a*)*\1b$"])
def test_a_pattern_that_explodes_is_given_up(pattern: str) -> None:
    """Design, "JSON Schema": `^(a+)+$` takes others seconds, or for ever."""
    schema = {"properties": {"a": {"items": {"pattern": pattern}}}}
    for value in ("a" * 50_000 + "!", "a" * 30 + "!"):
        assert isinstance(check_arguments(schema, {"a": [value] * 20}, STANDARD), str)


def doubling(levels: int) -> Schema:
    """Each definition asks for the next one twice."""
    definitions: Schema = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "integer"}}}


def forking() -> Schema:
    """Both alternatives look at the same member again."""
    again = {"properties": {"a": {"$ref": "#"}}}
    return {"anyOf": [{**again, "required": ["x"]}, {**again, "required": ["y"]}]}


def second_looks(levels: int) -> Schema:
    schema: Schema = {"type": "object"}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


def all_to_all(word: str, count: int) -> Schema:
    """Each definition leads to all of them, without going deeper into the value."""
    ways = [{"$ref": f"#/$defs/d{n}"} for n in range(count)]
    return {"$ref": "#/$defs/d0", "$defs": {f"d{n}": {word: ways} for n in range(count)}}


def dynamic() -> Schema:
    again = {"properties": {"a": {"$dynamicRef": "#n"}}}
    return {"$dynamicAnchor": "n", "anyOf": [{**again, "not": {}}, {**again, "not": {}}]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling(60), 1),
        (forking(), deep(60)),
        (dynamic(), deep(60)),
        (second_looks(20), {}),
        ({"$id": "http://h/a", **doubling(60), "$ref": "http://h/a#/$defs/d0"}, 1),
        ({"$ref": "http://h/b", "$defs": {"a": {"$id": "http://h/b", **doubling(60)}}}, 1),
        (all_to_all("allOf", 8), "a"),
        (all_to_all("anyOf", 8), "a"),
        (all_to_all("oneOf", 8), "a"),
        ({"items": {"allOf": [{"minimum": n} for n in range(5000)]}}, [9999] * 10_000),
        ({"items": {"enum": list(range(5000))}}, [-1] * 10_000),
        (
            {"items": {"allOf": [{"pattern": f"{n}"} for n in range(400)]}},
            ["x" * 10_000] * 200,
        ),
    ],
)
def test_a_schema_that_takes_too_long_is_not_checked(schema: Schema, value: Any) -> None:
    """F06: the work is counted first; nothing can interrupt it later."""
    assert fault_of(schema, STANDARD) == ""
    assert check_output(schema, value) == TOO_LONG
    assert check_arguments(schema, {"a": value}, STANDARD) == ""


def test_data_that_looks_like_a_schema_costs_no_check() -> None:
    """Examples hold identifiers, too."""
    schema = {
        "properties": {"a": {"$ref": "#/$defs/n"}, "default": {"type": "string"}},
        "examples": [{"id": "x", "$id": "y", "$anchor": "z"}, {"$anchor": "z"}],
        "default": {"id": "x"},
        "$defs": {"n": {"type": "integer"}, "a/b": {}, "list": {"anyOf": [{"type": "null"}]}},
        "$id": "http://h/tool",
        "items": {"anyOf": [{"$ref": "#/$defs/list/anyOf/0"}, {"$ref": "#/$defs/a~1b"}]},
    }
    assert check_output(schema, {"a": 1}) == ""
    assert "a must be of type integer" in check_output(schema, {"a": "1"})
    assert "default must be of type string" in check_output(schema, {"default": 1})


def test_what_is_nested_is_checked_down_to_the_bottom() -> None:
    """Recursion itself is no excuse."""
    tree = {
        "type": "object",
        "properties": {"a": {"$ref": "#"}, "n": {"type": "integer"}},
        "additionalProperties": False,
    }
    value = deep(60)
    assert check_output(tree, value) == ""
    inner = value
    while "a" in inner:
        inner = inner["a"]
    inner["n"] = "1"
    assert check_output(tree, value).endswith(".n must be of type integer.")


def test_faults_without_end_are_not_spelled_out() -> None:
    """Each error of a validator holds a copy of the value: a million of them fill the memory."""
    texts = {"items": {"type": "string"}}
    fault = check_output(texts, list(range(100_000)))
    assert (
        fault == "The result does not match the tool's output schema: [0] must be of type string."
    )
    fault = check_output(forking(), deep(12))
    assert fault == (
        "The result does not match the tool's output schema: it is too large to say where."
    )


def test_a_result_without_structured_content_is_warned_about() -> None:
    """D14 (a)."""
    assert check_output({"type": "object"}, None) == (
        "The tool announces structured content, but the result holds none."
    )


@pytest.mark.parametrize(
    ("value", "depth", "nodes"),
    [
        (1, 0, 1),
        ({}, 1, 1),
        ([], 1, 1),
        ({"a": 1, "b": [1, {}]}, 3, 5),
        ([[[]]], 3, 3),
    ],
)
def test_depth_counts_containers_and_nodes_count_everything(
    value: Any, depth: int, nodes: int
) -> None:
    """A43."""
    size = measure(value, max_depth=10, max_nodes=10)
    assert (size.depth, size.nodes) == (depth, nodes)


def test_measuring_stops_soon_after_a_limit() -> None:
    assert measure([0] * 1000, max_depth=9, max_nodes=10).depth == 1
    assert measure(deep(1000), max_depth=9, max_nodes=10_000).depth == 10


@given(plain_schemas, plain_values)
def test_the_price_of_a_check_is_at_least_one_step(schema: Any, value: Any) -> None:
    steps = Price({"allOf": [schema], "$defs": {"d": {}}}).steps(value)
    assert steps is None or steps >= 1


def test_what_is_clean_is_kept_as_it_is_and_the_rest_is_cleaned() -> None:
    """H16."""
    clean = {"type": "object", "description": 'two\nlines, a \\ and "ä"'}
    assert read_schema(clean, STANDARD).schema is clean
    for ugly in ("a\x00b", "a\x1b[1mb", "a\u202eb", "a\x7fb"):
        assert read_schema({"description": ugly}, STANDARD).schema == {"description": "ab"}
    assert read_schema({"a\ud800": "\ud800"}, STANDARD).schema == {"a\ufffd": "\ufffd"}
    very_deep = replace(STANDARD, depth=512)
    found = read_schema({"default": deep(300)}, very_deep)
    assert found.schema is not None
    assert "…" in json.dumps(found.schema, ensure_ascii=False)


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
