"""Secret values never reach what is stored or shown (design, section 5; E11)."""

from __future__ import annotations

import base64
import html
import json
import re
import threading
import time
from collections.abc import Iterable
from itertools import pairwise
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from umpteenth.core import masking
from umpteenth.core.masking import Masker, forms_of, known_values, placeholder

TOKEN = "ghp_16C7e42F292c6912E7"
AWKWARD = 'pä"ss\\wörd/+?&<=>\n\té😀'
PEM = (
    "-----BEGIN PRIVATE KEY-----\n"
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n"
    "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ==\n"
    "-----END PRIVATE KEY-----"
)


def streamed(masker: Masker, pieces: Iterable[str]) -> str:
    stream = masker.stream()
    return "".join([*(stream.feed(piece) for piece in pieces), stream.close()])


def _as_go(text: str) -> str:
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@pytest.mark.parametrize("value", [TOKEN, AWKWARD, PEM, "123456"])
@pytest.mark.parametrize(
    "form",
    [
        str,
        lambda v: json.dumps(v)[1:-1],
        lambda v: json.dumps(v, ensure_ascii=False)[1:-1],
        lambda v: re.sub(r"(?<=\\u)[0-9a-f]{4}", lambda m: m[0].upper(), json.dumps(v)[1:-1]),
        lambda v: json.dumps(v)[1:-1].replace("/", "\\/"),
        lambda v: _as_go(json.dumps(v)[1:-1]),
        lambda v: json.dumps(json.dumps(v))[3:-3],
        lambda v: json.dumps(json.dumps(v, ensure_ascii=False), ensure_ascii=False)[3:-3],
        quote,
        quote_plus,
        lambda v: quote(v, safe=""),
        lambda v: quote(v, safe="!'()*"),
        lambda v: re.sub("%..", lambda m: m[0].lower(), quote(v, safe="")),
        lambda v: urlencode({"k": v})[2:],
        html.escape,
        lambda v: v.replace("\n", "\r\n"),
    ],
)  # fmt: skip
def test_a_value_is_masked_in_every_form(value: str, form: object) -> None:
    assert callable(form)
    masked = Masker({"TOKEN": value}).mask(f"before {form(value)} after")

    assert masked == "before [secret TOKEN] after"


