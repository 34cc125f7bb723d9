"""The one door for outbound HTTP."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx2
import pytest

from tests.fakes.mcp_http import FakeHttp, Reply
from umpteenth.core import http
from umpteenth.core.http import (
    MAX_SHOWN_URL,
    USER_AGENT,
    async_client,
    origin,
    public_url,
    same_origin,
    shown_host,
    without_userinfo,
)


async def test_a_client_says_who_it_is_and_follows_no_redirect() -> None:
    """B12."""
    async with (
        FakeHttp(script=lambda request: Reply(307, {"location": "/x"})) as server,
        async_client(timeout=5, headers={"X-Extra": "1"}) as client,
    ):
        response = await client.get(server.url)
    assert response.status_code == 307
    assert server.requests[0].headers["user-agent"] == USER_AGENT
    assert server.requests[0].headers["x-extra"] == "1"
    assert len(server.requests) == 1


async def test_no_log_holds_a_whole_address(caplog: pytest.LogCaptureFixture) -> None:
    """U60: the client's own logs name each address with its query."""
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    http._keep_quiet.cache_clear()
    with caplog.at_level(logging.DEBUG):
        async with FakeHttp() as server, async_client(timeout=5) as client:
            await client.get(f"{server.url}?key=canary")
    assert "canary" not in caplog.text


async def test_the_time_outs_are_those_that_were_asked_for() -> None:
    async with async_client(timeout=httpx2.Timeout(None, connect=3)) as client:
        assert (client.timeout.connect, client.timeout.read) == (3, None)


async def test_a_client_for_a_unix_socket_goes_nowhere_else(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U12: past any proxy too."""
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    path = str(short_dir / "s")
    async with (
        FakeHttp(socket_path=path, script=lambda request: Reply(204)) as server,
        async_client(timeout=5, socket_path=path) as client,
    ):
        assert (await client.get("http://example.invalid/x")).status_code == 204
    assert server.requests[0].headers["host"] == "example.invalid"


@pytest.mark.parametrize("socket_path", ["", "/run/x"])
async def test_requests_never_wait_for_each_other_and_idle_connections_go_early(
    socket_path: str,
) -> None:
    """A hundred calls that hang must not hold up the next; servers let go after five seconds."""
    async with async_client(timeout=5, socket_path=socket_path) as client:
        pool = client._transport._pool  # type: ignore[attr-defined]
        assert pool._max_connections > 10_000
        assert pool._keepalive_expiry < 5


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("https://h/a", "https://h:443/b?c", True),
        ("http://H/", "http://h:80/x", True),
        ("http://h./", "http://h/", True),
        ("http://h/", "https://h/", False),
        ("http://h/", "http://h:8080/", False),
        ("https://h/", "https://h:0/", False),
        ("https://Bücher.example/", "https://xn--bcher-kva.example/x", True),
        ("https://faß.example/", "https://fass.example/", False),
        ("https://faß.example/", "https://faß.example/x", True),
        ("https://\u2603\U0001f9ff.example/", "https://\u2603\U0001f9ff.example/", True),
        ("https://h/", "https://h:/", True),
        ("http://h/", "http://h.example/", False),
        ("http://[::1]:1/", "http://[::1]:1/x", True),
        ("file:///a", "file:///a", False),
        ("http://h:99999/", "http://h:99999/", False),
        ("//h/", "//h/", False),
    ],
)
def test_origins_are_compared_with_default_ports_filled_in(
    first: str, second: str, same: bool
) -> None:
    assert same_origin(first, second) is same


def test_an_origin_has_scheme_host_and_port() -> None:
    assert origin("https://User@Example.org/x") == ("https", "example.org", 443)


@pytest.mark.parametrize(
    ("url", "left"),
    [
        ("http://user:pw@h:1/p?key=K#f", "http://h:1/p?key=K#f"),
        ("http://a@b@h/", "http://h/"),
        ("https://h/p@q", "https://h/p@q"),
    ],
)
def test_a_name_and_password_are_taken_out_of_an_address(url: str, left: str) -> None:
    """B12."""
    assert without_userinfo(url) == left


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pw@h:1/p?key=K#f", "https://h:1/p"),
        ("http://h", "http://h"),
        ("http://[broken", "the address"),
    ],
)
def test_addresses_are_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    """U60."""
    assert public_url(url) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://auth.example.com@evil.example:8443/a?b", "evil.example:8443"),
        ("https://b\u00fccher.example/", "xn--bcher-kva.example"),
        ("http://[::1]:9/a", "[::1]:9"),
        ("https://stra\u00dfe.example/", ""),  # two names, by who reads it
        (f"https://{'x' * 64}\u0430.example/", ""),
        ("https://h:port/", ""),
        ("auth.example.com", ""),
    ],
)
def test_a_host_is_shown_in_a_way_that_nobody_takes_for_another(url: str, shown: str) -> None:
    """I06."""
    assert shown_host(url) == shown


def test_an_address_that_a_server_names_is_shown_clean_and_not_at_any_length() -> None:
    """I10: it ends in errors that people read."""
    shown = public_url("https://h/\x1b[31ma\u202eb/" + "x" * 100_000)
    assert shown.startswith("https://h/ab/xxx")
    assert len(shown) == MAX_SHOWN_URL
