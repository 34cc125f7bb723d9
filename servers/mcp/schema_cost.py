"""What checking a value against a schema may cost, asked before a validator is let loose on it.

Validators run in native code that nothing can interrupt, and sixty lines of `$ref` describe more
steps than there are seconds. A server writes the schema, and for output the value as well. So the
work is counted first; where it cannot be bounded, nobody checks (the server does anyway).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

# About a quarter of a second in native code.
MAX_STEPS: Final = 20_000_000
# About as long in this module.
MAX_VISITS: Final = 50_000
# What one match may cost where a pattern needs an engine that goes back and forth.
BACKTRACKING_STEPS: Final = 50_000
UNIQUE_FACTOR: Final = 16

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME_VALUE: Final = ("not", "if", "then", "else")
_SAME_VALUE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_VALUE_MAPS: Final = ("dependentSchemas", "dependencies")
_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_MEMBER_MAPS: Final = ("properties", "patternProperties")
_ITEMS: Final = ("items", "additionalItems", "unevaluatedItems", "contains")
_ITEM_LISTS: Final = ("prefixItems", "items")
# Validators look at everything beside these again, to see what it has evaluated (measured).
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_UNEVALUATED_FACTOR: Final = 3


@dataclass
class Size:
    """`depth` counts containers inside each other, `nodes` all values."""

    depth: int = 0
    nodes: int = 1


def measure(value: Any, *, max_depth: int, max_nodes: int) -> Size:
    """How large a JSON value is. Stops counting once it is over either limit."""
    size = Size()
    level = [value] if isinstance(value, dict | list | tuple) else []
    while level:
        size.depth += 1
        size.nodes += sum(map(len, level))
        if size.nodes > max_nodes or size.depth > max_depth:
            break
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list | tuple)
        ]
    return size


def _count_characters(value: Any) -> int:
    """Of all texts and keys, about which patterns go."""
    count = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            count += len(item)
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return count


_UNDER_WAY: Final = -1


class _TooMuch(Exception):
    """The work cannot be bounded."""


class Price:
    """The price list of one schema. `backtracking`: its patterns need the slower engine."""

    def __init__(self, schema: Any, *, backtracking: bool = False) -> None:
        self._root = schema
        self._backtracking = backtracking
        self._own: dict[int, int] = {}
        self._places: dict[str, Any] = {}
        self._ambiguous: set[str] = set()
        self._has_references = False
        self.has_alternatives = False
        self._has_patterns = False
        self._survey()
        self._unfolded = self._unfold()

    def steps(self, value: Any) -> int | None:
        """About how many steps checking `value` takes; None where that is too much or unknown."""
        if self._unfolded is not None:
            most = MAX_STEPS // self._unfolded
            size = measure(value, max_depth=1000, max_nodes=most).nodes
            if size <= most and self._has_patterns:
                size += _count_characters(value)
            if size <= most and not self._backtracking:
                return self._unfolded * size
        try:
            steps = _Walk(self).steps(self._root, value)
        except (_TooMuch, RecursionError):
            return None
        return steps if steps <= MAX_STEPS else None

    def own_steps(self, schema: dict[str, Any]) -> int:
        """Of the keywords that look at the value alone."""
        known = self._own.get(id(schema))
        if known is None:
            known = 1
            for word in ("enum", "const"):
                if word in schema:
                    known += measure(schema[word], max_depth=1000, max_nodes=MAX_STEPS).nodes
            self._own[id(schema)] = known
        return known

    def match_steps(self, text: str) -> int:
        return BACKTRACKING_STEPS + len(text) if self._backtracking else len(text)

    def targets(self, schema: dict[str, Any]) -> Iterator[Any]:
        """What the schema's references lead to. Raises `_TooMuch` where that is not plain."""
        for word in _REFERENCES:
            reference = schema.get(word)
            if not isinstance(reference, str):
                continue
            yield self._resolve(reference)

    def insist_on_plain(self, schema: dict[str, Any]) -> None:
        """Raises `_TooMuch` where what `#` means depends on the place."""
        if self._has_references and schema is not self._root and _has_address(schema):
            raise _TooMuch

    def _resolve(self, reference: str) -> Any:
        if isinstance(self._root, dict):
            own = self._root.get("$id")
            if isinstance(own, str) and own and reference.startswith(own.rstrip("#")):
                reference = reference[len(own.rstrip("#")) :] or "#"
        if reference in self._ambiguous:
            raise _TooMuch
        if reference in self._places:
            return self._places[reference]
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
            raise _TooMuch
        found = self._root
        for part in reference[2:].split("/"):
            found = _step(found, part)
            if isinstance(found, dict):
                self.insist_on_plain(found)
        return found

    def _survey(self) -> None:
        """Named places, and what makes the price harder to tell."""
        for item in _objects(self._root):
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(item.get(word), str):
                    name = f"#{item[word]}"
                    if name in self._places:
                        self._ambiguous.add(name)
                    self._places[name] = item
            self._has_references |= any(isinstance(item.get(word), str) for word in _REFERENCES)
            self.has_alternatives |= "anyOf" in item or "oneOf" in item
            self._has_patterns |= "pattern" in item or "patternProperties" in item

    def _unfold(self) -> int | None:
        """The number of steps for one value if every reference were written out; None for
        schemas that contain themselves. Without recursion: chains may be long."""
        sizes: dict[int, int] = {}
        entered: set[int] = set()
        pending: list[tuple[Any, bool]] = [(self._root, False)]
        while pending:
            schema, left = pending.pop()
            key = id(schema)
            if not isinstance(schema, dict):
                sizes[key] = 1
            elif left:
                factor = _factor(schema)
                inner = sum(sizes[id(part)] for part in self._parts(schema))
                sizes[key] = min(self.own_steps(schema) + factor * inner, 2 * MAX_STEPS)
                entered.discard(key)
            elif key in entered:
                return None
            elif key not in sizes:
                entered.add(key)
                pending.append((schema, True))
                try:
                    self.insist_on_plain(schema)
                    pending.extend((part, False) for part in self._parts(schema))
                except _TooMuch:
                    return None
        return sizes[id(self._root)]

    def _parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        yield from self.targets(schema)
        yield from subschemas(schema)


