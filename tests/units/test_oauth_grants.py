"""The requests of a login, at a provider that checks them (RFC 6749, 7636, 8707, 9207)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pytest

from servers.oauth import grants
from servers.oauth.types import (
    AuthMethod,
    Client,
    LoginSecrets,
    OAuthError,
    Provider,
    ProviderRefusal,
    Tokens,
)
from tests.fakes.mcp_http import Reply
from tests.fakes.oauth_providers import CALLBACK, Endpoint, json_reply, provider_of
from tests.fakes.oauth_server import OAuthServer, Variant

POST: Final = "client_secret_post"
BASIC: Final = "client_secret_basic"
STRICT = Variant(strict_resource=True, resource="{server}")


def address(provider: Provider, client: Client, **changes: Any) -> str:
    values: dict[str, Any] = {
        "redirect_uri": CALLBACK,
        "state": "the-state",
        "verifier": "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        "resource": "https://mcp.example.org",
        "scopes": (),
        **changes,
    }
    return grants.authorization_url(provider, client, **values)


def parameters(url: str) -> dict[str, str]:
    pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    assert len(pairs) == len(dict(pairs)), f"a parameter twice: {pairs}"
    return dict(pairs)


async def logged_in(
    fake: OAuthServer, client: Client, *, provider: Provider | None = None, resource: str = ""
) -> tuple[Tokens, Client]:
    """All steps of a login, the person approving."""
    provider, verifier = provider or provider_of(fake), grants.new_verifier()
    resource = resource or fake.resource
    there = address(provider, client, verifier=verifier, resource=resource)
    back = parameters(fake.visit(there))
    assert back["state"] == "the-state"
    return await grants.exchange_code(
        provider,
        client,
        code=back["code"],
        redirect_uri=CALLBACK,
        verifier=verifier,
        resource=resource,
    )


def operators(fake: OAuthServer, method: AuthMethod = "none", secret: str = "") -> Client:
    """A client that the provider knows by `method`."""
    fake.add_client("mine", secret=secret, redirect_uris=[CALLBACK])
    return Client("mine", "operator", method, secret)


class TestAuthorizationUrl:
    client = Client("c 1", "registered")
    provider = Provider("https://as", "https://as.example.org/authorize?tenant=a&x=", "https://t")

    def test_it_asks_for_a_code_with_pkce_and_resource(self) -> None:
        """RFC 6749, 4.1.1; RFC 7636, appendix B; RFC 8707, 2. The endpoint's own query stays."""
        url = address(self.provider, self.client, scopes=("read", "write"))
        assert url.startswith("https://as.example.org/authorize?")
        assert parameters(url) == {
            "tenant": "a",
            "x": "",
            "response_type": "code",
            "client_id": "c 1",
            "redirect_uri": CALLBACK,
            "state": "the-state",
            "code_challenge": "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM",
            "code_challenge_method": "S256",
            "scope": "read write",
            "resource": "https://mcp.example.org",
        }

    def test_without_scopes_none_are_named(self) -> None:
        """P58's empty field, and the second try after `invalid_scope`."""
        assert "scope" not in parameters(address(self.provider, self.client))
        assert "resource" not in parameters(address(self.provider, self.client, resource=""))

    def test_access_for_later_is_consented_to(self) -> None:
        """OpenID Connect Core, 11: without the prompt `offline_access` is left out."""
        url = address(self.provider, self.client, scopes=("read", "offline_access"))
        assert parameters(url)["prompt"] == "consent"
        assert "prompt" not in parameters(address(self.provider, self.client, scopes=("read",)))

    @pytest.mark.parametrize(
        "name",
        ["client_id", "redirect_uri", "response_type", "state", "resource", "scope", "request",
         "request_uri", "response_mode", "nonce", "code_challenge", "code_challenge_method"],
    )  # fmt: skip
    def test_a_strange_document_sets_none_of_ours(self, name: str) -> None:
        """RFC 6749, 3.1: once each. A document that smuggles one could lead the code elsewhere."""
        endpoint = f"https://as.example.org/authorize?{name}=evil&keep=1"
        url = address(replace(self.provider, authorization_endpoint=endpoint), self.client)
        assert "evil" not in url
        assert parameters(url)["keep"] == "1"

    @pytest.mark.parametrize(
        "resource",
        ["https://h", "https://h/", "https://H/Mcp?a=b&c=%2F+d", "https://h/é", "https://h:443/x"],
    )
    def test_the_resource_goes_byte_for_byte(self, resource: str) -> None:
        """A04: nothing is normalized."""
        url = address(self.provider, self.client, resource=resource)
        assert parameters(url)["resource"] == resource

    def test_without_a_page_nobody_is_sent(self) -> None:
        """A provider for machines only names no authorization endpoint (RFC 8414, 2)."""
        with pytest.raises(OAuthError, match="no page on which a person could log in"):
            address(replace(self.provider, authorization_endpoint=""), self.client)

    def test_a_fragment_is_left_behind(self) -> None:
        """RFC 6749, 3.1: the endpoint has none; ours would hide behind it."""
        provider = replace(self.provider, authorization_endpoint="https://as/authorize#top")
        assert "#" not in address(provider, self.client)

    def test_verifiers_and_states_are_long_and_new(self) -> None:
        """RFC 7636, 4.1, and RFC 6749, 10.10."""
        verifiers = {grants.new_verifier() for _ in range(50)}
        states = {grants.new_state() for _ in range(50)}
        assert (len(verifiers), len(states)) == (50, 50)
        assert all(re.fullmatch(r"[A-Za-z0-9._~-]{43,128}", item) for item in verifiers)
        assert all(len(item) >= 43 for item in states)


