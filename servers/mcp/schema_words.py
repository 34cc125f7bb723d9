"""What is wrong with a schema or a value, in words that name the place and never quote the value.

Values may hold secrets, schemas are a server's own text: places and rules are cleaned and cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import jsonschema_rs

from servers.limits import KIB, MIB
from umpteenth.core.text import clean

# Stands for the value in the validator's messages.
MASK: Final = "\x00"
MAX_FAULTS: Final = 5
MAX_PATH: Final = 120
MAX_RULE: Final = 200
_KINDS = jsonschema_rs.ValidationErrorKind
_FOREIGN: Final = re.compile(r"Resource '(.*?)' is not present")
_MISSING: Final = re.compile(r"(?:Pointer|Anchor) '(.*?)' does not exist")
_DIALECT: Final = re.compile(r"Unknown meta-schema: '(.*?)'")


def bytes_in_words(count: int) -> str:
    """`16 MiB`, `1.5 KiB`, `900 bytes`."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{round(count / unit, 1):g} {name}"
    return f"{count} bytes"


def describe_all(errors: Iterable[jsonschema_rs.ValidationError]) -> str:
    """The first few faults of a value, one after the other."""
    said: list[str] = []
    for error in errors:
        sentence = describe(error)
        if not sentence or sentence in said:
            continue
        if len(said) == MAX_FAULTS:
            said.append("and more")
            break
        said.append(sentence)
    return "; ".join(said)


def describe(error: jsonschema_rs.ValidationError) -> str:
    """One fault of a value: `filter.since must be of type string`. Empty if nobody can tell."""
    kind = error.kind
    if isinstance(kind, _KINDS.BacktrackLimitExceeded | _KINDS.RegexEngineFailure):
        return ""
    path = list(error.instance_path)
    if isinstance(kind, _KINDS.Required):
        return f"{path_of([*path, kind.property])} is missing"
    if isinstance(kind, _KINDS.AdditionalProperties | _KINDS.UnevaluatedProperties):
        names = ", ".join(path_of([*path, name]) for name in kind.unexpected[:MAX_FAULTS])
        return f"{names} {'is' if len(kind.unexpected) == 1 else 'are'} not known"
    types = _types(error)
    if types:
        return f"{path_of(path)} must be of type {' or '.join(dict.fromkeys(types))}"
    return f"{path_of(path)} {_rule(kind, error.message)}"


def _types(error: jsonschema_rs.ValidationError) -> list[str]:
    """The types that would do; also where only alternatives with one type each are given."""
    kind = error.kind
    if isinstance(kind, _KINDS.Type):
        return list(kind.types)
    if not isinstance(kind, _KINDS.AnyOf | _KINDS.OneOfNotValid):
        return []
    types: list[str] = []
    for branch in kind.context:
        if len(branch) != 1 or not isinstance(branch[0].kind, _KINDS.Type):
            return []
        if branch[0].instance_path != error.instance_path:
            return []
        types += branch[0].kind.types
    return types


def _rule(kind: Any, message: str) -> str:
    if isinstance(kind, _KINDS.Enum):
        return clean(f"must be one of {_choices(kind.options)}", MAX_RULE)
    if isinstance(kind, _KINDS.Constant):
        return clean(f"must be {_json(kind.expected_value)}", MAX_RULE)
    if isinstance(kind, _KINDS.Pattern):
        return clean(f"does not match the pattern {kind.pattern}", MAX_RULE)
    if isinstance(kind, _KINDS.AnyOf | _KINDS.OneOfNotValid):
        return "has none of the forms that the schema allows"
    if isinstance(kind, _KINDS.OneOfMultipleValid):
        return "has more than one of the forms that exclude each other"
    if isinstance(kind, _KINDS.PropertyNames):
        return "has a property with a name that is not allowed"
    if isinstance(kind, _KINDS.Contains):
        return "lacks an item that the schema asks for"
    if isinstance(kind, _KINDS.Not | _KINDS.FalseSchema):
        return "is not allowed"
    if message.startswith(f"{MASK} "):
        return clean(message[len(MASK) + 1 :].replace(MASK, "it"), MAX_RULE)
    return f"breaks the rule {clean(kind.name, 50)}"


def describe_schema_fault(error: jsonschema_rs.ValidationError) -> str:
    """Why a schema cannot be used, as the end of a sentence that begins with `its schema`."""
    if isinstance(error.kind, _KINDS.Referencing):
        return _reference_fault(error.message)
    place = path_of(list(error.instance_path))
    word = error.instance_path[-1] if error.instance_path else ""
    if isinstance(error.kind, _KINDS.Format):
        return f"has a pattern at {place} that cannot be read"
    shown = clean(_json(error.instance), 50)
    if word == "type":
        return f"has a fault at {place}: {shown} is no type"
    if isinstance(error.kind, _KINDS.Type):
        types = " or ".join(error.kind.types)
        return f"has a fault at {place}: {shown} is not of type {types}"
    return f"has a fault at {place}: {shown} is not allowed there"


def _reference_fault(message: str) -> str:
    for pattern, words in (
        (_FOREIGN, "refers to {}, which is not fetched"),
        (_MISSING, "refers to {}, which it does not hold"),
        (_DIALECT, "is written in a dialect that is not supported: {}"),
    ):
        found = pattern.search(message)
        if found is not None:
            target = found[1] if "://" in found[1] or pattern is not _MISSING else f"#{found[1]}"
            return words.format(clean(target, MAX_RULE))
    return f"has a reference that cannot be followed: {clean(message, MAX_RULE)}"


def path_of(path: list[str | int]) -> str:
    """`filter.since`, `items[0].name`; names that are no plain words stand in brackets."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif re.fullmatch(r"[\w$-]+", part):
            shown += f".{part}" if shown else part
        else:
            shown += f"[{_json(part)}]"
    return clean(shown, MAX_PATH) if shown else "the whole value"


def _choices(options: list[Any]) -> str:
    shown = ", ".join(_json(option) for option in options[:10])
    return shown if len(options) <= 10 else f"{shown}, …"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
