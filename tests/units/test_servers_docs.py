"""docs/servers.md tells operators the options that there are, no more and no fewer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servers.effective import default_words, range_words, value_words
from servers.limits import PROFILES, SLOW_CLASSES
from servers.options import BY_NAME, CATALOGUE, LIMIT_FIELDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "servers.md"


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
