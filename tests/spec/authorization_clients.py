"""What revisions want of clients at an authorization server: who they are, what they ask."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import pytest

from servers.oauth import grants
from servers.oauth.clients import choose_client, client_document, document_url
from servers.oauth.registration import register
from servers.oauth.types import Client, ClientNeeded, LoginSecrets, OAuthError
from tests.fakes.oauth_providers import CALLBACK, provider_of
from tests.fakes.oauth_server import OAuthServer, Variant
from tests.spec.support import Spec

APP = "https://ump.example.org"
SERVER = UUID("01890000-0000-7000-8000-000000000001")


async def log_in(fake: OAuthServer, *, state: str = "", **changes: Any) -> LoginSecrets:
    """A whole login: registered, approved, redeemed."""
    provider = provider_of(fake, **changes)
    client = await register(provider, redirect_uri=CALLBACK, scopes=())
    verifier = grants.new_verifier()
    there = grants.authorization_url(
        provider,
        client,
        redirect_uri=CALLBACK,
        state=state or grants.new_state(),
        verifier=verifier,
        resource=fake.resource,
        scopes=(),
    )
    back = dict(parse_qsl(urlsplit(fake.visit(there)).query))
    grants.check_issuer(provider, back.get("iss"))
    tokens, client = await grants.exchange_code(
        provider,
        client,
        code=back["code"],
        redirect_uri=CALLBACK,
        verifier=verifier,
        resource=fake.resource,
    )
    return LoginSecrets(tokens, provider, client, fake.resource)


class CodesOfEach(Spec):
    """Authorization Code Protection (2025-03-26: OAuth Grant Types, Security Considerations)."""

    async def test_each_login_proves_that_it_was_begun_here(self) -> None:
        """PKCE is required, by S256, with a verifier of its own for each login."""
        async with OAuthServer() as fake:
            await log_in(fake)
            await log_in(fake)
        asked, redeemed = fake.sent("authorize"), fake.sent("token")
        assert {form["code_challenge_method"] for form in asked} == {"S256"}
        for there, here in zip(asked, redeemed, strict=True):
            digest = hashlib.sha256(here["code_verifier"].encode()).digest()
            expected = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            assert there["code_challenge"] == expected
        assert len({form["code_verifier"] for form in redeemed}) == 2

    async def test_the_state_comes_along(self) -> None:
        """Clients should use and verify state parameters."""
        async with OAuthServer() as fake:
            await log_in(fake, state="a-state")
            await log_in(fake)
            await log_in(fake)
        states = [form["state"] for form in fake.sent("authorize")]
        assert states[0] == "a-state"
        assert len(set(states)) == 3

    async def test_the_redirect_uri_is_the_registered_one_throughout(self) -> None:
        """Open Redirection: clients must have their redirect URIs registered."""
        async with OAuthServer() as fake:
            login = await log_in(fake)
            registered = fake.grants.clients[login.client.client_id].redirect_uris
        used = [form["redirect_uri"] for _, form in fake.calls if "redirect_uri" in form]
        assert (registered, used) == ([CALLBACK], [CALLBACK, CALLBACK])


class RegistrationOfEach(Spec):
    """Dynamic Client Registration."""

    async def test_a_client_registers_by_itself(self) -> None:
        """Without user interaction, for a code and refresh tokens (2026-07-28: Refresh Tokens)."""
        async with OAuthServer() as fake:
            await log_in(fake)
        request = fake.provider.requests[0].message
        assert request["client_name"] == "Umpteenth"
        assert request["redirect_uris"] == [CALLBACK]
        assert set(request["grant_types"]) == {"authorization_code", "refresh_token"}
        assert request["response_types"] == ["code"]

    async def test_else_somebody_has_to_enter_a_client_id(self) -> None:
        """A client needs another way to a client ID where there is no registration (P55, P56)."""
        async with OAuthServer(Variant(registration="none")) as fake:
            fake.add_client("by-hand", redirect_uris=[CALLBACK])
            provider = provider_of(fake)
            with pytest.raises(ClientNeeded, match="needs an OAuth client ID"):
                await register(provider, redirect_uri=CALLBACK, scopes=())
            chosen = choose_client(
                provider,
                operator_id="by-hand",
                operator_secret="",
                document_url=None,
                registered=None,
            )
        assert chosen == Client("by-hand", "operator")


class GrantsOfEach(Spec):
    """Grants and tokens (OAuth 2.1, 4)."""

    async def test_a_client_may_log_in_without_a_person(self) -> None:
        """2025-03-26, OAuth Grant Types: client credentials; later an extension."""
        async with OAuthServer() as fake:
            fake.add_client("machine", secret="s3cret")
            client = Client("machine", "operator", "client_secret_basic", "s3cret")
            tokens, _ = await grants.client_credentials(
                provider_of(fake), client, resource=fake.resource, scopes=("read",)
            )
            assert fake.grants.family_of(tokens.access_token)

    async def test_rotated_refresh_tokens_are_taken_over(self) -> None:
        """Token Theft: servers must rotate those of public clients."""
        async with OAuthServer() as fake:
            login = await log_in(fake)
            assert login.client.method == "none"
            for _ in range(3):
                tokens, _ = await grants.refresh_tokens(login, login.client)
                login = replace(login, tokens=tokens)
        assert [outcome for _, outcome in fake.grants.outcomes] == ["ok"] * 4

    async def test_tokens_go_into_no_address(self) -> None:
        """Token Requirements: never in a query; here that of the token endpoint."""
        async with OAuthServer() as fake:
            login = await log_in(fake)
            await grants.refresh_tokens(login, login.client)
            await grants.revoke(login, login.client)
        assert all("?" not in request.path for request in fake.provider.requests)


class ResourceOfEach(Spec):
    """Resource Parameter Implementation, from 2025-06-18 on (RFC 8707)."""

    @pytest.mark.parametrize("resource", ["{server}", "{url}", "{url}/deeper", "{server}/"])
    async def test_it_is_in_authorization_and_token_requests(self, resource: str) -> None:
        """Whether or not the authorization server supports it, and in the server's own spelling."""
        async with OAuthServer(Variant(strict_resource=True, resource=resource)) as fake:
            login = await log_in(fake)
            await grants.refresh_tokens(login, login.client)
            sent = [form["resource"] for name, form in fake.calls if name != "register"]
        assert sent == [fake.resource] * 3


