"""Shortcuts of the tests that look for logins."""

from __future__ import annotations

from collections.abc import Sequence

from servers.mcp.types import Challenge
from servers.oauth.challenge import parse_challenges
from servers.oauth.discovery import discover
from servers.oauth.types import Advertised, DiscoveryFailed
from tests.fakes.oauth_server import OAuthServer, Variant
from umpteenth.core.http import async_client


async def refusal_of(url: str) -> Challenge:
    """What the server says to a request without a login."""
    async with async_client(timeout=10) as client:
        response = await client.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    lines: Sequence[str] = response.headers.get_list("www-authenticate")
    return parse_challenges(lines, response.status_code) or Challenge(response.status_code)


async def found(variant: Variant, *, limit: float = 5.0) -> tuple[OAuthServer, Advertised]:
    """What is found of such a server, which is stopped by then."""
    async with OAuthServer(variant) as fake:
        challenge = None if variant.lets_in else await refusal_of(fake.url)
        advertised = await discover(fake.url, challenge, limit=limit)
        assert advertised is not None
        return fake, advertised


async def failure(variant: Variant, *, limit: float = 5.0) -> tuple[OAuthServer, DiscoveryFailed]:
    """Why nothing is found of such a server."""
    async with OAuthServer(variant) as fake:
        try:
            challenge = None if variant.lets_in else await refusal_of(fake.url)
            advertised = await discover(fake.url, challenge, limit=limit)
        except DiscoveryFailed as error:
            return fake, error
    raise AssertionError(f"It was found: {advertised}")


def asked_for(fake: OAuthServer) -> list[str]:
    """The addresses that were asked for, but for the endpoint itself, without their origin."""
    requests = [*fake.mcp.requests, *fake.provider.requests]
    return [request.path for request in requests if request.path != "/mcp"]
