"""A login asks for as few scopes as will do (P58; `cases.md`, Decided; MCP Scope Selection)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from servers.oauth.scopes import read_scopes, scopes_to_request
from servers.oauth.types import Advertised, Provider

PROVIDER = Provider("https://as", "https://as/authorize", "https://as/token")
NOTHING = Advertised(PROVIDER, "https://h/mcp")
BOTH = replace(NOTHING, challenge_scopes=("c",), resource_scopes=("r", "s"))
CATALOGUE = replace(PROVIDER, scopes_supported=("x", "y", "z"))
OFFLINE = replace(PROVIDER, scopes_supported=("x", "offline_access"))


@pytest.mark.parametrize(
    ("advertised", "operator", "asked"),
    [
        (BOTH, "o p", ("o", "p")),
        (BOTH, "", ("c",)),
        (replace(BOTH, challenge_scopes=None), "", ("r", "s")),
        (replace(BOTH, challenge_scopes=()), "", ()),
        (NOTHING, "", ()),
        (replace(NOTHING, resource_scopes=()), "", ()),
        (replace(NOTHING, provider=CATALOGUE), "", ()),
        (replace(NOTHING, provider=CATALOGUE), "o", ("o",)),
    ],
    ids=[
        "the operator's",
        "the challenge's",
        "the document's",
        "a challenge that asks for none",
        "none",
        "a document that asks for none",
        "never the provider's catalogue",
        "what the provider does not name",
    ],
)
def test_the_first_who_names_scopes_decides(
    advertised: Advertised, operator: str, asked: tuple[str, ...]
) -> None:
    assert scopes_to_request(advertised, operator=operator) == asked


@pytest.mark.parametrize(
    ("operator", "wanted", "asked"),
    [("", "w c", ("c", "w")), ("o", "w", ("o", "w")), ("o w", " w  v ", ("o", "w", "v"))],
)
def test_scopes_that_a_call_lacked_come_on_top(
    operator: str, wanted: str, asked: tuple[str, ...]
) -> None:
    """MCP 2026-07-28, Step-Up Authorization Flow: the union, so that no right is lost."""
    assert scopes_to_request(BOTH, operator=operator, wanted=wanted) == asked


@pytest.mark.parametrize(
    ("provider", "operator", "asked"),
    [
        (OFFLINE, "", ("c", "offline_access")),
        (OFFLINE, "o", ("o", "offline_access")),
        (OFFLINE, "offline_access o", ("offline_access", "o")),
        (CATALOGUE, "", ("c",)),
        (PROVIDER, "", ("c",)),
    ],
)
def test_offline_access_is_added_where_the_provider_knows_it(
    provider: Provider, operator: str, asked: tuple[str, ...]
) -> None:
    """`cases.md`, Decided; MCP 2026-07-28, Refresh Tokens."""
    assert scopes_to_request(replace(BOTH, provider=provider), operator=operator) == asked


def test_offline_access_is_not_asked_for_alone() -> None:
    assert scopes_to_request(replace(NOTHING, provider=OFFLINE), operator="") == ()


def test_what_is_no_scope_is_left_out() -> None:
    """RFC 6749, 3.3."""
    words = ["a", 'b"', "c\\d", "e f", "", "ü", "g\n", "a", "https://h/scope.read", "mcp:*"]
    assert read_scopes(words) == ("a", "https://h/scope.read", "mcp:*")


def test_a_login_asks_for_no_more_than_an_address_can_hold() -> None:
    assert len(read_scopes(str(number) for number in range(100_000))) == 200
    assert read_scopes(["a" * 3000, "b" * 3000, "c"]) == ("a" * 3000,)


def test_a_huge_list_costs_no_time() -> None:
    """The reference had a list whose duplicates were found by comparing each with each."""
    started = time.process_time()
    read_scopes(["a", '"'] * 200_000)
    assert time.process_time() - started < 2
