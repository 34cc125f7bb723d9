"""The work that a schema can cause, counted before it is done."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.limits import STANDARD
from servers.mcp.schema_cost import Price, measure
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


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|aa)+$", r"^(a*)*b$", r"^(a*)*\1b$"])
def test_a_pattern_that_explodes_is_given_up(pattern: str) -> None:
    """Design, "JSON Schema": `^(a+)+$` takes others seconds, or for ever."""
    schema = {"properties": {"a": {"items": {"pattern": pattern}}}}
    for value in ("a" * 50_000 + "!", "a" * 30 + "!"):
        assert isinstance(check_arguments(schema, {"a": [value] * 20}, STANDARD), str)


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


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
