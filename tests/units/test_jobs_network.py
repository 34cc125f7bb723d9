"""Names of domains as people write them and as the DNS knows them, and what a run's rules allow."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import network
from jobs.network import DomainError, NetworkRules, normalise_domain, split_domains


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("api.github.com", "api.github.com"),
        (" API.GitHub.com. ", "api.github.com"),
        ("*.Example.ORG", "*.example.org"),
        ("intranet", "intranet"),
        ("_acme.a_b.example", "_acme.a_b.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("*.bücher.example", "*.xn--bcher-kva.example"),
        # IDNA 2008 and not 2003, which would lead to another domain.
        ("straße.example", "xn--strae-oqa.example"),
        ("\uff41\uff50\uff49\u3002example", "api.example"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
    ],
)
def test_a_domain_is_kept_as_the_dns_knows_it(written: str, known: str) -> None:
    assert normalise_domain(written) == known
    assert normalise_domain(known) == known


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "A domain is a name such as"),
        (".", "A domain is a name such as"),
        ("*.", "A domain is a name such as"),
        ("*", "choose Internet access"),
        ("*.*.example", "has * in a place where it means nothing"),
        ("api.*.example", "has * in a place where it means nothing"),
        ("foo*.example", "has * in a place where it means nothing"),
        ("*example.org", "has * in a place where it means nothing"),
        ("https://api.example", "is more than a name"),
        ("api.example:443", "is more than a name"),
        ("me@api.example", "is more than a name"),
        ("api.example/v1", "is more than a name"),
        ("192.0.2.7", "is an address"),
        ("2001:db8::7", "is an address"),
        ("[2001:db8::7]", "is an address"),
        ("3221225991", "is an address"),
        ("0xc0.0.2.7", "is an address"),
        ("\uff11\uff19\uff12.\uff10.\uff12.\uff17", "is an address"),
        ("*.192.0.2.7", "is an address"),
        ("a..example", "is no name of a domain"),
        ("-a.example", "is no name of a domain"),
        ("a b.example", "is no name of a domain"),
        ("a" * 64 + ".example", "is no name of a domain"),
        ("xn--a.example", "is no name of a domain"),
        ("\u200d.example", "is no name of a domain"),
        ("a.\x00example", "is no name of a domain"),
        (".".join(["a" * 50] * 6), "is longer than a name can be (253 characters)"),
        ("x" * 100_000, "is longer than a name can be (253 characters)"),
    ],
)
def test_what_is_no_domain_is_told_in_one_sentence(written: str, said: str) -> None:
    with pytest.raises(DomainError) as caught:
        normalise_domain(written)
    sentence = str(caught.value)
    assert said in sentence
    assert len(sentence) < 250
    assert not set(sentence) & {"\0", "\n"}


def test_domains_may_be_typed_in_lines_or_with_commas() -> None:
    typed = "api.example\n *.cdn.example,\tAPI.example ;x.example\r\n\n"
    assert split_domains(typed) == ("api.example", "*.cdn.example", "API.example", "x.example")
    assert network.normalise_domains(split_domains(typed)) == (
        "api.example",
        "*.cdn.example",
        "x.example",
    )


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("api.example", True),
        ("API.Example.", True),
        ("www.api.example", False),
        ("notapi.example", False),
        ("a.cdn.example", True),
        ("a.b.CDN.example", True),
        ("cdn.example", False),
        ("evilcdn.example", False),
        ("bücher.example", True),
        ("xn--bcher-kva.example", True),
        # A raw address is never a name, whatever the list says.
        ("192.0.2.7", False),
        ("[::1]", False),
        ("2130706433", False),
        ("api.example:443", False),
        ("api.example\0.evil.test", False),
        ("", False),
        ("*.cdn.example", False),
    ],
)
def test_allowed_domains_only_lets_through_what_is_listed(host: str, allowed: bool) -> None:
    """Issue 5, section 3: exact names and `*.suffix`, never addresses."""
    rules = NetworkRules("domains", ("api.example", "*.cdn.example", "xn--bcher-kva.example"))
    assert rules.allows_name(host) is allowed


@given(st.text(string.ascii_letters + string.digits + ".*-_:[]%ß\u3002\u200d\uff11", max_size=40))
def test_what_is_accepted_stays_as_it_is(text: str) -> None:
    try:
        known = normalise_domain(text)
    except DomainError:
        return
    assert known.isascii()
    assert known == known.lower()
    assert normalise_domain(known) == known


@pytest.mark.parametrize(
    ("mode", "allowed", "guarded", "open_"),
    [
        ("none", False, False, False),
        ("internet", True, True, False),
        ("domains", False, True, False),
        ("unrestricted", True, False, True),
        # A mode of a later version is not taken for an open one.
        ("telepathy", False, False, False),
    ],
)
def test_each_mode_says_what_it_is(mode: str, allowed: bool, guarded: bool, open_: bool) -> None:
    rules = NetworkRules(mode)
    assert rules.allows_name("api.example") is allowed
    assert (rules.is_guarded, rules.is_unrestricted) == (guarded, open_)
