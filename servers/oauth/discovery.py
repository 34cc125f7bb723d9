"""Finds out how a server wants people to log in (MCP authorization, all revisions). No Django.

1. The server's own document (RFC 9728): where its challenge points, then at the well-known places
   of its address. It names the authorization servers.
2. Their metadata (RFC 8414, OpenID Connect Discovery), at every place that is in use.
3. No such document at all: the server's own origin is the authorization server, as in revision
   2025-03-26, at last with that revision's default endpoints.
"""

from __future__ import annotations

from typing import Final

from servers.mcp.types import Challenge
from servers.oauth.types import Advertised, DiscoveryFailed

LIMIT: Final = 5.0  # seconds in all


async def discover(
    url: str, challenge: Challenge | None, *, limit: float = LIMIT
) -> Advertised | None:
    """How to log in to the server at `url`.

    `challenge` is what the server said to a request without a login (`Challenge()` where it
    said nothing); None where it let us in: then only a document of its own counts (RFC 9728),
    and the answer is None if there is none. Raises `DiscoveryFailed`.
    """
    raise DiscoveryFailed("Looking for a login is not there yet.")
