"""Names of tools as models see them (P72)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.naming import MAX_NAME, model_name

# Both OpenAI and Anthropic take these; Anthropic would take longer ones.
LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
# As names arrive: any text without lone surrogates, which are cleaned before.
names = st.text(max_size=200)


@given(names, names)
def test_every_name_is_legal_for_every_provider(server: str, tool: str) -> None:
    """D04."""
    assert LEGAL.fullmatch(model_name(server, tool))


@given(names, names, names, names)
def test_different_pairs_never_share_a_name(a: str, b: str, c: str, d: str) -> None:
    """D05."""
    assert (model_name(a, b) == model_name(c, d)) == ((a, b) == (c, d))


@given(names, names)
def test_moving_characters_between_server_and_tool_changes_the_name(a: str, b: str) -> None:
    """D05: the separator itself may occur in names."""
    assert model_name(a, f"x__{b}") != model_name(f"{a}__x", b)


@pytest.mark.parametrize(
    ("first", "second"),
    [("get.user", "get_user"), ("a/b", "a b"), ("x" * 70 + "1", "x" * 70 + "2")],
)
def test_names_that_look_alike_stay_apart(first: str, second: str) -> None:
    """D05."""
    assert model_name("crm", first) != model_name("crm", second)


def test_a_name_is_readable_and_the_same_for_ever() -> None:
    """P72: stored transcripts refer to it."""
    assert model_name("everything", "echo") == "everything__echo__16e2c3dd5cde532a923d"
    assert len(model_name("s" * 64, "t" * 64)) == MAX_NAME


@pytest.mark.parametrize(
    ("server", "tool", "start"),
    [
        ("s" * 64, "t" * 64, "s" * 13 + "__" + "t" * 27 + "__"),
        ("s" * 64, "search", "s" * 34 + "__search__"),
        ("crm", "t" * 64, "crm__" + "t" * 37 + "__"),
        ("s" * 20, "t" * 20, "s" * 20 + "__" + "t" * 20 + "__"),
        ("überprüfen", "New Tool", "_berpr_fen__New_Tool__"),
        ("", "", "____"),
    ],
)
def test_a_long_name_keeps_the_beginning_of_both_parts(server: str, tool: str, start: str) -> None:
    """P72: a model that saw only the server's name could not choose."""
    assert model_name(server, tool).startswith(start)


@given(names, names)
def test_a_long_server_name_never_hides_the_tool(server: str, tool: str) -> None:
    """P72."""
    kept = re.sub("[^A-Za-z0-9_-]", "_", tool)[:27]
    assert f"__{kept}" in model_name(server, tool)
