"""What a refusal says of how to be let in is read as it is meant (RFC 9110, 6750, 9728)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.mcp.types import Challenge
from servers.oauth.challenge import parse_challenges

POINTER = "https://h.example/.well-known/oauth-protected-resource/mcp"


def of(*lines: str) -> Challenge:
    found = parse_challenges(lines, 401)
    assert found is not None
    return found


def test_a_challenge_names_the_document_and_the_scopes() -> None:
    """RFC 9728, 5.1; RFC 6750, 3."""
    line = (
        f'Bearer realm="x", resource_metadata="{POINTER}", scope="files:read  mail", '
        'error="invalid_token", error_description="It is over"'
    )
    assert of(line) == Challenge(401, POINTER, "files:read mail", "invalid_token", "It is over")


def test_the_status_is_kept() -> None:
    found = parse_challenges(['Bearer error="insufficient_scope", scope="w"'], 403)
    assert found == Challenge(403, scope="w", error="insufficient_scope")


@pytest.mark.parametrize(
    "line",
    [
        f'Basic realm="a, Bearer scope=b", Bearer resource_metadata="{POINTER}"',
        f'Bearer resource_metadata="{POINTER}", Basic realm="scope=b"',
        f'Negotiate, Bearer resource_metadata="{POINTER}"',
        f'Negotiate YWJj==, Bearer resource_metadata="{POINTER}"',
        f'Digest qop="auth,auth-int", nonce=abc,  bearer  Resource_Metadata = "{POINTER}"',
        f', ,Bearer resource_metadata="{POINTER}",,',
    ],
)
def test_one_header_holds_challenges_of_several_schemes(line: str) -> None:
    """RFC 9110, 11.6.1: commas part challenges as well as parameters."""
    assert of(line) == Challenge(401, POINTER)


def test_challenges_come_in_several_headers() -> None:
    assert of('Basic realm="x"', f'Bearer resource_metadata="{POINTER}"') == Challenge(401, POINTER)


def test_of_several_bearer_challenges_the_one_that_says_most_counts() -> None:
    found = of("Bearer", 'Bearer error="invalid_token"', f'Bearer resource_metadata="{POINTER}"')
    assert found == Challenge(401, POINTER)


@pytest.mark.parametrize(
    ("line", "description"),
    [
        (r'Bearer error_description="say \"please\", twice", scope="a"', 'say "please", twice'),
        (r'Bearer error_description="a\\b" , scope="a"', r"a\b"),
        (r'Bearer scope="a", error_description="no end', "no end"),
        ('Bearer scope="a", error_description="no end\\', "no end"),
    ],
)
def test_quoted_values_are_unescaped(line: str, description: str) -> None:
    """RFC 9110, 5.6.4."""
    assert of(line) == Challenge(401, scope="a", error_description=description)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"Bearer resource_metadata={POINTER}?a=b", Challenge(401, f"{POINTER}?a=b")),
        (f'Bearer scope="a" resource_metadata="{POINTER}"', Challenge(401, POINTER, "a")),
        ('Bearer realm=, scope="a"', Challenge(401, scope="a")),
        ('Bearer scope="a", scope="b"', Challenge(401, scope="a")),
    ],
)
def test_missing_quotes_and_commas_are_forgiven(line: str, expected: Challenge) -> None:
    assert of(line) == expected


def test_no_scope_and_an_empty_scope_are_told_apart() -> None:
    assert of("Bearer").scope is None
    assert of('Bearer scope=" "').scope == ""


def test_another_scheme_counts_where_it_points_to_the_document() -> None:
    """RFC 9728, 5.1: the parameter belongs to no scheme."""
    assert of(f'DPoP algs="ES256", resource_metadata="{POINTER}"') == Challenge(401, POINTER)


@pytest.mark.parametrize("lines", [[], [""], [","], ['realm="x"']])
def test_where_no_scheme_is_named_there_is_no_challenge(lines: list[str]) -> None:
    assert parse_challenges(lines, 401) is None


@pytest.mark.parametrize(
    ("lines", "schemes"),
    [
        (['Basic realm="x"'], ("basic",)),
        (["Negotiate YWI=, NTLM"], ("negotiate", "ntlm")),
        (["Basic", "Bearer", "basic"], ("basic", "bearer")),
    ],
)
def test_the_schemes_are_named_though_they_say_nothing_to_bearers(
    lines: list[str], schemes: tuple[str, ...]
) -> None:
    """RFC 9110, 11.6.1: a server that asks for Basic alone takes no OAuth login."""
    assert of(*lines) == Challenge(401)
    assert of(*lines).schemes == schemes


def test_words_of_the_server_are_cleaned_and_bounded() -> None:
    line = f'Bearer error="e\x1b[31m{"x" * 900}", error_description="\u202e{"y" * 9000}"'
    found = of(line)
    assert found.error.startswith("exx")
    assert len(found.error) == 100
    assert found.error_description.startswith("yy")
    assert len(found.error_description) == 500


def test_an_address_that_is_too_long_is_dropped_rather_than_cut() -> None:
    assert of(f'Bearer resource_metadata="https://h/{"x" * 3000}"').resource_metadata == ""


@pytest.mark.parametrize("piece", ["a", "a=", 'a="', "\\", '"', ",", " ", "a =", 'b="\\" '])
def test_hostile_headers_cost_no_time(piece: str) -> None:
    started = time.process_time()
    parse_challenges([f"Bearer {piece * 40_000}"] * 500, 401)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "before",
    ['a="' + "x" * 17_000 + '", ', "".join(f"p{number}=v, " for number in range(150))],
    ids=["characters", "parameters"],
)
def test_what_comes_behind_more_than_any_server_says_is_not_read(before: str) -> None:
    assert of(f'Bearer error="e", {before}scope="s"') == Challenge(401, error="e")


def test_no_more_schemes_are_kept_than_any_server_names() -> None:
    assert len(of(", ".join(f"Scheme{number}" for number in range(50))).schemes) == 10


@given(st.lists(st.text(), max_size=4))
def test_any_header_is_read(lines: list[str]) -> None:
    found = parse_challenges(lines, 401)
    assert found is None or found.status == 401