class TestIssuer:
    """A33, RFC 9207, 2.4."""

    @pytest.mark.parametrize("says_so", [True, False])
    def test_the_right_one_passes(self, says_so: bool) -> None:
        grants.check_issuer(Provider("https://as", "", "", sends_issuer=says_so), "https://as")

    def test_none_passes_where_none_was_announced(self) -> None:
        grants.check_issuer(Provider("https://as", "", ""), None)

    def test_none_is_refused_where_one_was_announced(self) -> None:
        with pytest.raises(OAuthError, match="does not name its issuer"):
            grants.check_issuer(Provider("https://as", "", "", sends_issuer=True), None)

    @pytest.mark.parametrize("says_so", [True, False])
    @pytest.mark.parametrize(
        "iss", ["https://as/", "https://AS", "https://as:443", "http://as", "https://evil", ""]
    )
    def test_another_one_is_refused(self, iss: str, says_so: bool) -> None:
        """RFC 3986, 6.2.1: compared as it is."""
        with pytest.raises(OAuthError, match="another authorization server"):
            grants.check_issuer(Provider("https://as", "", "", sends_issuer=says_so), iss)


class TestCode:
    @pytest.mark.parametrize("method", ["none", POST, BASIC])
    async def test_a_code_becomes_tokens(self, method: AuthMethod) -> None:
        async with OAuthServer(Variant(auth_methods=(method,))) as fake:
            client = operators(fake, method, "" if method == "none" else "s3cret")
            tokens, same = await logged_in(fake, client)
            assert fake.grants.family_of(tokens.access_token)
        assert tokens.refresh_token.startswith("refresh-")
        assert tokens.expires_at == pytest.approx(tokens.issued_at + 3600)
        assert same == client
        assert fake.grants.outcomes == [("authorization_code", "ok")]

    async def test_the_resource_is_the_same_in_all_requests(self) -> None:
        """A04: authorize, code and refresh, compared byte for byte by the provider."""
        async with OAuthServer(STRICT) as fake:
            client, provider = operators(fake), provider_of(fake)
            tokens, _ = await logged_in(fake, client)
            login = LoginSecrets(tokens, provider, client, fake.resource)
            await grants.refresh_tokens(login, client)
            sent = [form["resource"] for _, form in fake.calls]
        assert sent == [fake.server_origin] * 3
        assert [outcome for _, outcome in fake.grants.outcomes] == ["ok", "ok"]

    async def test_another_resource_is_refused_in_the_providers_words(self) -> None:
        async with OAuthServer(Variant(strict_resource=True)) as fake:
            client, provider = operators(fake), provider_of(fake)
            with pytest.raises(ProviderRefusal, match=r"Not my resource.*\(invalid_target\)"):
                await grants.client_credentials(
                    provider, client, resource="https://elsewhere", scopes=()
                )

    async def test_a_wrong_verifier_is_refused(self) -> None:
        """RFC 7636, 4.6: what the provider says is shown, with the next step."""
        async with OAuthServer() as fake:
            client, provider = operators(fake), provider_of(fake)
            code = parameters(fake.visit(address(provider, client)))["code"]
            with pytest.raises(ProviderRefusal) as caught:
                await grants.exchange_code(
                    provider, client, code=code, redirect_uri=CALLBACK,
                    verifier=grants.new_verifier(), resource="",
                )  # fmt: skip
        error = caught.value
        assert (error.error, error.status) == ("invalid_grant", 400)
        assert "The code verifier does not match" in error.message
        assert error.hint == "Log in again."
        assert code not in error.message


