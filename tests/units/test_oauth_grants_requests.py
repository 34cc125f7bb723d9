"""One request to a provider: bounded in time and size, and never led elsewhere."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from servers.oauth import asking, grants, replies
from servers.oauth.registration import register
from servers.oauth.types import (
    Client,
    LoginSecrets,
    Provider,
    ProviderRefusal,
    ProviderUnreachable,
    Tokens,
)
from tests.fakes.mcp_http import JSON, Reply
from tests.fakes.oauth_providers import Endpoint, json_reply, pieces

CLIENT = Client("mine", "operator", "client_secret_basic", "s3cret-value")
GOOD = {"access_token": "at-1", "token_type": "Bearer"}
FORM_TYPE = "application/x-www-form-urlencoded"


async def ask(*replies: Any) -> tuple[Tokens, Endpoint]:
    async with Endpoint(list(replies)) as endpoint:
        tokens, _ = await grants.client_credentials(
            endpoint.provider, CLIENT, resource="https://mcp.example.org", scopes=("read",)
        )
    return tokens, endpoint


async def failure(*replies: Any) -> tuple[ProviderUnreachable, Endpoint]:
    async with Endpoint(list(replies)) as endpoint:
        with pytest.raises(ProviderUnreachable) as caught:
            await grants.client_credentials(endpoint.provider, CLIENT, resource="", scopes=())
    return caught.value, endpoint


class TestRequest:
    async def test_a_form_is_posted(self) -> None:
        """RFC 6749, 4.4.2, and appendix B; GitHub answers a form unless JSON is asked for."""
        _, endpoint = await ask(GOOD)
        request = endpoint.requests[0]
        assert (request.method, request.headers["content-type"]) == ("POST", FORM_TYPE)
        assert request.headers["accept"] == JSON
        # No coding is offered that the library knows and we do not.
        assert request.headers["accept-encoding"] == "identity"
        assert request.headers["user-agent"].startswith("umpteenth/")
        assert endpoint.forms() == [
            {
                "grant_type": "client_credentials",
                "scope": "read",
                "resource": "https://mcp.example.org",
            }
        ]

    async def test_what_is_empty_is_left_out(self) -> None:
        """RFC 6749, 3.2: a parameter without a value counts as missing, but not for everybody."""
        async with Endpoint([GOOD]) as endpoint:
            await grants.client_credentials(endpoint.provider, CLIENT, resource="", scopes=())
        assert endpoint.forms() == [{"grant_type": "client_credentials"}]

    async def test_the_endpoints_query_stays(self) -> None:
        """RFC 6749, 3.2."""
        async with Endpoint([GOOD]) as endpoint:
            values = endpoint.provider.as_json()
            values["token_endpoint"] += "?tenant=a%20b"
            provider = endpoint.provider.from_json(values)
            await grants.client_credentials(provider, CLIENT, resource="", scopes=())
        assert endpoint.requests[0].path == "/endpoint?tenant=a%20b"


class TestRedirects:
    """B10 and B12's neighbours: a redirect may lead on, but takes no secret elsewhere."""

    @pytest.mark.parametrize("status", [307, 308])
    async def test_one_of_the_same_origin_is_followed(self, status: int) -> None:
        moved = Reply(status, {"location": "/endpoint/"})
        tokens, endpoint = await ask(moved, GOOD)
        assert tokens.access_token == "at-1"
        assert [request.path for request in endpoint.requests] == ["/endpoint", "/endpoint/"]
        first, second = endpoint.requests
        assert first.body == second.body
        assert first.headers["authorization"] == second.headers["authorization"]

    async def test_one_cannot_put_other_words_in_the_place_of_ours(self) -> None:
        """A user name in an address would be sent as Authorization."""
        async with Endpoint([Reply(307), GOOD]) as endpoint:
            place = f"http://user:word@127.0.0.1:{endpoint.http.port}/x"
            endpoint.replies[0] = Reply(307, {"location": place})
            await grants.client_credentials(endpoint.provider, CLIENT, resource="", scopes=())
        first, second = endpoint.requests
        assert second.path == "/x"
        assert second.headers["authorization"] == first.headers["authorization"]

    async def test_one_to_another_origin_is_not(self) -> None:
        async with Endpoint([GOOD]) as other:
            moved = Reply(307, {"location": f"{other.origin}/token?code=shown"})
            error, _ = await failure(moved)
        assert other.requests == []
        assert f"redirects to {other.origin}/token, where Umpteenth sends no" in error.message

    @pytest.mark.parametrize("status", [301, 302, 303])
    async def test_one_that_turns_a_post_into_something_else_is_not(self, status: int) -> None:
        error, endpoint = await failure(Reply(status, {"location": "/elsewhere"}))
        assert len(endpoint.requests) == 1
        assert "redirects to" in error.message

    @pytest.mark.parametrize("location", ["http://[", "javascript:alert(1)", "https://["])
    async def test_one_to_nowhere_is_not(self, location: str) -> None:
        error, endpoint = await failure(Reply(307, {"location": location}))
        assert len(endpoint.requests) == 1
        assert "redirects to" in error.message

    async def test_a_ring_ends(self) -> None:
        error, endpoint = await failure(Reply(307, {"location": "/endpoint"}))
        assert "again and again" in error.message
        assert len(endpoint.requests) == 1 + asking.MAX_REDIRECTS


