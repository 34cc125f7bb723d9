"""References to secrets in text: `{{secret:NAME}}`, spaces inside the braces allowed (P11)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from secrets_vault.errors import BadReference, SecretNotFound

NAME_PATTERN = r"[A-Za-z0-9_.-]{1,100}"
NAME_RULE = "1 to 100 letters, digits, `_`, `.` or `-`"

# What somebody meant as a reference; whatever begins so must be a whole one.
_OPENING = re.compile(r"\{\{[ \t]*secret(?![A-Za-z0-9_.-])", re.IGNORECASE)
_REFERENCE = re.compile(r"\{\{[ \t]*secret[ \t]*:[ \t]*(" + NAME_PATTERN + r")[ \t]*\}\}")
_SHOWN = 60  # characters of a bad reference that its error quotes


def reference(name: str) -> str:
    return "{{secret:" + name + "}}"


def is_name(text: str) -> bool:
    return re.fullmatch(NAME_PATTERN, text) is not None


def find_names(text: str) -> list[str]:
    """The names a text refers to, each once, in order. Raises `BadReference`."""
    return list(dict.fromkeys(match[1] for match in _references(text)))


def validate_references(text: str) -> None:
    """Raises `BadReference` with a sentence for the person where a reference is malformed."""
    for _ in _references(text):
        pass


def replace(text: str, values: Mapping[str, str]) -> str:
    """The text with every reference replaced, in one pass: values are never looked into.

    Raises `BadReference`, and `SecretNotFound` for a name that `values` lacks.
    """
    pieces: list[str] = []
    position = 0
    for match in _references(text):
        if match[1] not in values:
            raise SecretNotFound(match[1])
        pieces += [text[position : match.start()], values[match[1]]]
        position = match.end()
    return "".join([*pieces, text[position:]])


def text_between(text: str) -> list[str]:
    """What stands before, between and after the references. Raises `BadReference`."""
    pieces: list[str] = []
    position = 0
    for match in _references(text):
        pieces.append(text[position : match.start()])
        position = match.end()
    return [*pieces, text[position:]]


def _references(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while opening := _OPENING.search(text, position):
        match = _REFERENCE.match(text, opening.start())
        if match is None:
            raise BadReference(_explain(text[opening.start() :]))
        yield match
        position = match.end()


def _explain(rest: str) -> str:
    """What is wrong with the reference that `rest` begins with."""
    end = rest.find("}}")
    shown = " ".join((rest if end < 0 else rest[: end + 2]).split())
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
    if end < 0:
        return f"The secret reference {shown} is not closed; write {{{{secret:NAME}}}}."
    return (
        f"The secret reference {shown} is not valid; "
        f"write {{{{secret:NAME}}}} with a name of {NAME_RULE}."
    )
