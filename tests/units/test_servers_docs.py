"""docs/servers.md tells operators the options that there are, no more and no fewer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from servers.effective import default_words, size_words, value_words, with_unit
from servers.forms.policy import LEVEL_WORDS
from servers.limits import PROFILES, SLOW_CLASSES
from servers.options import BY_NAME, CATALOGUE, LIMIT_FIELDS, Option
from servers.policy import TRUST_LEVELS
from umpteenth.cli import mcp, secrets

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "servers.md"


def range_words(option: Option) -> str:
    """Which values it takes."""
    if option.kind == "switch":
        return "true or false"
    if option.kind == "choice":
        return " or ".join(option.choices)
    if option.kind == "text":
        return "@NAME of a secret" if option.name == "token_ref" else "a header's name"
    if option.kind == "bytes":
        return f"{size_words(int(option.minimum))} to {size_words(int(option.maximum))}"
    return with_unit(option, f"{option.minimum:,.0f} to {option.maximum:,.0f}")


def options_table() -> Iterator[str]:
    yield "| Option | Default | Values | For | Meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for option in CATALOGUE:
        transports = "all" if len(option.transports) == 3 else ", ".join(option.transports)
        cells = [default_words(option), range_words(option), transports, option.meaning]
        yield f"| `{option.name}` | {' | '.join(cells)} |"


def limits_table() -> Iterator[str]:
    yield "| Limit | standard | strict |"
    yield "| --- | --- | --- |"
    for name, field in LIMIT_FIELDS.items():
        cells = [value_words(BY_NAME[name], getattr(PROFILES[p], field)) for p in PROFILES]
        yield f"| `{name}` | {' | '.join(cells)} |"
    call = BY_NAME["tool_timeout_secs"]
    cells = [value_words(call, PROFILES[p].call_seconds) for p in PROFILES]
    yield f"| `tool_timeout_secs` | {' | '.join(cells)} |"


@pytest.mark.parametrize(("name", "table"), [("options", options_table), ("limits", limits_table)])
def test_the_page_has_the_tables_of_the_catalogue(
    name: str, table: Callable[[], Iterator[str]]
) -> None:
    """Whoever changes the catalogue puts what this test wants into the page."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    assert rest.partition(end)[0].splitlines() == list(table())


def test_the_page_names_the_slow_classes_and_nothing_that_is_no_option() -> None:
    """U46, U47."""
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{part}`" in text for part in SLOW_CLASSES[0][1])
    named = set(re.findall(r"`([a-z_]+_(?:secs|ms|calls|ref|header|actor|mode|profile))`", text))
    assert named <= set(BY_NAME)


def written() -> Iterator[str]:
    """What people read: the documents, and the sentences in the source."""
    yield (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        yield page.read_text(encoding="utf-8")
    for room in ("umpteenth", "servers", "secrets_vault", "jobs"):
        for source in (ROOT / room).rglob("*.py"):
            yield source.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("word", "group"), [("mcp", mcp.command), ("secret", secrets.command)], ids=["mcp", "secret"]
)
def test_advice_names_only_commands_that_there_are(word: str, group: click.Group) -> None:
    found = re.findall(rf"umpteenth {word} ([a-z][a-z-]+)", "\n".join(written()))
    assert len(found) > 3
    assert set(found) <= set(group.commands)


def test_each_trust_level_is_told_with_what_starts_such_runs() -> None:
    """A29-A31; nothing is named that cannot start a run yet."""
    text = PAGE.read_text(encoding="utf-8")
    for level in TRUST_LEVELS:
        assert f"\n| `{level}` | " in text
    for told in (text, *LEVEL_WORDS.values()):
        assert not re.search(r"webhook|API token|person or token", told, re.IGNORECASE)


def test_the_page_tells_what_is_not_offered() -> None:
    """Each of these a server of the specification may expect of its client."""
    _, _, part = PAGE.read_text(encoding="utf-8").partition("## What is not offered\n")
    named = part.partition("\n## ")[0].lower()
    assert all(word in named for word in ("sampling", "roots", "tasks", "resources", "prompts"))
