"""Tests and single calls of servers with a login: what they send, keep and show (P36, P43, P71)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from servers import calling, checks
from servers.mcp.types import LoginRequired
from servers.models import Server, Tool
from tests.fakes.mcp_http import JSON, Reply, Request
from tests.fakes.oauth_logins import change, logged_in_at, login_of
from tests.fakes.oauth_server import OAuthServer, running
from tests.fakes.server_rows import after_test

pytestmark = pytest.mark.django_db(transaction=True)

OVER = timedelta(seconds=-1)


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer()) as server:
        yield server


def betraying(fake: OAuthServer) -> None:
    """From here on the server tells whatever token it gets to everybody."""

    def betray(request: Request) -> Reply | None:
        said = request.headers.get("authorization", "")
        if fake.grants.family_of(said.partition(" ")[2]) is None:
            return None
        results = {
            "tools/list": {"tools": [{"name": "x", "description": said, "inputSchema": {}}]},
            "tools/call": {"content": [{"type": "text", "text": said}]},
        }
        if request.rpc not in results:
            return None
        answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": results[request.rpc]}
        return Reply(200, {"content-type": JSON}, json.dumps(answer).encode())

    fake.variant.replies = {"/mcp": betray}


def test_a_test_refreshes_the_login_and_keeps_no_token_that_it_got(fake: OAuthServer) -> None:
    """P43, P44."""
    server = logged_in_at(fake, lasts=OVER)
    betraying(fake)
    check = after_test(server)
    assert check.outcome == "connected"
    assert fake.count("token") == 1
    description = Tool.objects.get().description
    assert description == "Bearer [secret access token of hosted]"


def test_a_call_refreshes_the_login_and_shows_no_token_that_it_got(fake: OAuthServer) -> None:
    """P43, P44."""
    server = logged_in_at(fake, lasts=OVER)
    betraying(fake)
    result = asyncio.run(calling.call_once(server, "x", {}))
    assert result.text == "Bearer [secret access token of hosted]"
    assert fake.count("token") == 1


def test_a_call_with_a_login_that_is_over_says_what_to_do(fake: OAuthServer) -> None:
    """P71."""
    server = logged_in_at(fake, ended="refused", ended_reason="The provider took it back.")
    with pytest.raises(LoginRequired) as caught:
        asyncio.run(calling.call_once(server, "echo", {}))
    assert caught.value.message == "The OAuth login expired. Log in again under MCP Servers."
    assert caught.value.hint == "The provider took it back."
    assert fake.mcp.requests == []


def test_a_test_with_a_login_that_is_over_asks_the_server_and_looks_for_another(
    fake: OAuthServer,
) -> None:
    """P36, P47."""
    server = logged_in_at(fake, ended="refused")
    check = after_test(server)
    assert check.outcome == "login_required"
    assert "requires a login: 401" in check.error
    assert server.oauth_advertised
    assert server.oauth_found["provider"]["issuer"] == fake.issuer


def test_a_login_that_ends_in_a_test_is_told_by_the_test(fake: OAuthServer) -> None:
    """P71, A36."""
    server = logged_in_at(fake)
    fake.variant.refuses_every_token = True
    check = after_test(server)
    assert check.outcome == "login_required"
    assert "refused the OAuth login: 401" in check.error
    assert server.state == Server.State.LOGIN_REQUIRED
    assert login_of(server).row.ended == "refused"


def test_a_provider_that_is_away_fails_the_test_and_not_the_login(fake: OAuthServer) -> None:
    server = logged_in_at(fake, lasts=OVER)
    fake.variant.replies = {"/token": Reply(503)}
    check = after_test(server)
    assert check.outcome == "failed"
    assert "could not be refreshed" in check.error
    change(server, lease_until=None)
    fake.variant.replies = {}
    assert after_test(server).outcome == "connected"
