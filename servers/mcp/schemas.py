"""JSON Schemas of tools: whether they can be used, and whether values match them.

No SDK, no Django, no network: a `$ref` leads to a place in the same document or nowhere. Every
check is bounded in time and memory, whatever a server wrote (`servers.mcp.schema_cost`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, Final

import jsonschema_rs

from servers.limits import KIB, MIB, Limits
from servers.mcp.schema_cost import Price, count_pattern_names, measure
from servers.mcp.schema_words import (
    MASK,
    bytes_in_words,
    describe,
    describe_all,
    describe_schema_fault,
)
from umpteenth.core.text import MAX_JSON_DEPTH, clean, clean_json, storable_json

MAX_REFERENCES: Final = 5000
# Each takes up to half a millisecond to read and as much memory as the limit says.
MAX_PATTERNS: Final = 500
PATTERN_BYTES: Final = 256 * KIB
BACKTRACK_LIMIT: Final = 10_000
CACHED_SCHEMAS: Final = 256
CACHED_BYTES: Final = 2 * MIB  # of schemas as text; compiled they take up to forty times as much
# Beyond these, faults are not spelled out: each costs memory and a copy of the value.
BYTES_PER_FAULT: Final = 20_000
MAX_SPELLED_STEPS: Final = 2000
MAX_SPELLED_BYTES: Final = 32 * MIB

_REFERENCE: Final = re.compile(r'"\$(?:ref|dynamicRef|recursiveRef)":')
# How JSON writes control characters; a line end and a tab are none here.
_ESCAPED_CONTROL: Final = re.compile(r"\\[bfru]")

_LINEAR: Final = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES)
_BACKTRACKING: Final = jsonschema_rs.FancyRegexOptions(
    backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES
)
# In which dialect a schema that names none is read: the first one that it is valid in.
# 2020-12 is the protocol's own; many servers still write the older ones without saying so.
_DIALECTS: Final = (
    jsonschema_rs.Draft202012Validator,
    jsonschema_rs.Draft7Validator,
    jsonschema_rs.Draft4Validator,
)


_Dialect = Callable[..., jsonschema_rs.Validator]


class _Unusable(Exception):
    """The message ends a sentence that begins with `its schema`."""


class _Compiled:
    def __init__(
        self, validator: jsonschema_rs.Validator, schema: dict[str, Any], *, backtracking: bool
    ) -> None:
        self.validator = validator
        self._schema = schema
        self._backtracking = backtracking

    @cached_property
    def price(self) -> Price:
        return Price(self._schema, backtracking=self._backtracking)


@dataclass(frozen=True)
class ReadSchema:
    """`schema` is cleaned, and None if it is too large to be kept; `fault` says why it cannot be
    used (see `fault_of`); `size` is in bytes of JSON."""

    schema: dict[str, Any] | None
    fault: str = ""
    size: int = 0


def fault_of(schema: dict[str, Any], limits: Limits) -> str:
    """Why a tool's schema cannot be used; empty if it can (D08, A42, A43).

    The words end a sentence that begins with `its input schema`: `is nested deeper than 32
    levels (max_depth)`. Takes up to some milliseconds for large schemas.
    """
    return read_schema(schema, limits).fault


def read_schema(schema: dict[str, Any], limits: Limits) -> ReadSchema:
    """A schema as a server sent it: cleaned, bounded and tried."""
    try:
        text = _text_of(schema)
        # What is kept is cut at some depth: better no schema than half of one.
        kept = replace(limits, depth=min(limits.depth, MAX_JSON_DEPTH))
        fault = _size_fault(schema, text, kept, limits.schema_bytes, "max_schema_bytes")
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"is no JSON: {error}"
    if fault:
        return ReadSchema(None, fault)
    cleaned = schema if _is_clean(text) else clean_json(schema)
    try:
        _compile(cleaned, text)
    except _Unusable as reason:
        fault = str(reason)
    return ReadSchema(cleaned, fault, _bytes_of(text))


def _is_clean(text: str) -> bool:
    """Whether cleaning the value behind this JSON would change nothing, which is soon told."""
    return not _ESCAPED_CONTROL.search(text) and clean(text) == text


def check_arguments(schema: dict[str, Any], arguments: dict[str, Any], limits: Limits) -> str:
    """What is wrong with the arguments of a call, in one sentence; empty if nothing is.

    Names the paths of the first faults and never their values. A schema that cannot be used, or
    whose check would take too long, refuses nothing: the server checks too.
    """
    try:
        text = _text_of(arguments)
        fault = _size_fault(arguments, text, limits, limits.argument_bytes, "max_argument_bytes")
    except (TypeError, ValueError, RecursionError) as error:
        return f"The arguments cannot be sent as JSON: {error}."
    if fault:
        return f"The arguments cannot be sent: their JSON {fault}."
    try:
        faults = _faults(_cache.compiled(schema), arguments)
    except _Unusable:
        return ""  # such tools are not listed
    return f"The arguments do not match the tool's input schema: {faults}." if faults else ""


def check_output(schema: dict[str, Any], structured: Any) -> str:
    """A warning about a result whose structured content is not as the tool's output schema
    announces it; empty if it is (D14). None stands for a result without structured content.

    Not for results that report an error (D13).
    """
    try:
        compiled = _cache.compiled(schema)
    except _Unusable as reason:
        return f"The result was not checked: the tool's output schema {reason}."
    if structured is None:
        return "The tool announces structured content, but the result holds none."
    faults = _faults(compiled, structured)
    if faults is None:
        return "The result was not checked: its output schema would take too long to check."
    return f"The result does not match the tool's output schema: {faults}." if faults else ""


def _size_fault(value: Any, text: str, limits: Limits, most: int, option: str) -> str:
    if len(text) > most or _bytes_of(text) > most:
        return f"is larger than {bytes_in_words(most)} ({option})"
    size = measure(value, max_depth=limits.depth, max_nodes=limits.nodes)
    if size.depth > limits.depth:
        return f"is nested deeper than {limits.depth} levels (max_depth)"
    if size.nodes > limits.nodes:
        return f"holds more than {limits.nodes} values (max_nodes)"
    return ""


def _text_of(value: Any) -> str:
    """As it goes over the wire. Raises what `json` raises for what is no JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _faults(compiled: _Compiled, value: Any) -> str | None:
    """The faults of a value in words, empty if it has none; None if nobody can tell."""
    steps = compiled.price.steps(value)
    if steps is None:
        return None
    try:
        if compiled.validator.is_valid(value):
            return ""
        return _spelled(compiled, value, steps)
    except UnicodeEncodeError:  # lone surrogates, which the validator does not read
        return _faults(compiled, storable_json(value))
    except ValueError:  # keys that are no texts, numbers without end
        return None