class TestOtherMethod:
    """A16: providers list methods that they do not implement."""

    @pytest.mark.parametrize(
        ("advertised", "works", "tried"), [(POST, BASIC, BASIC), (BASIC, POST, POST)]
    )
    async def test_the_other_method_is_tried_and_remembered(
        self, advertised: AuthMethod, works: AuthMethod, tried: AuthMethod
    ) -> None:
        variant = Variant(auth_methods=(works,), advertised_auth_methods=(advertised,))
        async with OAuthServer(variant) as fake:
            client = operators(fake, advertised, "s3cret")
            tokens, working = await logged_in(fake, client)
            assert working == replace(client, method=tried)
            assert fake.count("token") == 2
            login = LoginSecrets(tokens, provider_of(fake), working, fake.resource)
            await grants.refresh_tokens(login, working)
        assert fake.count("token") == 3
        assert [outcome for _, outcome in fake.grants.outcomes] == ["invalid_client", "ok", "ok"]

    async def test_both_are_never_sent_at_once(self) -> None:
        """RFC 6749, 2.3."""
        async with Endpoint([json_reply({"error": "invalid_client"}, 401)]) as endpoint:
            client = Client("mine", "operator", POST, "s3cret")
            with pytest.raises(ProviderRefusal):
                await grants.client_credentials(endpoint.provider, client, resource="", scopes=())
        ways = [
            ("authorization" in request.headers, "client_secret" in form, "client_id" in form)
            for request, form in zip(endpoint.requests, endpoint.forms(), strict=True)
        ]
        assert ways == [(False, True, True), (True, False, False)]

    @pytest.mark.parametrize(
        "refused",
        [
            json_reply({"error": "invalid_client"}, 400),
            json_reply({"error": "invalid_client", "error_description": "Missing client_id"}, 401),
            json_reply({"error": "invalid_request", "error_description": "Missing client_id"}, 400),
            json_reply({"error": "incorrect_client_credentials"}),
            json_reply({"message": "Unauthorized"}, 401),
            json_reply({"error": "Not Found"}, 404),
            Reply(401, {"www-authenticate": "Basic"}, b""),
        ],
        ids=["400", "401", "invalid_request", "GitHub's word", "401", "GitHub's 404", "nothing"],
    )
    async def test_whatever_says_that_the_client_is_not_seen(self, refused: Any) -> None:
        answers = [refused, {"access_token": "t", "token_type": "bearer"}]
        async with Endpoint(answers) as endpoint:
            client = Client("mine", "operator", BASIC, "s3cret")
            _, working = await grants.client_credentials(
                endpoint.provider, client, resource="", scopes=()
            )
        assert (working.method, len(endpoint.requests)) == (POST, 2)

    @pytest.mark.parametrize(
        "refused",
        [
            json_reply({"error": "invalid_grant"}, 401),
            json_reply({"error": "access_denied"}, 403),
            json_reply({"error": "invalid_target"}, 404),
            json_reply({"error": "invalid_request", "error_description": "No code."}, 400),
            json_reply({"error": "unauthorized_client"}, 400),
        ],
    )
    async def test_what_is_not_about_the_client_is_asked_once(self, refused: Any) -> None:
        """A second request would use up, or burn, a code or a refresh token."""
        async with Endpoint([refused]) as endpoint:
            client = Client("mine", "operator", BASIC, "s3cret")
            with pytest.raises(ProviderRefusal):
                await grants.client_credentials(endpoint.provider, client, resource="", scopes=())
        assert len(endpoint.requests) == 1

    async def test_if_neither_works_the_first_words_are_shown(self) -> None:
        first = {"error": "invalid_client", "error_description": "Wrong secret."}
        replies = [json_reply(first, 401), json_reply({"error": "invalid_client"}, 401)]
        async with Endpoint(replies) as endpoint:
            client = Client("mine", "operator", POST, "s3cret")
            with pytest.raises(ProviderRefusal, match=r"Wrong secret \(invalid_client\)") as caught:
                await grants.client_credentials(endpoint.provider, client, resource="", scopes=())
        assert caught.value.hint.startswith("Check the Client ID and the client secret")

    @pytest.mark.parametrize(
        ("kind", "hint"),
        [
            ("operator", "Check the Client ID and the client secret in the server's settings."),
            ("registered", "Log in again: Umpteenth then registers"),
            ("document", "able to read Umpteenth's document at https://ump.example.org/client."),
        ],
    )
    async def test_a_public_client_has_no_other_way(self, kind: Any, hint: str) -> None:
        """A29: a forgotten client is `invalid_client`, with the next step for each kind."""
        async with OAuthServer() as fake:
            fake.forget_clients()
            client = Client("https://ump.example.org/client", kind)
            with pytest.raises(ProviderRefusal) as caught:
                await grants.exchange_code(
                    provider_of(fake), client, code="c0de-123456", redirect_uri=CALLBACK,
                    verifier="v", resource="",
                )  # fmt: skip
        assert caught.value.error == "invalid_client"
        assert hint in caught.value.hint
        assert fake.count("token") == 1