class TestAnswer:
    async def test_a_compressed_one_is_read(self) -> None:
        """B23's harmless case: nobody offered it, and some proxies do it all the same."""
        plain = json_reply(GOOD)
        assert isinstance(plain.body, bytes)
        packed = Reply(
            200, {**plain.headers, "content-encoding": "gzip"}, gzip.compress(plain.body)
        )
        tokens, _ = await ask(packed)
        assert tokens.access_token == "at-1"

    async def test_a_bomb_does_not_go_off(self) -> None:
        """B23: the decoded bytes count."""
        bomb = gzip.compress(b" " * 50_000_000)
        error, _ = await failure(Reply(200, {"content-encoding": "gzip"}, bomb))
        assert "could not be read: The server's answer is larger than" in error.message

    async def test_an_endless_one_is_cut(self) -> None:
        endless = Reply(200, {"content-type": JSON}, pieces(b" " * 65536, 100))
        error, _ = await failure(endless)
        assert "could not be read: The server's answer is larger than" in error.message

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<html>Sign in</html>",
            b'"at-1"',
            b'["access_token"]',
            b'{"access_token": "at-1"',
            b"[" * 200_000,
            b'{"access_token": "at-1", "x": ' + b"[" * 500 + b"]" * 500 + b"}",
            b"access_token=at-1&token_type=bearer",
        ],
        ids=["nothing", "page", "text", "list", "half", "deep", "deep inside", "form"],
    )
    async def test_what_is_no_object_is_none(self, body: bytes) -> None:
        """A24; the depth is bounded as well as the size."""
        error, _ = await failure(Reply(200, {"content-type": JSON}, body))
        assert "nothing that OAuth knows" in error.message

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    async def test_a_mark_at_its_beginning_counts(self, encoding: str) -> None:
        body = '{"access_token": "at-1", "token_type": "bearer"}'.encode(encoding)
        tokens, _ = await ask(Reply(200, {"content-type": JSON}, body))
        assert tokens.access_token == "at-1"