class _Walk:
    """One value against one schema, counted as a validator would go."""

    def __init__(self, price: Price) -> None:
        self._price = price
        self._known: dict[tuple[int, int], int] = {}

    def steps(self, schema: Any, value: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        key = (id(schema), id(value))
        known = self._known.get(key)
        if known == _UNDER_WAY or len(self._known) >= MAX_VISITS:
            # A schema that leads back to itself at the same value: validators try every way round.
            raise _TooMuch
        if known is not None:
            return known
        self._known[key] = _UNDER_WAY
        self._price.insist_on_plain(schema)
        factor = _factor(schema)
        total = self._price.own_steps(schema) + factor * self._same_value(schema, value)
        if isinstance(value, dict):
            total += self._members(schema, value)
        elif isinstance(value, list | tuple):
            total += self._items(schema, value)
        elif isinstance(value, str) and "pattern" in schema:
            total += self._price.match_steps(value)
        self._known[key] = total
        return total

    def _same_value(self, schema: dict[str, Any], value: Any) -> int:
        parts = [*self._price.targets(schema), *_same_value(schema)]
        return sum(self.steps(part, value) for part in parts)

    def _members(self, schema: dict[str, Any], value: dict[str, Any]) -> int:
        properties = _mapping(schema, "properties")
        total = sum(self.steps(properties[key], value[key]) for key in value if key in properties)
        for part in _mapping(schema, "patternProperties").values():
            total += sum(self._price.match_steps(key) for key in value)
            total += sum(self.steps(part, member) for member in value.values())
        for word in _MEMBERS:
            part = schema.get(word)
            if isinstance(part, dict):
                members = value if word == "propertyNames" else value.values()
                total += sum(self.steps(part, member) for member in members)
        return total

    def _items(self, schema: dict[str, Any], value: Any) -> int:
        total = UNIQUE_FACTOR * len(value) if schema.get("uniqueItems") is True else 0
        for word in _ITEM_LISTS:
            parts = schema.get(word)
            if isinstance(parts, list):
                total += sum(map(self.steps, parts, value))
        for word in _ITEMS:
            part = schema.get(word)
            if isinstance(part, dict):
                total += sum(self.steps(part, item) for item in value)
        return total


def subschemas(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas that a schema applies to its value or to parts of it."""
    yield from _same_value(schema)
    for word in _MEMBER_MAPS:
        yield from _mapping(schema, word).values()
    for word in (*_MEMBERS, *_ITEMS):
        if isinstance(schema.get(word), dict):
            yield schema[word]
    for word in _ITEM_LISTS:
        parts = schema.get(word)
        if isinstance(parts, list):
            yield from parts


def _same_value(schema: dict[str, Any]) -> Iterator[Any]:
    for word in _SAME_VALUE:
        if isinstance(schema.get(word), dict):
            yield schema[word]
    for word in _SAME_VALUE_LISTS:
        parts = schema.get(word)
        if isinstance(parts, list):
            yield from parts
    for word in _SAME_VALUE_MAPS:
        yield from (part for part in _mapping(schema, word).values() if isinstance(part, dict))


def _mapping(schema: dict[str, Any], word: str) -> dict[str, Any]:
    value = schema.get(word)
    return value if isinstance(value, dict) else {}


def _has_address(schema: dict[str, Any]) -> bool:
    return any(isinstance(schema.get(word), str) for word in ("$id", "id"))


def _factor(schema: dict[str, Any]) -> int:
    return _UNEVALUATED_FACTOR if any(word in schema for word in _UNEVALUATED) else 1


def count_pattern_names(schema: Any) -> int:
    """How many patterns stand where names of properties do."""
    return sum(len(_mapping(item, "patternProperties")) for item in _objects(schema))


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    pending = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _step(found: Any, part: str) -> Any:
    """One part of a JSON pointer (RFC 6901) in a URI fragment. Raises `_TooMuch`."""
    if "%" in part:
        raise _TooMuch  # plain pointers only
    part = part.replace("~1", "/").replace("~0", "~")
    if isinstance(found, dict) and part in found:
        return found[part]
    if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
        return found[int(part)]
    raise _TooMuch
