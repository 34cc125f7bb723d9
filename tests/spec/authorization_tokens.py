"""What the revisions of MCP authorization want of clients that send an access token."""

from __future__ import annotations

import pytest

from servers.mcp.types import LoginRequired, MoreRightsRequired, ServerError
from tests.fakes.credentials import FakeCredentials
from tests.fakes.mcp_http import FakeHttp, Reply, Request
from tests.spec.support import Spec, connecting, http_wire, served

TOKEN = "an-access-token"


class TokensOfEach(Spec):
    """Access Token Usage (2025-03-26: Token Requirements)."""

    async def test_every_request_bears_the_token_in_its_header(self, http_way: str) -> None:
        """Authorization MUST be included in every HTTP request, even of one session."""
        async with http_wire(http_way, self.revision, credentials=FakeCredentials(TOKEN)) as (
            server,
            connection,
        ):
            await connection.list_tools()
            await connection.call_tool("echo", {})
        assert {heard.headers.get("authorization") for heard in server.heard} == {f"Bearer {TOKEN}"}
        assert len(server.heard) >= 3

    async def test_the_token_is_in_no_address(self, http_way: str) -> None:
        """Access tokens MUST NOT be included in the URI query string."""
        async with http_wire(http_way, self.revision, credentials=FakeCredentials(TOKEN)) as (
            server,
            connection,
        ):
            await connection.list_tools()
        assert {heard.path for heard in server.heard} == {"/mcp"}
        assert not any(TOKEN.encode() in heard.raw for heard in server.heard)

    async def test_an_expired_token_is_followed_by_another(self, http_way: str) -> None:
        """Token Handling: invalid or expired tokens get 401."""
        credentials = FakeCredentials("old", TOKEN)

        def requests(request: Request) -> Reply | None:
            fresh = request.headers.get("authorization") == f"Bearer {TOKEN}"
            return None if fresh else Reply(401, {"www-authenticate": "Bearer"})

        async with http_wire(
            http_way, self.revision, credentials=credentials, requests=requests
        ) as (_, connection):
            await connection.list_tools()
            assert (await connection.call_tool("echo", {})).ok
        assert "given up" not in " ".join(credentials.asked)

    async def test_a_token_that_stays_refused_asks_for_a_login(self, http_way: str) -> None:
        credentials = FakeCredentials("old", TOKEN)
        refusing = Reply(401, {"www-authenticate": "Bearer"})
        async with served(
            http_way, self.revision, credentials=credentials, requests=lambda request: refusing
        ) as (server, settings):
            with pytest.raises(LoginRequired):
                async with connecting(server, settings):
                    pass
        assert len(server.heard) == 2

    async def test_the_token_goes_to_its_own_server_alone(self, http_way: str) -> None:
        """Tokens MUST NOT be sent to others than the server that they were issued for."""
        async with FakeHttp() as elsewhere:
            moved = Reply(307, {"location": elsewhere.url})
            async with served(
                http_way,
                self.revision,
                credentials=FakeCredentials(TOKEN),
                requests=lambda request: moved,
            ) as (server, settings):
                with pytest.raises(ServerError):
                    async with connecting(server, settings):
                        pass
        assert elsewhere.requests == []


class RightsOfNewer(Spec):
    """From 2025-11-25 on: Scope Challenge Handling."""

    async def test_a_token_without_a_right_asks_for_more(self, http_way: str) -> None:
        """403 `insufficient_scope`: the scopes of the challenge are those that the call needs."""
        credentials = FakeCredentials(TOKEN)
        challenge = 'Bearer error="insufficient_scope", scope="files:write"'
        refusing = Reply(403, {"www-authenticate": challenge})
        async with http_wire(
            http_way,
            self.revision,
            credentials=credentials,
            requests=lambda request: refusing if request.rpc == "tools/call" else None,
        ) as (server, connection):
            await connection.list_tools()
            with pytest.raises(MoreRightsRequired) as caught:
                await connection.call_tool("echo", {})
        assert caught.value.scopes == "files:write"
        assert credentials.asked == ["wants files:write"]
        # Retry limits: only a person can log in with more scopes, so that none is made by itself.
        assert server.methods().count("tools/call") == 1
