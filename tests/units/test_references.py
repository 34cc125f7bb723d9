"""References to secrets: `{{secret:NAME}}`, one pass, all or nothing (P11, E05)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secrets_vault.errors import BadReference, SecretNotFound
from secrets_vault.references import (
    find_names,
    is_name,
    reference,
    replace,
    validate_references,
)

NAMES = st.text(alphabet="ABCabc019_.-", min_size=1, max_size=100)


@pytest.mark.parametrize(
    "text",
    [
        "{{secret:TOKEN}}",
        "{{ secret:TOKEN }}",
        "{{secret: TOKEN}}",
        "{{  secret  :  TOKEN\t}}",
    ],
)
def test_spaces_inside_the_braces_are_allowed(text: str) -> None:
    assert replace(f"Bearer {text}!", {"TOKEN": "abc"}) == "Bearer abc!"


def test_names_are_found_once_and_in_order() -> None:
    text = "{{secret:B}} {{secret:A}} {{ secret:B }} {{secret:a-b_c.d}}"

    assert find_names(text) == ["B", "A", "a-b_c.d"]
    validate_references(text)


@pytest.mark.parametrize(
    "text",
    ["", "plain", "{{other:X}}", "{{secret_name}}", "{secret:X}", "secret:X}}", "${X}", "{{"],
)
def test_other_text_is_no_reference(text: str) -> None:
    assert find_names(text) == []
    assert replace(text, {}) == text


@pytest.mark.parametrize(
    "text",
    [
        "{{secret:}}",
        "{{secret: }}",
        "{{secret}}",
        "{{ secret }}",
        "{{secret:a b}}",
        "{{secret:ä}}",
        "{{secret:A{{secret:B}}",
        "{{Secret:TOKEN}}",
        "{{SECRET:TOKEN}}",
        "{{secret:\nTOKEN}}",
        "{{secret:" + "x" * 101 + "}}",
        "{{secret:A} }",
    ],
)
def test_a_malformed_reference_is_refused_with_a_sentence(text: str) -> None:
    for call in (validate_references, find_names, lambda it: replace(it, {})):
        with pytest.raises(BadReference, match=r"write \{\{secret:NAME\}\}") as caught:
            call(f"before {text}")
        assert len(str(caught.value)) < 250


def test_an_unclosed_reference_says_so() -> None:
    with pytest.raises(BadReference, match=r"\{\{secret:TOKEN is not closed"):
        validate_references("Bearer {{secret:TOKEN")


def test_an_unknown_name_is_an_error_that_names_it() -> None:
    with pytest.raises(SecretNotFound, match="Secret MISSING not found") as caught:
        replace("{{secret:HERE}} {{secret:MISSING}}", {"HERE": "x"})

    assert caught.value.name == "MISSING"


def test_a_value_that_looks_like_a_reference_is_not_expanded_again() -> None:
    values = {"A": "{{secret:B}}", "B": "secret"}

    assert replace("{{secret:A}}", values) == "{{secret:B}}"


def test_values_cannot_make_a_reference_together() -> None:
    assert replace("{{secret:A}}secret:B}}", {"A": "{{", "B": "x"}) == "{{secret:B}}"


def test_braces_around_a_reference_stay() -> None:
    assert replace("{{{{secret:A}}}}", {"A": "x"}) == "{{x}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A", True),
        ("a.b-c_1", True),
        ("x" * 100, True),
        ("x" * 101, False),
        ("", False),
        ("a b", False),
        ("ä", False),
        ("A\n", False),
        ("a/b", False),
    ],
)
def test_names_are_letters_digits_dots_and_dashes(text: str, expected: bool) -> None:
    assert is_name(text) is expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(alphabet="ab {}:"), NAMES), max_size=5), st.text(max_size=20))
def test_whatever_stands_between_references_stays(parts: list[tuple[str, str]], value: str) -> None:
    # A brace right before a reference would belong to it just as well.
    text = "".join(f"{before} {reference(name)}" for before, name in parts)

    replaced = replace(text, {name: value for _, name in parts})

    assert replaced == "".join(f"{before} {value}" for before, _ in parts)
    assert find_names(text) == list(dict.fromkeys(name for _, name in parts))


@settings(deadline=None)
@given(st.text(alphabet="{}secrt: AB-\n", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = find_names(text)
    except BadReference:
        return
    assert all(is_name(name) for name in names)
    assert ("{{secret:" in text.replace(" ", "")) == bool(names)
