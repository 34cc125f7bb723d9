"""Questions of servers on a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from typing import Any

import pytest

from servers.mcp.types import Answer, Question
from umpteenth.cli import asking
from umpteenth.cli.asking import Terminal, read_terminal_line, terminal_asker

# (name, what fits, what does not): all that a form can ask for (spec 2025-11-25, StringSchema).
FORMATS = [
    ("email", "ada@example.org", "ada"),
    ("email", "a.b+c@example.org", "Ada <ada@example.org>"),
    ("uri", "https://example.org/x?y", "example.org"),
    ("date", "2026-11-30", "2026-02-30"),
    ("date", "2024-02-29", "30.11.2026"),
    ("date-time", "2026-11-30T12:00:00+01:00", "2026-11-30 12:00"),
]


class Conversation:
    def __init__(self, *lines: str | None) -> None:
        self.lines = list(lines)
        self.shown = ""

    async def read_line(self) -> str | None:
        return self.lines.pop(0) if self.lines else None

    def write(self, text: str) -> None:
        self.shown += text

    async def ask(self, properties: dict[str, Any], *, required: tuple[str, ...] = ()) -> Answer:
        schema = {"type": "object", "properties": properties, "required": list(required)}
        terminal = Terminal("github", self.read_line, self.write)
        return await terminal.ask(Question("Who are you?", schema))


async def test_a_form_is_filled_in_field_by_field() -> None:
    """Issue 3, section 5."""
    talk = Conversation("", "Ada", "", "36")
    fields = {
        "name": {"type": "string", "title": "Your name", "description": "as on the\ndoor"},
        "city": {"type": "string", "default": "Berlin"},
        "age": {"type": "integer"},
    }
    answer = await talk.ask(fields, required=("name",))
    assert answer == Answer("accept", {"name": "Ada", "city": "Berlin", "age": 36})
    assert talk.shown == (
        "\ngithub asks: Who are you?\n"
        "Answer? [Y/n]   Your name (as on the door):   city [Berlin]:   age [none]: "
    )


@pytest.mark.parametrize("word", ["n", "No"])
async def test_no_declines(word: str) -> None:
    talk = Conversation(word)
    assert await talk.ask({"name": {"type": "string"}}) == Answer("decline")


async def test_what_is_neither_yes_nor_no_is_asked_again() -> None:
    """Somebody who types the answer at once must not decline by it."""
    talk = Conversation("Anna", "what?", "y", "Anna")
    assert await talk.ask({"name": {"type": "string"}}) == Answer("accept", {"name": "Anna"})
    assert talk.shown.count("Answer? [Y/n]   Type y or n.") == 2
    terminal = Terminal("github", Conversation("https://h/x", None).read_line, talk.write)
    assert await terminal.ask(Question("Sign in", {}, "https://h/x")) == Answer("cancel")


@pytest.mark.parametrize("lines", [(None,), ("y", None), ("", "a", None)])
async def test_the_end_of_the_input_leaves_the_question(lines: tuple[str | None, ...]) -> None:
    talk = Conversation(*lines)
    fields = {"a": {"type": "string"}, "b": {"type": "string"}}
    assert await talk.ask(fields) == Answer("cancel")


async def test_an_optional_field_may_stay_empty() -> None:
    assert await Conversation("", "").ask({"a": {"type": "string"}}) == Answer("accept", {})


@pytest.mark.parametrize(
    ("field", "typed", "value"),
    [
        ({"type": "boolean"}, "yes", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "integer"}, "-3", -3),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "string"}, "true", "true"),
        ({"type": "string", "enum": ["a", "b"]}, "b", "b"),
        ({"type": "string", "enum": ["a", "b"]}, "2", "b"),
        ({"type": "string", "enum": ["2", "1"]}, "2", "2"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["Alpha", "Beta"]}, "Beta", "b"),
        ({"type": "string", "oneOf": [{"const": "x", "title": "Ex"}]}, "Ex", "x"),
        ({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, "b, 1", ["b", "a"]),
        ({"type": "array", "items": {"anyOf": [{"const": "p", "title": "Pea"}]}}, "Pea", ["p"]),
        ({"type": "array", "items": {"type": "string"}}, "x,y", ["x", "y"]),
        ({"type": "string", "format": "colour"}, "any", "any"),
        *[({"type": "string", "format": name}, right, right) for name, right, _ in FORMATS],
    ],
)
async def test_what_is_typed_becomes_the_kind_of_its_field(
    field: dict[str, Any], typed: str, value: Any
) -> None:
    """SEP-1330: choices in every shape, by value, title or number."""
    assert await Conversation("", typed).ask({"f": field}) == Answer("accept", {"f": value})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ({"type": "boolean"}, "maybe"),
        ({"type": "integer"}, "2.5"),
        ({"type": "number"}, "much"),
        ({"type": "number"}, "nan"),
        ({"type": "integer", "maximum": 10}, "11"),
        ({"type": "string", "maxLength": 2}, "long"),
        ({"type": "string", "enum": ["a"]}, "2"),
        ({"type": "array", "items": {"enum": ["a"]}, "maxItems": 1}, "a,a"),
        *[({"type": "string", "format": name}, wrong) for name, _, wrong in FORMATS],
    ],
)
async def test_what_does_not_fit_is_explained_and_asked_for_again(
    field: dict[str, Any], wrong: str
) -> None:
    talk = Conversation("", wrong, "")
    assert await talk.ask({"f": field}) == Answer("accept", {})
    assert talk.shown.count("f [none]: ") == 2
    assert "arguments" not in talk.shown


async def test_a_field_is_asked_for_until_it_fits_or_the_person_leaves() -> None:
    field = {"type": "integer"}
    talk = Conversation("", *["x"] * 9, "3")
    assert await talk.ask({"f": field}, required=("f",)) == Answer("accept", {"f": 3})
    assert talk.shown.count("Type a whole number. Ctrl-D leaves the question.") == 9
    gone = Conversation("", *["x"] * 9, None)
    assert await gone.ask({"f": field}, required=("f",)) == Answer("cancel")


async def test_a_required_field_without_a_default_cannot_be_skipped() -> None:
    talk = Conversation("", "", "Ada")
    answer = await talk.ask({"f": {"type": "string", "minLength": 1}}, required=("f",))
    assert answer == Answer("accept", {"f": "Ada"})


@pytest.mark.parametrize(("word", "action"), [("y", "accept"), ("", "decline")])
async def test_an_address_is_shown_and_never_opened(word: str, action: Any) -> None:
    """Spec 2025-11-25, URL mode: the person goes there by themselves, or does not."""
    talk = Conversation(word)
    terminal = Terminal("github", talk.read_line, talk.write)
    assert await terminal.ask(Question("Sign in", {}, "https://h/x")) == Answer(action)
    assert "open this address yourself: https://h/x" in talk.shown


def test_nobody_is_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal_asker("github") is None


async def test_lines_are_read_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = pty.openpty()
    with os.fdopen(terminal) as source, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", source)
        patch.setattr(sys, "stderr", source)
        assert terminal_asker("github") is not None
        os.write(keyboard, "Zoë\n".encode())
        assert await read_terminal_line() == "Zoë"
        waiting = asyncio.create_task(read_terminal_line())
        await asyncio.sleep(0)
        waiting.cancel()  # Ctrl-C: nothing is left that waits for a key
        with pytest.raises(asyncio.CancelledError):
            await waiting
        os.write(keyboard, b"\x04")
        assert await read_terminal_line() is None
    os.close(keyboard)


def test_the_terminal_is_told_what_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nothing() -> None:
        return None

    monkeypatch.setattr(asking, "read_terminal_line", nothing)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    ask = terminal_asker("github")
    assert ask is not None
    assert asyncio.run(ask(Question("Hello?"))) == Answer("cancel")  # type: ignore[arg-type]
    captured = capsys.readouterr()
    assert captured.err == "\ngithub asks: Hello?\nAnswer? [Y/n] \n"
    assert captured.out == ""