class TestRefresh:
    async def test_a_rotated_token_replaces_the_old_one(self) -> None:
        async with OAuthServer() as fake:
            client, provider = operators(fake), provider_of(fake)
            first, _ = await logged_in(fake, client)
            login = LoginSecrets(first, provider, client, fake.resource)
            second, _ = await grants.refresh_tokens(login, client)
            assert second.refresh_token not in ("", first.refresh_token)
            with pytest.raises(ProviderRefusal) as caught:
                await grants.refresh_tokens(login, client)  # A20: the first one is used up
        assert caught.value.error == "invalid_grant"
        assert first.refresh_token not in caught.value.message

    async def test_without_a_new_one_the_old_one_stays(self) -> None:
        """RFC 6749, 6; the scopes as well (5.1)."""
        async with OAuthServer(Variant(rotates=False)) as fake:
            client, provider = operators(fake), provider_of(fake)
            first, _ = await logged_in(fake, client)
            first = replace(first, scopes=("read",))
            login = LoginSecrets(first, provider, client, fake.resource)
            second, _ = await grants.refresh_tokens(login, client)
        assert second.access_token != first.access_token
        assert (second.refresh_token, second.scopes) == (first.refresh_token, ("read",))
        assert "scope" not in fake.sent("token")[1]


class TestMachine:
    """Client credentials (RFC 6749, 4.4; login kind `machine`)."""

    @pytest.mark.parametrize("method", [POST, BASIC])
    async def test_a_client_logs_in_by_itself(self, method: AuthMethod) -> None:
        async with OAuthServer(Variant(strict_resource=True)) as fake:
            client = operators(fake, method, "s3cret")
            tokens, _ = await grants.client_credentials(
                provider_of(fake), client, resource=fake.resource, scopes=("a", "offline_access")
            )
            assert fake.grants.family_of(tokens.access_token)
        assert (tokens.refresh_token, tokens.scopes) == ("", ("a",))
        assert fake.sent("token")[0]["scope"] == "a"

    async def test_a_refresh_token_is_not_kept(self) -> None:
        """RFC 6749, 4.4.3: there should be none; the secret brings the next token."""
        answer = {"access_token": "t", "token_type": "bearer", "refresh_token": "r"}
        async with Endpoint([answer]) as endpoint:
            tokens, _ = await grants.client_credentials(
                endpoint.provider, Client("m", "operator", BASIC, "s"), resource="", scopes=()
            )
        assert tokens.refresh_token == ""


class TestRevocation:
    """RFC 7009."""

    async def test_both_tokens_are_ended(self) -> None:
        async with OAuthServer() as fake:
            client, provider = operators(fake, BASIC, "s3cret"), provider_of(fake)
            tokens, _ = await logged_in(fake, client)
            await grants.revoke(LoginSecrets(tokens, provider, client, ""), client)
            assert fake.grants.family_of(tokens.access_token) is None
            assert fake.grants.families[0].revoked
        hints = [form["token_type_hint"] for form in fake.sent("revoke")]
        assert hints == ["refresh_token", "access_token"]

    async def test_a_provider_without_an_endpoint_is_not_asked(self) -> None:
        async with OAuthServer(Variant(revocation=False)) as fake:
            login = LoginSecrets(Tokens("a" * 8), provider_of(fake), Client("m", "registered"), "")
            await grants.revoke(login, login.client)
        assert fake.provider.requests == []

    async def test_the_second_is_ended_even_if_the_first_is_refused(self) -> None:
        replies = [json_reply({"error": "invalid_request"}, 400), json_reply({})]
        async with Endpoint(replies) as endpoint:
            tokens = Tokens("access-123", "refresh-123")
            login = LoginSecrets(tokens, endpoint.provider, Client("m", "registered"), "")
            with pytest.raises(ProviderRefusal, match="refused to end the login"):
                await grants.revoke(login, login.client)
        assert [form["token"] for form in endpoint.forms()] == ["refresh-123", "access-123"]

    async def test_a_kind_of_token_that_it_does_not_end_is_no_failure(self) -> None:
        """RFC 7009, 2.2.1."""
        async with Endpoint([json_reply({"error": "unsupported_token_type"}, 400)]) as endpoint:
            login = LoginSecrets(
                Tokens("access-123"), endpoint.provider, Client("m", "registered"), ""
            )
            await grants.revoke(login, login.client)
        assert len(endpoint.requests) == 1
