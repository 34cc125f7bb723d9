"""Cleaning foreign text (A28, H16, I10)."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umpteenth.core.text import (
    MAX_JSON_DEPTH,
    clean,
    clean_json,
    is_too_deep,
    map_json,
    read_json,
    storable_json,
    with_full_stop,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x00b", "ab"),
        ("tab\tand\nline stay", "tab\tand\nline stay"),
        ("bell\x07 and delete\x7f go", "bell and delete go"),
        ("\x1b[1;31mred\x1b[0m text", "red text"),
        ("\x1b]0;a window title\x07text", "text"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1bcreset", "reset"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        ("isolated\u2066text\u2069", "isolatedtext"),
        ("ünïcödé 日本 🎉", "ünïcödé 日本 🎉"),
    ],
)
def test_what_cannot_be_stored_or_shown_goes(text: str, expected: str) -> None:
    assert clean(text) == expected


@pytest.mark.parametrize(
    "beginning", ["\x90", "\x98", "\x9d", "\x9e", "\x9f", "\x9b", "\x1b", "\x1b]"]
)
def test_a_text_of_nothing_but_beginnings_costs_no_time(beginning: str) -> None:
    """H16: servers choose their words. One that is read anew from each beginning takes minutes."""
    before = time.process_time()
    assert clean(beginning * 100_000).strip("]") == ""
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    ("limit", "expected"), [(6, "abcdef"), (5, "abcd…"), (1, "…"), (0, ""), (None, "abcdef")]
)
def test_a_long_text_is_cut_with_an_ellipsis(limit: int | None, expected: str) -> None:
    assert clean("abcdef", limit) == expected


def test_values_for_programs_lose_only_what_no_database_stores() -> None:
    value = {"a\r\n": ["\x1b[1m", "\u202e", 1.5, None], "k\0": "\ud800"}
    assert storable_json(value) == {"a\r\n": value["a\r\n"], "k": "\ufffd"}
    assert storable_json(math.inf) == "inf"


@settings(deadline=None)
@given(st.text(alphabet=st.characters()), st.none() | st.integers(0, 20))
def test_a_clean_text_is_storable_within_its_limit_and_stays_as_it_is(
    text: str, limit: int | None
) -> None:
    cleaned = clean(text, limit)

    cleaned.encode("utf-8")
    assert "\x00" not in cleaned
    assert limit is None or len(cleaned) <= limit
    assert clean(cleaned, limit) == cleaned


def test_json_is_clean_in_keys_and_values() -> None:
    value = {"a\x00": ["b\x1b[0m", {"c": "\ud800"}], "n": [1, 2.5, True, None], "t": ("x\x00",)}

    assert clean_json(value) == {
        "a": ["b", {"c": "\ufffd"}],
        "n": [1, 2.5, True, None],
        "t": ["x"],
    }


def test_numbers_that_json_does_not_know_become_words() -> None:
    cleaned = clean_json([math.nan, math.inf, -math.inf])

    assert cleaned == ["nan", "inf", "-inf"]
    json.dumps(cleaned, allow_nan=False)


def test_what_is_no_json_becomes_its_text() -> None:
    assert clean_json({1: object, "b": b"x"}) == {"1": str(object), "b": "b'x'"}


def test_json_strings_are_cut_to_the_limit() -> None:
    assert clean_json({"k": "abcdef"}, limit=3) == {"k": "ab…"}


def test_keys_that_become_equal_keep_both_entries() -> None:
    assert clean_json({"a\x00": 1, "a": 2, "a\x07": 3}) == {"a": 1, "a (2)": 2, "a (3)": 3}


def test_hostile_depth_is_cut_and_costs_no_stack() -> None:
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = [deep]

    cleaned = clean_json(deep)

    for _ in range(MAX_JSON_DEPTH):
        cleaned = cleaned[0]
    assert cleaned == "…"


@pytest.mark.parametrize("depth", [0, 1, MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1, 50_000])
def test_a_value_that_would_be_cut_is_known_before(depth: int) -> None:
    deep: Any = "bottom"
    for level in range(depth):
        deep = [deep] if level % 2 else {"k": deep, "n": 1}
    assert is_too_deep(deep) == (depth > MAX_JSON_DEPTH)
    assert is_too_deep(deep) == ("bottom" not in json.dumps(clean_json(deep)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,\n]', "is not JSON: Expecting property name enclosed in double quotes in line 2"),
        ("", "is not JSON: Expecting value in line 1, column 1"),
        ("[-Infinity]", "is not JSON: -Infinity is no JSON number"),
        ("9" * 5_000, "is not JSON: Exceeds the limit"),
        ("[" * 100_000, "is nested too deeply"),
    ],
)
def test_json_that_cannot_be_read_is_told_in_words(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^is ") as caught:
        read_json(text)
    assert str(caught.value).startswith(said)


def test_json_is_read_as_it_stands() -> None:
    assert read_json(' {"a": [1, null, "é"]} ') == {"a": [1, None, "é"]}


def test_without_a_limit_any_depth_is_walked() -> None:
    deep: Any = {"k": "bottom"}
    for _ in range(5_000):
        deep = {"k": deep}

    copy = map_json(deep, lambda leaf: str(leaf).upper())

    for _ in range(5_001):
        copy = copy["K"]
    assert copy == "BOTTOM"


@pytest.mark.parametrize("words", ["It ended.", "What?", "No!", "and so on…"])
def test_words_that_end_like_a_sentence_are_left_alone(words: str) -> None:
    assert with_full_stop(f"{words}\n") == words


def test_a_sentence_may_follow_words_of_somebody_else() -> None:
    assert with_full_stop("out of memory ") == "out of memory."
