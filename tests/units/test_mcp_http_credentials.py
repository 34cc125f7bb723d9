"""The token of an OAuth login in requests to its server, and what a refusal of it means."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from servers.mcp.client import Connection, connect
from servers.mcp.exchange import is_final
from servers.mcp.types import (
    LoginRequired,
    MoreRightsRequired,
    ServerError,
    ServerUnavailable,
)
from tests.fakes.credentials import FakeCredentials
from tests.fakes.http_calls import CALL, settings_for
from tests.fakes.mcp_http import EVENTS, FakeHttp, Reply, Request, Script, event
from tests.fakes.mcp_server import text

POINTER = 'Bearer resource_metadata="https://x.example.org/.well-known/oauth-protected-resource"'
INVALID = f'{POINTER}, error="invalid_token"'


def accepts(*tokens: str, challenge: str = INVALID) -> Script:
    """A server that lets in with these tokens only."""

    def script(request: Request) -> Reply | None:
        known = [f"Bearer {token}" for token in tokens]
        if request.headers.get("authorization") in known:
            return None
        return Reply(401, {"www-authenticate": challenge} if challenge else {})

    return script


def connecting(
    server: FakeHttp, credentials: FakeCredentials, headers: tuple[tuple[str, str], ...] = ()
) -> AbstractAsyncContextManager[Connection]:
    return connect(settings_for(server, credentials=credentials, headers=headers))


def sent(server: FakeHttp) -> list[str]:
    return [request.headers.get("authorization", "") for request in server.requests]


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_every_request_carries_the_token_of_the_login(transport: str) -> None:
    """P44: standing streams and the older transport as well."""
    credentials = FakeCredentials("one")
    async with (
        FakeHttp(script=accepts("one"), transport=transport, standing=True) as server,
        connecting(server, credentials) as connection,
    ):
        await connection.list_tools()
        await connection.call_tool("echo", {})
        await server.until(server.gets)
    assert set(sent(server)) == {"Bearer one"}
    assert credentials.asked == []


async def test_a_refused_token_is_renewed_and_the_request_sent_once_more() -> None:
    """RFC 6750, 3.1; a 401 says that nothing was run, so that calls may be repeated too."""
    credentials = FakeCredentials("one", "two")
    async with FakeHttp(script=accepts("one")) as server:
        async with connecting(server, credentials) as connection:
            await connection.list_tools()
            server.script = accepts("two")
            result = await connection.call_tool("echo", {})
        calls = [request for request in server.requests if request.rpc == "tools/call"]
    assert result.ok
    assert [call.headers["authorization"] for call in calls] == ["Bearer one", "Bearer two"]
    assert calls[0].body == calls[1].body
    assert credentials.asked == ["renewed one"]
    assert credentials.challenges[0].error == "invalid_token"


async def test_a_server_that_refuses_the_fresh_token_too_ends_the_login() -> None:
    """A36: one renewal, then the server's own words."""
    credentials = FakeCredentials("one", "two", "three")
    refusing = Reply(401, {"www-authenticate": 'Bearer error_description="Who are you?"'})
    async with FakeHttp(script=lambda request: refusing) as server:
        with pytest.raises(LoginRequired) as caught:
            async with connecting(server, credentials):
                pass
    assert credentials.asked == ["renewed one", "given up two"]
    assert caught.value.message == (
        "The server refused the OAuth login: 401 Unauthorized: Who are you?"
    )
    assert caught.value.hint == "Log in again under MCP Servers."
    assert len(server.requests) == 2


async def test_without_another_token_the_servers_own_refusal_is_told() -> None:
    credentials = FakeCredentials("one")
    async with FakeHttp(script=accepts()) as server:
        with pytest.raises(LoginRequired, match="refused the OAuth login: 401") as caught:
            async with connecting(server, credentials):
                pass
    assert len(server.requests) == 1
    assert caught.value.challenge is not None
    assert caught.value.challenge.error == "invalid_token"


async def test_a_login_that_is_not_there_yet_is_made_by_what_the_challenge_says() -> None:
    """RFC 6749, 4.4: machines log in at the first refusal."""
    credentials = FakeCredentials("", "two")
    async with (
        FakeHttp(script=accepts("two")) as server,
        connecting(server, credentials) as connection,
    ):
        await connection.list_tools()
    assert sent(server)[:2] == ["", "Bearer two"]
    assert credentials.asked[0] == "renewed "
    assert credentials.challenges[0].resource_metadata.startswith("https://x.example.org/")


@pytest.mark.parametrize(
    ("challenge", "told"),
    [("", "renewed one perhaps"), (INVALID, "renewed one"), ("Bearer", "renewed one perhaps")],
)
async def test_in_a_session_only_words_about_the_token_count_against_the_login(
    challenge: str, told: str
) -> None:
    """B02: some servers forget a session with a 401; the next request opens another."""
    credentials = FakeCredentials("one", "two", "three")
    async with (
        FakeHttp(script=accepts("one")) as server,
        connecting(server, credentials) as connection,
    ):
        await connection.list_tools()
        server.script = accepts(challenge=challenge)
        with pytest.raises(LoginRequired):
            await connection.call_tool("echo", {})
    assert credentials.asked[0] == told
    assert ("given up two" in credentials.asked) is (told == "renewed one")


async def test_a_refused_standing_stream_says_nothing_of_the_login() -> None:
    """B04: servers need not offer it."""
    credentials = FakeCredentials("one", "two")
    refusing = Reply(401, {"www-authenticate": INVALID})
    async with (
        FakeHttp(script=lambda each: refusing if each.method == "GET" else None) as server,
        connecting(server, credentials) as connection,
    ):
        await server.until(server.gets)
        result = await connection.call_tool("echo", {})
    assert result.ok
    assert credentials.asked == []


