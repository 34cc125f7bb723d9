"""The token of an OAuth login in the requests of one connection, and what a 401 means for it.

A 401 says that the request was not run, so that it is sent once more with another token: never
more than once for one failure (A36).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from servers.mcp.bodies import dismiss
from servers.mcp.types import Challenge, Credentials
from servers.oauth.challenge import parse_challenges

if TYPE_CHECKING:
    import httpx2

# What a 401 says of the login: it is about it; or it may as well be about the session, which some
# servers forget in this way (B02), so that the login does not end by it; or nothing, where the
# request is one that servers need not offer (B04).
Refusal = Literal["counts", "doubtful", "ignored"]

# Sends the request with these headers besides its own.
Send = Callable[[Mapping[str, str]], Awaitable["httpx2.Response"]]

# RFC 6750, 3.1
INVALID_TOKEN: Final = "invalid_token"
INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class Bearer:
    def __init__(self, credentials: Credentials | None) -> None:
        assert credentials is not None, "there is nothing to send"
        self.credentials = credentials

    async def send(self, send: Send, refusal: Refusal) -> httpx2.Response:
        """The answer to the request, sent a second time where another token may help."""
        token = await self.credentials.token()
        response = await send(_header(token))
        if response.status_code != HTTPStatus.UNAUTHORIZED or refusal == "ignored":
            return response
        challenge = challenge_of(response) or Challenge()
        sure = refusal == "counts" or challenge.error == INVALID_TOKEN
        try:
            another = await self.credentials.renewed(token, challenge, sure=sure)
        except BaseException:
            await response.aclose()
            raise
        if not another:
            return response
        await dismiss(response)
        response = await send(_header(another))
        if response.status_code == HTTPStatus.UNAUTHORIZED and sure:
            await self.credentials.given_up(another, challenge_of(response) or Challenge())
        return response


def challenge_of(response: httpx2.Response) -> Challenge | None:
    lines = response.headers.get_list("www-authenticate")
    return parse_challenges(lines, response.status_code)


def wants_more_rights(challenge: Challenge | None) -> bool:
    """RFC 6750, 3.1; some servers name the scopes alone."""
    if challenge is None:
        return False
    return challenge.error == INSUFFICIENT_SCOPE or bool(challenge.scope and not challenge.error)


def _header(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}
