"""Settings that cannot work are refused before anything is sent."""

from __future__ import annotations

import pytest

from servers.mcp.types import ConnectionSettings, ServerUnavailable
from servers.mcp.validation import check_headers, check_settings, header_fault
from tests.fakes.mcp_helpers import http_settings

SECRET = "sk-canary"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (f"{SECRET}\n", "line break"),
        (f"{SECRET}\r\n", "line break"),
        (f"{SECRET}\r", "line break"),
        (f"a\n{SECRET}", "line break"),
        (f"a\tb{SECRET}", "control character"),
        (f"{SECRET}\t", "control character"),
        (f"{SECRET}\0", "control character"),
        (f"{SECRET}\x7f", "control character"),
        (f"{SECRET}\x1b[0m", "control character"),
        (f"{SECRET}\u20ac", "outside of Latin-1"),
        (f"{SECRET}\u2028", "outside of Latin-1"),
        (f"{SECRET}\ud800", "outside of Latin-1"),
        (f"{SECRET}\U0001f600", "outside of Latin-1"),
    ],
)
@pytest.mark.parametrize("kind", ["http", "unix"])
def test_a_value_that_cannot_be_sent_is_refused_by_its_name(
    value: str, fault: str, kind: str
) -> None:
    """E01: the value never shows."""
    settings = ConnectionSettings(
        name="x",
        transport=kind,  # type: ignore[arg-type]
        url="http://h/mcp",
        socket_path="/run/x",
        headers=(("X-Api-Key", value),),
    )
    with pytest.raises(ServerUnavailable) as caught:
        check_settings(settings)
    assert caught.value.message.startswith("The value of header X-Api-Key contains a")
    assert fault in caught.value.message
    assert "canary" not in caught.value.message + caught.value.hint
    assert "canary" not in repr(settings)


@pytest.mark.parametrize("value", ["", "a b", "  padded  ", "Bearer a.b-c_~+/=", "Zürich ÿ"])
def test_values_that_can_be_sent_are_trimmed_and_taken(value: str) -> None:
    """E01."""
    assert check_headers((("X-Key", value),)) == (("X-Key", value.strip(" ")),)


@pytest.mark.parametrize("name", ["", "X Key", "X:Key", "Schlüssel", "X-Key\n", "(x)", "a/b", "\0"])
def test_a_name_that_is_no_token_is_refused(name: str) -> None:
    """RFC 9110, 5.1."""
    assert "is no name of a header" in header_fault(name, "v")


@pytest.mark.parametrize(
    "name",
    ["Connection", "CONTENT-LENGTH", "Transfer-Encoding", "Upgrade", "TE", "Trailer", "Expect"],
)
def test_headers_of_the_exchange_itself_are_not_for_people_to_set(name: str) -> None:
    assert header_fault(name, "v") == f"Header {name} is set by Umpteenth itself."


@pytest.mark.parametrize("names", [("Authorization", "authorization"), ("X-Key", "X-KEY")])
def test_no_header_is_sent_twice(names: tuple[str, str]) -> None:
    """E15."""
    with pytest.raises(ServerUnavailable, match="is given twice"):
        check_headers(tuple((name, "v") for name in names))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "must begin with http"),
        ("h/mcp", "must begin with http"),
        ("//h/mcp", "must begin with http"),
        ("ws://h/mcp", "must begin with http"),
        ("http:/mcp", "names no host"),
        ("https://", "names no host"),
        ("http://h:x/", "cannot be read"),
        ("http://h:-1/", "cannot be read"),
        ("http://[::1/", "cannot be read"),
        ("http://user@h/", "user name or password"),
        ("http://user:pw@h/", "user name or password"),
        ("http://:pw@h/", "user name or password"),
        ("http://@h/", "user name or password"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(url: str, words: str) -> None:
    """U8, U60: and never quoted."""
    with pytest.raises(ServerUnavailable, match=words) as caught:
        check_settings(http_settings(url))
    assert "pw" not in caught.value.message.replace("password", "")


@pytest.mark.parametrize("url", ["http://h", "HTTPS://H:8443/a?b=c", "http://[::1]:1/mcp#frag"])
def test_an_address_keeps_everything_but_its_fragment(url: str) -> None:
    assert check_settings(http_settings(url)).url == url.partition("#")[0]
