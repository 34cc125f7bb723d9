"""Puts the questions of servers to the person at the terminal.

Everything that a server says is shown as its own words; what the person types is converted to the
kind of the field, checked against the form, and asked for again until it fits or the person leaves
(Ctrl-D).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from servers.mcp.types import Answer, Asker, Question
from umpteenth.core.text import clean

ReadLine = Callable[[], Awaitable["str | None"]]
Write = Callable[[str], None]

MAX_LABEL: Final = 200
MAX_CHOICES: Final = 100
YES: Final = frozenset({"y", "yes", "true", "1"})
NO: Final = frozenset({"n", "no", "false", "0"})
WAY_OUT: Final = "Ctrl-D leaves the question."
# What a form may ask for (spec 2025-11-25, StringSchema), as a person is told.
FORMATS: Final = {
    "email": "an e-mail address, such as ada@example.org",
    "uri": "an address with its scheme, such as https://example.org/",
    "date": "a date, such as 2026-11-30",
    "date-time": "a date and a time with its zone, such as 2026-11-30T12:00:00Z",
}
_EMAIL: Final = re.compile(r"[^@\s<>]+@[^@\s<>]+")


def terminal_asker(server: str) -> Asker | None:
    """Asks on standard error and reads standard input; None where nobody sits there."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    return Terminal(server, read_terminal_line, write).ask


async def read_terminal_line() -> str | None:
    """The next line without its end, None at the end of the input.

    Not in a thread: nothing could wake one that waits for a key, and Ctrl-C would hang.
    """
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()
    source = sys.stdin.fileno()

    def readable() -> None:
        if not line.done():
            line.set_result(os.read(source, 65536))

    loop.add_reader(source, readable)
    try:
        data = await line
    finally:
        loop.remove_reader(source)
    return data.decode("utf-8", errors="replace").rstrip("\r\n") if data else None


class _Left(Exception):
    """The person gave no answer."""


class _Unfit(Exception):
    """What was typed cannot be used; the message says why."""


class Terminal:
    """`read_line` gives what was typed, `write` shows text."""

    def __init__(self, server: str, read_line: ReadLine, write: Write) -> None:
        self._server = server
        self._read_line = read_line
        self._write = write

    async def ask(self, question: Question) -> Answer:
        try:
            return await self._ask(question)
        except _Left:
            self._write("\n")
            return Answer("cancel")

    async def _ask(self, question: Question) -> Answer:
        words = question.message.strip() or "(no words)"
        self._write(f"\n{self._server} asks: {words}\n")
        if question.url:
            self._write(f"It wants you to open this address yourself: {question.url}\n")
            return Answer("accept" if await self._agrees("Done? [y/N] ", False) else "decline")
        if not await self._agrees("Answer? [Y/n] ", True):
            return Answer("decline")
        return Answer("accept", await self._fill_in(question))

    async def _fill_in(self, question: Question) -> dict[str, Any]:
        from servers.mcp.elicitation import fields_of, required_of

        required = required_of(question)
        content = {}
        for name, field in fields_of(question).items():
            value = await self._field(name, field, required=name in required)
            if value is not None:
                content[name] = value
        return content

    async def _field(self, name: str, field: dict[str, Any], *, required: bool) -> Any:
        self._write(_choices_text(field))
        while True:
            typed = (await self._prompt(_label(name, field, required=required))).strip()
            if not typed and field.get("default") is not None:
                return field["default"]
            if not typed and not required:
                return None
            try:
                return _checked(name, field, typed)
            except _Unfit as reason:
                self._write(f"  {reason} {WAY_OUT}\n")

    async def _agrees(self, prompt: str, default: bool) -> bool:
        while True:
            typed = (await self._prompt(prompt)).strip()
            if not typed:
                return default
            with contextlib.suppress(_Unfit):
                return _yes_or_no(typed)
            self._write(f"  Type y or n. {WAY_OUT}\n")

    async def _prompt(self, text: str) -> str:
        self._write(text)
        line = await self._read_line()
        if line is None:
            raise _Left
        return line


