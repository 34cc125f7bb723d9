"""The one door for outbound HTTP."""

from __future__ import annotations

import httpx2
import pytest

from tests.fakes.mcp_http import FakeHttp, Reply
from umpteenth.core.http import USER_AGENT, async_client, origin, public_url, same_origin


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


async def test_the_time_outs_are_those_that_were_asked_for() -> None:
    async with async_client(timeout=httpx2.Timeout(None, connect=3)) as client:
        assert (client.timeout.connect, client.timeout.read) == (3, None)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("https://h/a", "https://h:443/b?c", True),
        ("http://H/", "http://h:80/x", True),
        ("http://h./", "http://h/", True),
        ("http://h/", "https://h/", False),
        ("http://h/", "http://h:8080/", False),
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