class OrderOfEach(Spec):
    """Client Registration Approaches (2026-07-28: Client Registration), from 2025-11-25 on."""

    @pytest.mark.parametrize(
        ("by_hand", "reads", "kind"),
        [(True, True, "operator"), (False, True, "document"), (False, False, "registered")],
    )
    async def test_the_order_of_preference(self, by_hand: bool, reads: bool, kind: str) -> None:
        """Pre-registered, then a metadata document, then dynamic registration."""
        async with OAuthServer() as fake:
            provider = provider_of(fake, takes_client_documents=reads)
            client = choose_client(
                provider,
                operator_id="by-hand" if by_hand else "",
                operator_secret="",
                document_url=document_url(APP, SERVER),
                registered=None,
            ) or await register(provider, redirect_uri=CALLBACK, scopes=())
        assert client.kind == kind
        assert fake.count("register") == (kind == "registered")

    async def test_a_document_identifies_the_client(self) -> None:
        """Client ID Metadata Documents: https with a path; the ID in it is its address exactly."""
        address = document_url(APP, SERVER)
        assert address is not None
        document = client_document(APP, SERVER, CALLBACK)
        assert {"client_id", "client_name", "redirect_uris"} <= set(document)
        assert document["client_id"] == address
        assert urlsplit(address).scheme == "https"
        assert urlsplit(address).path.strip("/")
        documents = {address: document}
        variant = Variant(takes_client_documents=True, client_document=documents.__getitem__)
        async with OAuthServer(variant) as fake:
            provider = provider_of(fake, takes_client_documents=True)
            client = choose_client(
                provider, operator_id="", operator_secret="", document_url=address, registered=None
            )
            assert client is not None
            verifier = grants.new_verifier()
            there = grants.authorization_url(
                provider, client, redirect_uri=CALLBACK, state="s", verifier=verifier,
                resource=fake.resource, scopes=(),
            )  # fmt: skip
            code = dict(parse_qsl(urlsplit(fake.visit(there)).query))["code"]
            tokens, _ = await grants.exchange_code(
                provider, client, code=code, redirect_uri=CALLBACK, verifier=verifier,
                resource=fake.resource,
            )  # fmt: skip
            assert fake.grants.family_of(tokens.access_token)


class IssuersOfEach(Spec):
    """Authorization Response Validation, in 2026-07-28 (RFC 9207, 2.4)."""

    @pytest.mark.parametrize(
        ("announced", "iss", "accepted"),
        [
            (True, "{issuer}", True),
            (True, None, False),
            (True, "{issuer}/", False),
            (False, "{issuer}", True),
            (False, "https://evil.example.org", False),
            (False, None, True),
        ],
    )
    async def test_the_table_of_the_specification(
        self, announced: bool, iss: str | None, accepted: bool
    ) -> None:
        """Where it is not accepted, no code is redeemed."""
        async with OAuthServer(Variant(iss=iss, sends_issuer=announced)) as fake:
            if accepted:
                await log_in(fake, sends_issuer=announced)
            else:
                with pytest.raises(OAuthError):
                    await log_in(fake, sends_issuer=announced)
        assert fake.count("token") == int(accepted)


class ApplicationTypesOfEach(Spec):
    """Application Type and Redirect URI Constraints, in 2026-07-28."""

    @pytest.mark.parametrize(
        ("redirect_uri", "kind"),
        [(CALLBACK, "web"), ("http://localhost:8080/callback", "native")],
    )
    async def test_it_is_named(self, redirect_uri: str, kind: str) -> None:
        async with OAuthServer() as fake:
            await register(provider_of(fake), redirect_uri=redirect_uri, scopes=())
        assert fake.provider.requests[0].message["application_type"] == kind