def _label(name: str, field: dict[str, Any], *, required: bool) -> str:
    title = field.get("title")
    head = clean(title if isinstance(title, str) and title else name, MAX_LABEL)
    description = field.get("description")
    if isinstance(description, str) and description:
        head += f" ({clean(' '.join(description.split()), MAX_LABEL)})"
    default = field.get("default")
    if default is not None:
        head += f" [{clean(_shown(default), MAX_LABEL)}]"
    elif not required:
        head += " [none]"
    return f"  {head}: "


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _choices_text(field: dict[str, Any]) -> str:
    choices = _choices(field)
    lines = [
        f"    {number}. {clean(title, MAX_LABEL)}\n"
        for number, (_, title) in enumerate(choices[:MAX_CHOICES], 1)
    ]
    several = "  Several, with commas between:\n" if choices and _is_list(field) else ""
    return several + "".join(lines)


def _is_list(field: dict[str, Any]) -> bool:
    return field.get("type") == "array"


def _choices(field: dict[str, Any]) -> list[tuple[Any, str]]:
    """(value, title) of a field that is chosen from a list, in any of its shapes (SEP-1330)."""
    items = field.get("items")
    source = items if _is_list(field) and isinstance(items, dict) else field
    for key in ("oneOf", "anyOf"):
        found = source.get(key)
        if isinstance(found, list):
            options = [each for each in found if isinstance(each, dict) and "const" in each]
            return [(each["const"], str(each.get("title") or each["const"])) for each in options]
    values, names = source.get("enum"), source.get("enumNames")
    if not isinstance(values, list):
        return []
    titles = names if isinstance(names, list) and len(names) == len(values) else values
    return [(value, str(title)) for value, title in zip(values, titles, strict=True)]


def _checked(name: str, field: dict[str, Any], typed: str) -> Any:
    """The value of what was typed. Raises `_Unfit`."""
    from servers.mcp.elicitation import fault_of_answer

    value = _converted(field, typed)
    if isinstance(value, str) and not _has_format(str(field.get("format")), value):
        raise _Unfit(f"Type {FORMATS[field['format']]}.")
    form = Question("", {"type": "object", "properties": {name: field}, "required": [name]})
    fault = fault_of_answer(Answer("accept", {name: value}), form)
    if fault:
        # What it begins with is about calls of tools.
        raise _Unfit(fault.partition(": ")[2] or fault)
    return value


def _has_format(name: str, value: str) -> bool:
    """Whether a text is what its field wants; True for formats that forms have no place for."""
    if name == "email":
        return _EMAIL.fullmatch(value) is not None
    if name not in FORMATS:
        return True
    import jsonschema_rs

    return jsonschema_rs.validator_for({"format": name}, validate_formats=True).is_valid(value)


def _converted(field: dict[str, Any], typed: str) -> Any:
    choices = _choices(field)
    if _is_list(field):
        parts = [part.strip() for part in typed.split(",") if part.strip()]
        return [_chosen(choices, part) if choices else part for part in parts]
    if choices:
        return _chosen(choices, typed)
    kind = field.get("type")
    if kind == "boolean":
        return _yes_or_no(typed)
    if kind in ("integer", "number"):
        return _number(typed, whole=kind == "integer")
    return typed


def _chosen(choices: list[tuple[Any, str]], typed: str) -> Any:
    """By value or title, else by its number in the list."""
    for value, title in choices:
        if typed in (str(value), title):
            return value
    if typed.isdecimal() and 1 <= int(typed) <= len(choices):
        return choices[int(typed) - 1][0]
    raise _Unfit(f"{typed!r} is not among the choices.")


def _yes_or_no(typed: str) -> bool:
    if typed.lower() in YES | NO:
        return typed.lower() in YES
    raise _Unfit("Type yes or no.")


def _number(typed: str, *, whole: bool) -> int | float:
    try:
        value = float(typed)
        return int(typed) if whole else value
    except ValueError:
        raise _Unfit("Type a whole number." if whole else "Type a number.") from None
