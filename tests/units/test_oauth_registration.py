"""Dynamic registration and what its answers may hold (RFC 7591; P54, P55, A14, A15)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servers.oauth.registration import register
from servers.oauth.types import (
    Client,
    ClientNeeded,
    OAuthError,
    ProviderRefusal,
    ProviderUnreachable,
)
from tests.fakes.mcp_http import Reply
from tests.fakes.oauth_providers import CALLBACK, Endpoint, json_reply, provider_of
from tests.fakes.oauth_server import OMIT, OAuthServer, Variant

POST, BASIC = "client_secret_post", "client_secret_basic"


async def registered(answer: Any, **changes: Any) -> tuple[Client, dict[str, Any]]:
    """The client that such an answer makes, and what was asked for."""
    async with Endpoint([answer]) as endpoint:
        provider = endpoint.provider.from_json({**endpoint.provider.as_json(), **changes})
        client = await register(provider, redirect_uri=CALLBACK, scopes=())
    return client, endpoint.requests[0].message


async def failure(*answers: Any, redirect_uri: str = CALLBACK) -> tuple[OAuthError, Endpoint]:
    async with Endpoint(list(answers)) as endpoint:
        with pytest.raises(OAuthError) as caught:
            await register(endpoint.provider, redirect_uri=redirect_uri, scopes=("read",))
    return caught.value, endpoint


class TestAsking:
    async def test_the_provider_hears_of_umpteenth(self) -> None:
        """P39: the client is called Umpteenth; it comes back to one address, with a code."""
        async with OAuthServer() as fake:
            client = await register(
                provider_of(fake), redirect_uri=CALLBACK, scopes=("read", "write")
            )
            known = fake.grants.clients[client.client_id]
            assert (known.name, known.redirect_uris) == ("Umpteenth", [CALLBACK])
        assert client.kind == "registered"
        sent = fake.provider.requests[0].message
        assert sent == {
            "client_name": "Umpteenth",
            "redirect_uris": [CALLBACK],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": "web",
            "token_endpoint_auth_method": "none",
            "scope": "read write",
        }

    @pytest.mark.parametrize(
        ("redirect_uri", "kind"),
        [
            (CALLBACK, "web"),
            ("http://192.168.1.4:8080/callback", "web"),
            ("http://localhost:8080/callback", "native"),
            ("http://127.0.0.1:8080/callback", "native"),
            ("http://[::1]:8080/callback", "native"),
        ],
    )
    async def test_the_type_goes_with_where_it_comes_back_to(
        self, redirect_uri: str, kind: str
    ) -> None:
        """MCP 2026-07-28, Client Registration: local applications are native ones."""
        async with Endpoint([{"client_id": "c"}]) as endpoint:
            await register(endpoint.provider, redirect_uri=redirect_uri, scopes=())
        assert endpoint.requests[0].message["application_type"] == kind
        assert "scope" not in endpoint.requests[0].message

    @pytest.mark.parametrize(
        ("methods", "wanted"),
        [
            (None, "none"),
            ((), "none"),
            ((BASIC, POST, "none"), "none"),
            ((BASIC, POST), POST),
            ((BASIC,), BASIC),
            (("private_key_jwt",), "none"),
        ],
    )
    async def test_a_public_client_is_preferred(
        self, methods: tuple[str, ...] | None, wanted: str
    ) -> None:
        """PKCE protects it, and there is no secret that could leak or end."""
        answer = {"client_id": "c", "client_secret": "s3cret"}
        _, sent = await registered(answer, token_auth_methods=methods)
        assert sent["token_endpoint_auth_method"] == wanted

    async def test_without_an_endpoint_a_client_id_is_needed(self) -> None:
        """P55, word for word."""
        async with OAuthServer(Variant(registration="none")) as fake:
            with pytest.raises(ClientNeeded) as caught:
                await register(provider_of(fake), redirect_uri=CALLBACK, scopes=())
        assert caught.value.message == (
            "the authorization server doesn't support dynamic client registration, so the server "
            "needs an OAuth client ID"
        )
        assert "Client ID" in caught.value.hint


class TestAnswers:
    @pytest.mark.parametrize("secret", [OMIT, "", None])
    @pytest.mark.parametrize("method", [OMIT, "none", None, ""])
    @pytest.mark.parametrize("status", [200, 201])
    async def test_no_secret_and_no_method_that_wants_one_is_a_public_client(
        self, secret: Any, method: Any, status: int
    ) -> None:
        """A14: also where a confidential client was asked for."""
        given = {"client_secret": secret, "token_endpoint_auth_method": method}
        answer = {"client_id": "x"} | {k: v for k, v in given.items() if v is not OMIT}
        client, _ = await registered(json_reply(answer, status), token_auth_methods=[POST])
        assert client == Client("x", "registered", "none")

    @pytest.mark.parametrize("method", [POST, BASIC])
    @pytest.mark.parametrize("secret", [OMIT, "", None])
    async def test_a_method_without_its_secret_fails_at_once(
        self, method: str, secret: Any
    ) -> None:
        """A14: not later at the token endpoint, after a person has approved."""
        answer = {"client_id": "x", "token_endpoint_auth_method": method}
        if secret is not OMIT:
            answer["client_secret"] = secret
        error, _ = await failure(answer)
        assert isinstance(error, ProviderUnreachable)
        assert error.message.endswith(f"it has to log in by {method}, and got no secret.")
        assert "Client ID" in error.hint

    @pytest.mark.parametrize("method", [POST, BASIC])
    async def test_the_method_of_the_answer_wins(self, method: str) -> None:
        """A15: `none` was asked for."""
        answer = {"client_id": "x", "client_secret": "s3", "token_endpoint_auth_method": method}
        client, sent = await registered(answer)
        assert sent["token_endpoint_auth_method"] == "none"
        assert (client.method, client.secret) == (method, "s3")

    async def test_a_secret_that_goes_with_no_method_is_left(self) -> None:
        """A15: the answer says `none`, so it is never sent."""
        answer = {"client_id": "x", "client_secret": "s3", "token_endpoint_auth_method": "none"}
        client, _ = await registered(answer)
        assert client == Client("x", "registered", "none")

    @pytest.mark.parametrize(
        ("methods", "method"),
        [
            (None, BASIC),
            ([BASIC, POST], POST),
            ([POST], POST),
            ([BASIC], BASIC),
            (["none"], "none"),
        ],
    )
    async def test_a_secret_without_a_method_is_sent_as_the_provider_likes_it(
        self, methods: list[str] | None, method: str
    ) -> None:
        """RFC 7591, 2, and RFC 8414, 2: Basic unless something else is known."""
        answer = {"client_id": "x", "client_secret": "s3"}
        client, _ = await registered(answer, token_auth_methods=methods)
        assert client.method == method
        assert client.secret == ("s3" if method != "none" else "")

    @pytest.mark.parametrize(
        ("given", "ends"),
        [
            (0, None),
            ("0", None),
            (OMIT, None),
            (None, None),
            (-5, None),
            ("soon", None),
            (True, None),
            (1e300, None),
            (1_900_000_000, 1_900_000_000.0),
            ("1900000000", 1_900_000_000.0),
        ],
    )
    async def test_when_the_secret_ends(self, given: Any, ends: float | None) -> None:
        """RFC 7591, 3.2.1: 0 is never; nonsense says nothing (A24's neighbour)."""
        answer = {"client_id": "x", "client_secret": "s3", "token_endpoint_auth_method": POST}
        if given is not OMIT:
            answer["client_secret_expires_at"] = given
        client, _ = await registered(answer)
        assert client.secret_expires_at == ends

    @pytest.mark.parametrize("method", ["private_key_jwt", "tls_client_auth", 7, ["none"]])
    async def test_a_method_that_nobody_here_knows_fails_at_once(self, method: Any) -> None:
        answer = {"client_id": "x", "client_secret": "s", "token_endpoint_auth_method": method}
        error, _ = await failure(answer)
        assert "it has to log in by" in error.message

    @pytest.mark.parametrize(
        "answer",
        [
            {"client_id": 7},
            {"client_id": "a\r\nb"},
            {"client_id": "\ud800"},
            {"client_id": "x" * 2001},
            {"client_id": "x", "client_secret": ["s"]},
            {"client_id": "x", "client_secret": "s\x00"},
            {"client_id": "x", "client_secret": "s" * 20_000},
        ],
    )
    async def test_what_cannot_be_sent_is_refused(self, answer: dict[str, Any]) -> None:
        error, _ = await failure(answer)
        assert error.message.endswith("its ID or secret cannot be sent.")


class TestRefusals:
    async def test_the_providers_words_and_the_way_out(self) -> None:
        words = {"error": "access_denied", "error_description": "Only for partners."}
        error, endpoint = await failure(json_reply(words, 403))
        assert isinstance(error, ProviderRefusal)
        assert (error.error, error.status) == ("access_denied", 403)
        assert error.message == (
            f"{endpoint.origin}/endpoint refused to register Umpteenth: "
            "Only for partners (access_denied)."
        )
        assert error.hint.startswith("Register Umpteenth with the authorization server by hand")
        assert len(endpoint.requests) == 1

    async def test_another_type_of_application_is_tried_once(self) -> None:
        """MCP 2026-07-28, Client Registration: clients may retry with an adjusted type."""
        refused = json_reply({"error": "invalid_redirect_uri"}, 400)
        async with Endpoint([refused, {"client_id": "x"}]) as endpoint:
            client = await register(
                endpoint.provider, redirect_uri="http://192.168.1.4/callback", scopes=("read",)
            )
        types = [request.message["application_type"] for request in endpoint.requests]
        assert (client.client_id, types) == ("x", ["web", "native"])
        assert all(request.message["scope"] == "read" for request in endpoint.requests)

    @pytest.mark.parametrize("code", ["invalid_client_metadata", "invalid_scope"])
    async def test_scopes_that_are_not_liked_are_left_out(self, code: str) -> None:
        async with Endpoint([json_reply({"error": code}, 400), {"client_id": "x"}]) as endpoint:
            await register(endpoint.provider, redirect_uri=CALLBACK, scopes=("odd",))
        assert ["scope" in request.message for request in endpoint.requests] == [True, False]

    async def test_what_is_refused_twice_shows_the_first_words(self) -> None:
        first = json_reply({"error": "invalid_redirect_uri", "error_description": "https!"}, 400)
        error, endpoint = await failure(first, json_reply({"error": "second"}, 400))
        assert "https! (invalid_redirect_uri)" in error.message
        assert "app.url" in error.hint
        assert len(endpoint.requests) == 2

    @pytest.mark.parametrize("status", [429, 500, 503])
    async def test_a_busy_provider_may_have_time_later(self, status: int) -> None:
        error, endpoint = await failure(json_reply({"error": "invalid_client_metadata"}, status))
        assert isinstance(error, ProviderUnreachable)
        assert f"status {status}" in error.message
        assert len(endpoint.requests) == 1

    @pytest.mark.parametrize(
        "reply",
        [
            Reply(200, {"content-type": "text/html"}, b"<h1>Welcome</h1>"),
            Reply(404, {}, b"not found"),
            json_reply([{"client_id": "x"}]),
            json_reply({}, 201),
            json_reply({"client_id": ""}, 201),
        ],
    )
    async def test_what_is_no_registration_is_none(self, reply: Reply) -> None:
        """A08's neighbour: a page where a document should be."""
        error, _ = await failure(reply)
        assert isinstance(error, ProviderUnreachable)
        assert "nothing that OAuth knows" in error.message

    async def test_an_error_with_status_200_is_an_error(self) -> None:
        error, _ = await failure({"error": "too_many_clients"})
        assert isinstance(error, ProviderRefusal)
        assert "too_many_clients" in error.message

    def test_the_documents_words_are_json(self) -> None:
        """What is sent has to survive a strict parser: no NaN, no tuples."""
        from servers.oauth.clients import metadata

        assert json.loads(json.dumps(metadata(CALLBACK), allow_nan=False)) == metadata(CALLBACK)