class TestFailures:
    async def test_one_that_breaks_off(self) -> None:
        error, _ = await failure(Reply(200, {}, pieces(b"{", 1), cut=True))
        assert "could not be read: " in error.message

    async def test_one_that_never_comes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Issue 4: 30 seconds in all, however slowly it trickles."""
        assert asking.LIMIT_SECONDS == 30
        monkeypatch.setattr(asking, "LIMIT_SECONDS", 0.05)
        async with Endpoint([None]) as endpoint:
            never = socket.create_server(("127.0.0.1", 0))
            try:
                port = never.getsockname()[1]
                values = {
                    **endpoint.provider.as_json(),
                    "token_endpoint": f"http://127.0.0.1:{port}",
                }
                provider = endpoint.provider.from_json(values)
                with pytest.raises(ProviderUnreachable, match=r"within 0\.05 seconds"):
                    await grants.client_credentials(provider, CLIENT, resource="", scopes=())
            finally:
                never.close()

    async def test_both_methods_together_take_no_longer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A16 within the limit: a refresh holds a lease meanwhile (A20)."""
        given: list[float | None] = []

        async def post(url: str, *request: Any, seconds: float | None = None) -> replies.Reply:
            given.append(seconds)
            return replies.Reply(url, 401, {"error": "invalid_client"})

        monkeypatch.setattr(asking, "post", post)
        async with Endpoint([GOOD]) as endpoint:
            with pytest.raises(ProviderRefusal):
                await grants.client_credentials(endpoint.provider, CLIENT, resource="", scopes=())
        first, second = given
        assert first is not None
        assert second is not None
        assert second < first <= 30

    async def test_a_closed_port_is_named(self) -> None:
        """Connection errors are told apart (issue 4, section 5)."""
        async with Endpoint([GOOD]) as endpoint:
            provider = endpoint.provider
        with pytest.raises(ProviderUnreachable, match="refused the connection") as caught:
            await grants.client_credentials(provider, CLIENT, resource="", scopes=())
        assert caught.value.hint

    @pytest.mark.parametrize("url", ["http://[", "gopher://as/token", "http://", "nonsense"])
    async def test_an_address_that_is_none(self, url: str) -> None:
        async with Endpoint([GOOD]) as endpoint:
            values = {**endpoint.provider.as_json(), "token_endpoint": url}
            provider = endpoint.provider.from_json(values)
        with pytest.raises(ProviderUnreachable, match="no address of an endpoint"):
            await grants.client_credentials(provider, CLIENT, resource="", scopes=())

    async def test_a_reset_is_no_refusal(self) -> None:
        error, _ = await failure(Reply(abort=True))
        assert isinstance(error, ProviderUnreachable)
        assert "s3cret-value" not in error.message


class TestWords:
    """Some providers repeat what they refuse; nobody shall read it in a log or on a page."""

    SECRETS = ("code-123456", "verifier-123456", "refresh-123456", "access-123456", "s3cret-value")

    async def echo(self, request: Callable[[Provider], Awaitable[Any]]) -> str:
        def answer(body: str) -> Reply:
            return json_reply({"error": body[:100], "error_description": body}, 400)

        async with Endpoint([None]) as endpoint:
            endpoint.http.script = lambda asked: answer(asked.body.decode())
            with pytest.raises(ProviderRefusal) as caught:
                await request(endpoint.provider)
        return f"{caught.value.message} {caught.value.hint} {caught.value.error}"

    async def test_of_a_code(self) -> None:
        words = await self.echo(
            lambda provider: grants.exchange_code(
                provider,
                replace(CLIENT, method="client_secret_post"),
                code="code-123456",
                redirect_uri="https://ump.example.org/c",
                verifier="verifier-123456",
                resource="",
            )
        )
        assert "[secret code]" in words
        assert not [secret for secret in self.SECRETS if secret in words]

    @pytest.mark.parametrize("ask", [grants.refresh_tokens, grants.revoke])
    async def test_of_tokens(self, ask: Callable[..., Awaitable[Any]]) -> None:
        tokens = Tokens("access-123456", "refresh-123456")
        client = replace(CLIENT, method="client_secret_post")
        words = await self.echo(
            lambda provider: ask(LoginSecrets(tokens, provider, client, ""), client)
        )
        assert "[secret " in words
        assert not [secret for secret in self.SECRETS if secret in words]


class TestGuard:
    """I05, P77: endpoints come from strangers, so each request goes through the guarded door."""

    async def test_cloud_metadata_is_never_asked(self) -> None:
        async with Endpoint([GOOD]) as endpoint:
            url = "http://169.254.169.254/latest/token"
            values = {**endpoint.provider.as_json(), "token_endpoint": url}
            provider = endpoint.provider.from_json({**values, "registration_endpoint": url})
        with pytest.raises(ProviderUnreachable, match="metadata"):
            await grants.client_credentials(provider, CLIENT, resource="", scopes=())
        with pytest.raises(ProviderUnreachable, match="metadata"):
            await register(provider, redirect_uri="https://ump.example.org/c", scopes=())

    async def test_private_networks_are_not_where_they_are_not_allowed(
        self, set_network: Any
    ) -> None:
        set_network(allow_private_targets=False)
        error, endpoint = await failure(GOOD)
        assert endpoint.requests == []
        assert "points to a private or local network address" in error.message