@pytest.mark.parametrize("before", [b"", b"u", b"us", b"user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("value", [TOKEN, AWKWARD, "???>>>~~~"])
def test_a_value_is_masked_at_every_alignment_of_base64(
    before: bytes, encode: object, value: str
) -> None:
    """`Authorization: Basic` holds the value behind a user name of any length."""
    assert callable(encode)
    text = encode(before + value.encode() + b"!").decode()

    masked = Masker({"T": value}).mask(text)

    assert "[secret T]" in masked
    left = masked.replace("[secret T]", "")
    # At most the characters that share bits with what stands before and after.
    assert len(left) <= -(-len(before) * 8 // 6) + 1 + 4


def test_short_values_are_not_masked() -> None:
    masker = Masker({"PIN": "12345"})

    assert masker.is_empty
    assert masker.mask("12345 and 12345") == "12345 and 12345"
    assert masker.mask_json({"k": "12345"}) == {"k": "12345"}


def test_the_longest_value_wins_and_overlaps_are_covered_whole() -> None:
    masker = Masker({"SHORT": "abcdef", "LONG": "abcdefghij", "NEXT": "hijklmno"})

    assert masker.mask("x abcdef abcdefghij y") == "x [secret SHORT] [secret LONG] y"
    assert masker.mask("x abcdefghijklmno y") == "x [secret LONG][secret NEXT] y"


def test_a_value_that_overlaps_itself_is_one_placeholder() -> None:
    assert Masker({"A": "aaaaaa"}).mask("b" + "a" * 50 + "b") == "b[secret A]b"


def test_values_side_by_side_are_two_placeholders() -> None:
    assert Masker({"A": TOKEN}).mask(TOKEN * 2) == "[secret A][secret A]"


def test_three_overlapping_values_need_only_the_two_that_cover_them() -> None:
    masker = Masker({"A": "abcdefgh", "B": "cdefghij", "C": "fghijklm"})

    assert masker.mask("abcdefghijklm") == "[secret A][secret C]"


@pytest.mark.parametrize(
    ("name", "value"),
    [("X", "secret"), ("secret", "secret"), ("secret-name", "secret-name"), ("T", "[secret")],
)
def test_masking_twice_leaves_placeholders_alone(name: str, value: str) -> None:
    masker = Masker({name: value, "OTHER": TOKEN})

    once = masker.mask(f"a {value} and {TOKEN}")

    assert once == f"a [secret {name}] and [secret OTHER]"
    assert masker.mask(once) == once
    assert streamed(masker, once) == once


def test_a_value_in_brackets_is_no_placeholder() -> None:
    assert Masker({"A": TOKEN}).mask(f"[secret {TOKEN}]") == "[secret [secret A]]"


def test_a_value_that_holds_a_placeholder_is_masked_whole() -> None:
    masker = Masker({"A": TOKEN, "B": "left [secret A] right"})

    assert masker.mask("x left [secret A] right y") == "x [secret B] y"


def test_a_value_that_begins_like_a_placeholder_and_goes_on_is_masked() -> None:
    masker = Masker({"A": TOKEN, "B": "[secret A] and more"})

    assert masker.mask("[secret A] and more") == "[secret B]"


def test_a_stream_keeps_a_placeholder_that_ends_like_a_value_begins() -> None:
    masker = Masker({"A": TOKEN, "B": "A]xyzxyz"})
    text = f"[secret A]xyzxyz {TOKEN}xyzxyz"

    assert masker.mask(text) == "[secret A]xyzxyz [secret A]xyzxyz"
    assert streamed(masker, text) == masker.mask(text)


def test_names_cannot_break_the_placeholder() -> None:
    assert placeholder("header [X]\n of s") == "[secret header _X__ of s]"
    assert placeholder("") == "[secret _]"
    assert Masker({"a]b": TOKEN}).mask(TOKEN) == "[secret a_b]"


def test_long_lines_of_a_value_are_masked_one_by_one() -> None:
    """Logs and streams carry lines; PEM markers are no secret."""
    lines = PEM.split("\n")
    masker = Masker({"KEY": PEM})

    assert masker.mask(f"got {lines[1]} ok") == "got [secret KEY] ok"
    assert masker.mask(f"  {lines[2]}\r\n") == "  [secret KEY]\r\n"
    assert masker.mask(lines[0]) == lines[0]
    assert masker.mask("short\nlines") == "short\nlines"
    assert Masker({"KEY": "short\nlines"}).mask("short or lines") == "short or lines"


def test_json_is_masked_in_keys_values_and_numbers() -> None:
    masker = Masker({"T": TOKEN, "N": "12345678", "F": "3.14159265"})
    value = {TOKEN: [f"Bearer {TOKEN}", 12345678, 3.14159265, 7, True, None, {"deep": (TOKEN,)}]}

    assert masker.mask_json(value) == {
        "[secret T]": [
            "Bearer [secret T]",
            "[secret N]",
            "[secret F]",
            7,
            True,
            None,
            {"deep": ["[secret T]"]},
        ]
    }


def test_json_keys_that_become_equal_are_all_kept() -> None:
    masker = Masker({"T": "aaaaaa", "U": "bbbbbb"})
    masker.add("T", "cccccc")

    assert masker.mask_json({"aaaaaa": 1, "cccccc": 2}) == {"[secret T]": 1, "[secret T] (2)": 2}


def test_a_number_too_long_to_write_stays_a_number() -> None:
    huge = 10**5000

    assert Masker({"T": TOKEN}).mask_json([huge, -huge]) == [huge, -huge]


def test_bytes_are_masked_whatever_else_they_hold() -> None:
    masker = Masker({"T": AWKWARD})
    data = b"\xff\xfe\x00" + AWKWARD.encode() + b"\x80\xe2"

    assert masker.mask_bytes(data) == b"\xff\xfe\x00[secret T]\x80\xe2"
    assert masker.mask_bytes(b"\xf0\x9f") == b"\xf0\x9f"


def test_a_name_with_a_new_value_masks_the_old_one_too() -> None:
    masker = Masker({"T": TOKEN})
    masker.add("T", "another-value")

    assert masker.mask(f"{TOKEN} another-value") == "[secret T] [secret T]"


def test_one_value_under_two_names_is_shown_under_the_first() -> None:
    masker = Masker({"A": TOKEN})
    masker.add("B", TOKEN)

    assert masker.mask(TOKEN) == "[secret A]"


def test_lone_surrogates_do_no_harm() -> None:
    masker = Masker({"T": "value\ud800value"})

    assert masker.mask("x value\ud800value \udfff") == "x [secret T] \udfff"


def test_a_stream_shows_at_once_what_cannot_be_a_secret() -> None:
    stream = Masker({"T": TOKEN}).stream()

    assert stream.feed("step 1\n") == "step 1\n"
    assert stream.feed("token gh") == "token "
    assert stream.feed("i\n") == "ghi\n"
    assert stream.feed(TOKEN[:7]) == ""
    assert stream.feed(TOKEN[7:]) == "[secret T]"
    assert stream.close() == ""


def test_a_stream_gives_out_what_it_held_back_at_the_end() -> None:
    stream = Masker({"T": TOKEN}).stream()

    assert stream.feed(TOKEN[:-1]) == ""
    assert stream.close() == TOKEN[:-1]


def test_a_stream_waits_for_the_longer_of_two_values() -> None:
    stream = Masker({"SHORT": "abcdef", "LONG": "abcdefghij"}).stream()

    assert stream.feed("abcdefgh") == ""
    assert stream.feed("ij") == "[secret LONG]"


def test_a_stream_of_an_empty_masker_passes_everything_on() -> None:
    assert streamed(Masker(), ["a", "b"]) == "ab"


# Properties. The alphabet makes overlaps, prefixes and placeholders likely.
_anything = st.characters(exclude_characters="[]", codec="utf-8")
_values = st.lists(
    st.text(alphabet="abc", min_size=6, max_size=9)
    | st.text(alphabet='abcé"/ +\n\\', min_size=6, max_size=12)
    | st.text(alphabet=_anything, min_size=6, max_size=40),
    min_size=1,
    max_size=4,
    unique=True,
)


def _masker(values: list[str]) -> Masker:
    return Masker({f"N{number}": value for number, value in enumerate(values)})


@st.composite
def _secrets_in_text(draw: st.DrawFn, brackets: bool = False) -> tuple[list[str], str]:
    """Values, and a text made of their forms, pieces of these and other things."""
    values = draw(_values)
    forms = sorted({form for value in values for form in forms_of(value)})
    other = st.text(alphabet="abcé" + ("[]" if brackets else ""), max_size=8)
    marks = ["[secret N0]", "[secret ", "[secret N1", "]", "["] if brackets else [" ", "%"]
    form = st.sampled_from(forms)
    piece = st.tuples(form, st.integers(0, 9), st.integers(0, 9)).map(
        lambda it: it[0][it[1] : len(it[0]) - it[2]]
    )
    parts = draw(st.lists(form | piece | other | st.sampled_from(marks), max_size=8))
    return values, "".join(parts)


def _outside(text: str, forms: set[str]) -> list[str]:
    """The stretches of a text that no form covers: the plain definition."""
    covered = [False] * len(text)
    for form in forms:
        at = text.find(form)
        while at >= 0:
            covered[at : at + len(form)] = [True] * len(form)
            at = text.find(form, at + 1)
    rest = "".join("\0" if hidden else letter for hidden, letter in zip(covered, text, strict=True))
    return re.split("\0+", rest)


@settings(deadline=None, max_examples=300)
@given(_secrets_in_text())
@example((["aaaaaa"], "aaaaaaa"))
def test_exactly_what_a_form_covers_is_replaced(case: tuple[list[str], str]) -> None:
    values, text = case
    assume("\0" not in text)
    forms = {form for value in values for form in forms_of(value)}

    masked = _masker(values).mask(text)

    assert re.split(r"(?:\[secret N\d\])+", masked) == _outside(text, forms)


@settings(deadline=None, max_examples=300)
@given(_secrets_in_text(brackets=True), st.lists(st.integers(0, 200), max_size=12))
def test_pieces_are_masked_like_the_whole(case: tuple[list[str], str], cuts: list[int]) -> None:
    values, text = case
    masker = _masker(values)
    places = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]

    assert streamed(masker, pieces) == masker.mask(text)
    assert streamed(masker, text) == masker.mask(text)


@settings(deadline=None, max_examples=200)
@given(_secrets_in_text())
def test_masking_a_masked_text_changes_nothing(case: tuple[list[str], str]) -> None:
    values, text = case
    masker = _masker(values)

    once = masker.mask(text)

    assert masker.mask(once) == once


@settings(deadline=None, max_examples=200)
@given(_secrets_in_text(brackets=True))
def test_no_form_is_left_outside_of_placeholders(case: tuple[list[str], str]) -> None:
    values, text = case
    masker = _masker(values)

    rest = re.split(r"\[secret N\d\]", masker.mask(text))

    for value in values:
        for form in forms_of(value):
            assert not any(form in piece for piece in rest)


def test_long_texts_are_masked_across_the_seams() -> None:
    text = ("x" * 1000 + TOKEN) * 1200

    assert Masker({"T": TOKEN}).mask(text) == ("x" * 1000 + "[secret T]") * 1200


def test_many_secrets_cost_no_more_look_ups_than_few() -> None:
    """A bound on work, not on time: every place of the grid is asked for once."""
    asked = 0

    class Counting(dict[str, tuple[tuple[str, int], ...]]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            nonlocal asked
            asked += 1
            return super().get(key)

    masker = Masker({f"S{number}": f"secret-value-number-{number:04}" for number in range(200)})
    for grid in (masker._index.short, masker._index.long):
        grid.places = Counting(grid.places)

    masker.mask("y" * 90_000)

    assert asked <= 90_000 / 9 + 90_000 / 3


# What the process knows


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Masker:
    fresh = masking._KnownValues()
    monkeypatch.setattr(masking, "_known", fresh)
    return known_values()


def test_the_process_masks_what_it_has_resolved(known: Masker) -> None:
    known.add("T", TOKEN)
    known.add("T", TOKEN)

    assert known_values().mask(f"x {TOKEN}") == "x [secret T]"


def test_the_process_forgets_what_was_used_longest_ago(
    known: Masker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "MAX_KNOWN_VALUES", 4)
    for number in range(4):
        known.add("S", f"value-{number}")
    known.add("S", "value-0")

    known.add("S", "value-4")

    text = " ".join(f"value-{number}" for number in range(5))
    assert known.mask(text) == "[secret S] value-1 value-2 [secret S] [secret S]"


def test_the_process_bounds_the_memory_of_large_values(
    known: Masker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "MAX_KNOWN_CHARACTERS", 100)
    known.add("A", "a" * 60)
    known.add("B", "b" * 60)

    assert known.mask("a" * 60) == "a" * 60
    assert known.mask("b" * 60) == "[secret B]"


def test_values_are_added_while_others_mask(known: Masker) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def mask() -> None:
        try:
            while not done.is_set():
                known.mask("some text value-1 and more " * 20)
                known.stream().feed("valu")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=mask) for _ in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    for number in range(300):
        assert time.monotonic() < deadline
        known.add(f"S{number}", f"value-{number}-{number}")
    done.set()
    for thread in threads:
        thread.join(20)

    assert failures == []
    assert known.mask("value-299-299") == "[secret S299]"