def _spelled(compiled: _Compiled, value: Any, steps: int) -> str:
    size = steps * (BYTES_PER_FAULT + _bytes_of(_text_of(value)))
    if steps <= MAX_SPELLED_STEPS and size <= MAX_SPELLED_BYTES:
        return describe_all(compiled.validator.iter_errors(value))
    if compiled.price.has_alternatives:  # each of them would be spelled out
        return "it is too large to say where"
    try:
        compiled.validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return describe(error)
    return ""


def _compile(schema: dict[str, Any], text: str) -> _Compiled:
    """Raises `_Unusable` with what is wrong in the first dialect that comes into question."""
    if len(_REFERENCE.findall(text)) > MAX_REFERENCES:
        raise _Unusable(f"holds more than {MAX_REFERENCES} references")
    patterns = text.count('"pattern":"')
    if '"patternProperties":' in text:
        patterns += count_pattern_names(schema)
    if patterns > MAX_PATTERNS:
        raise _Unusable(f"holds more than {MAX_PATTERNS} patterns")
    fault = ""
    for dialect in (jsonschema_rs.validator_for,) if "$schema" in schema else _DIALECTS:
        try:
            return _compile_in(dialect, schema)
        except jsonschema_rs.ValidationError as error:
            fault = fault or describe_schema_fault(error)
            if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
                break  # older dialects do not know all references, and would let them pass
        except ValueError as error:
            raise _Unusable(f"cannot be read: {clean(str(error), 200)}") from None
    raise _Unusable(fault)


def _compile_in(dialect: _Dialect, schema: dict[str, Any]) -> _Compiled:
    """Raises `ValidationError` or another `ValueError`."""
    try:
        return _build(dialect, schema, backtracking=False)
    except jsonschema_rs.ValidationError as error:
        if not _is_of_pattern(error):
            raise
    try:
        return _build(dialect, schema, backtracking=True)
    except jsonschema_rs.ValidationError as error:
        if not _is_of_pattern(error):
            raise
    return _build(dialect, _without_odd_patterns(schema), backtracking=True)


def _build(dialect: _Dialect, schema: dict[str, Any], *, backtracking: bool) -> _Compiled:
    validator = dialect(
        schema,
        mask=MASK,
        validate_formats=False,  # an annotation since 2019-09
        offline=True,
        pattern_options=_BACKTRACKING if backtracking else _LINEAR,
    )
    return _Compiled(validator, schema, backtracking=backtracking)


def _is_of_pattern(error: jsonschema_rs.ValidationError) -> bool:
    return isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format)


def _without_odd_patterns(schema: Any) -> Any:
    """A copy without the patterns that neither engine reads; other languages know more."""
    if isinstance(schema, list):
        return [_without_odd_patterns(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_odd_patterns(value)
        for key, value in schema.items()
        if key != "pattern" or not isinstance(value, str) or _is_readable(value)
    }


def _is_readable(pattern: str) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=_BACKTRACKING)
    except ValueError:
        return False
    return True


class _Cache:
    """Compiled schemas by their content, the latest used ones. For use from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: OrderedDict[bytes, tuple[_Compiled, int]] = OrderedDict()
        self._bytes = 0

    def compiled(self, schema: dict[str, Any]) -> _Compiled:
        """Raises `_Unusable`."""
        try:
            text = _text_of(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise _Unusable(f"is no JSON: {error}") from None
        key = hashlib.sha256(text.encode(errors="replace")).digest()
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        compiled = _compile(schema, text)
        with self._lock:
            self._put(key, compiled, len(text))
        return compiled

    def _put(self, key: bytes, compiled: _Compiled, size: int) -> None:
        if key in self._entries or size > CACHED_BYTES:
            return
        self._entries[key] = (compiled, size)
        self._bytes += size
        while len(self._entries) > CACHED_SCHEMAS or self._bytes > CACHED_BYTES:
            _key, (_compiled, freed) = self._entries.popitem(last=False)
            self._bytes -= freed


_cache = _Cache()