async def test_a_broken_stream_is_resumed_with_another_token_where_one_is_needed() -> None:
    """B15: its loss would cost the answer of a call that was made."""
    credentials = FakeCredentials("one", "two")
    answer = event({"jsonrpc": "2.0", "id": CALL, "result": text("resumed")})

    def script(request: Request) -> Reply | None:
        events = {"content-type": EVENTS}
        if "last-event-id" in request.headers:
            fresh = request.headers["authorization"] == "Bearer two"
            return Reply(200, events, answer) if fresh else Reply(401)
        if request.rpc == "tools/call":
            return Reply(200, events, b"id: e1\nretry: 10\ndata:\n\n")
        return None

    async with FakeHttp(script=script) as server, connecting(server, credentials) as connection:
        assert (await connection.call_tool("echo", {})).text == "resumed"
    assert credentials.asked == ["renewed one perhaps"]


def test_a_login_that_is_over_ends_whatever_would_try_again() -> None:
    """B05: the standing stream does not go on asking."""
    assert is_final(LoginRequired("over"))


async def test_missing_rights_are_named_and_remembered_for_the_next_login() -> None:
    """RFC 6750, 3.1: a failed call, of which there is no doubt; the login stays."""
    credentials = FakeCredentials("one", "two")
    challenge = 'Bearer scope="mcp:write mcp:admin", error="insufficient_scope"'
    refusing = Reply(403, {"www-authenticate": challenge})
    async with (
        FakeHttp(script=lambda each: refusing if each.rpc == "tools/call" else None) as server,
        connecting(server, credentials) as connection,
    ):
        await connection.list_tools()
        with pytest.raises(MoreRightsRequired) as caught:
            await connection.call_tool("echo", {})
    error = caught.value
    assert credentials.asked == ["wants mcp:write mcp:admin"]
    assert error.message == "The OAuth login lacks rights for this: 403 Forbidden."
    assert error.hint == (
        "Log in again for more rights under MCP Servers. It names these: mcp:write mcp:admin."
    )
    assert error.scopes == "mcp:write mcp:admin"


async def test_missing_rights_at_the_first_request_are_a_login_that_is_required() -> None:
    """One request: neither another revision nor another transport would help."""
    credentials = FakeCredentials("one")
    refusing = Reply(403, {"www-authenticate": 'Bearer error="insufficient_scope"'})
    async with FakeHttp(script=lambda request: refusing) as server:
        with pytest.raises(MoreRightsRequired):
            async with connecting(server, credentials):
                pass
    assert len(server.requests) == 1
    assert isinstance(MoreRightsRequired(""), LoginRequired)


async def test_a_plain_403_is_a_refusal_and_no_question_of_logging_in() -> None:
    credentials = FakeCredentials("one", "two")
    async with FakeHttp(script=lambda request: Reply(403, {}, b"Not yours.")) as server:
        with pytest.raises(ServerUnavailable, match=r"403 Forbidden: Not yours\.") as caught:
            async with connecting(server, credentials):
                pass
    assert credentials.asked == []
    assert "lacks a scope" in caught.value.hint


async def test_an_authorization_header_beats_the_login() -> None:
    """P49."""
    credentials = FakeCredentials("one")
    headers = (("AUTHORIZATION", "Bearer written"),)
    async with (
        FakeHttp(script=accepts("written")) as server,
        connecting(server, credentials, headers) as connection,
    ):
        await connection.list_tools()
    assert set(sent(server)) == {"Bearer written"}


@pytest.mark.parametrize(
    ("header", "asks"), [("X-Api-Key", True), ("Authorization", False), ("X-Other", True)]
)
async def test_a_pointer_to_a_login_counts_unless_a_header_authenticates(
    header: str, asks: bool
) -> None:
    """RFC 9728, 5.1, P14."""
    refusing = Reply(401, {"www-authenticate": POINTER})
    async with FakeHttp(script=lambda request: refusing) as server:
        settings = settings_for(server, headers=((header, "value"),))
        with pytest.raises(ServerError) as caught:
            async with connect(settings):
                pass
    assert isinstance(caught.value, LoginRequired) is asks
    if isinstance(caught.value, LoginRequired):
        assert caught.value.challenge is not None
        assert caught.value.challenge.resource_metadata.startswith("https://x.example.org/")
        assert "requires a login" in caught.value.message


async def test_the_token_never_goes_to_another_origin() -> None:
    """B12."""
    credentials = FakeCredentials("one")
    async with FakeHttp() as elsewhere:
        moved = Reply(307, {"location": elsewhere.url})
        async with FakeHttp(script=lambda request: moved) as server:
            with pytest.raises(ServerUnavailable, match="another origin"):
                async with connecting(server, credentials):
                    pass
    assert elsewhere.requests == []


async def test_a_redirect_within_the_origin_keeps_the_token() -> None:
    """B10."""
    credentials = FakeCredentials("one")
    moved = Reply(307, {"location": "/mcp?moved"})
    async with (
        FakeHttp(script=lambda each: moved if each.path == "/mcp" else None) as server,
        connecting(server, credentials) as connection,
    ):
        await connection.list_tools()
    assert set(sent(server)) == {"Bearer one"}


async def test_why_there_is_no_token_is_what_the_caller_reads() -> None:
    """P71: nothing is sent."""
    credentials = FakeCredentials("one")
    credentials.error = LoginRequired("The OAuth login expired. Log in again under MCP Servers.")
    async with FakeHttp() as server:
        with pytest.raises(LoginRequired, match="The OAuth login expired"):
            async with connecting(server, credentials):
                pass
    assert server.requests == []
