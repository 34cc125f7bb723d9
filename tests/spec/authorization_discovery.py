"""What the revisions of MCP authorization want of clients that look for a login.

The engine connects without a login, and what it was refused with is where the search begins.
"""

from __future__ import annotations

import pytest

from servers.mcp.client import connect
from servers.mcp.types import Challenge, LoginRequired
from servers.oauth.discovery import discover
from servers.oauth.scopes import scopes_to_request
from servers.oauth.types import Advertised, DiscoveryFailed
from tests.fakes.discoveries import asked_for
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.oauth_server import OMIT, OAuthServer, Reply, Request, Variant
from tests.spec.support import Spec

RESOURCE = "/.well-known/oauth-protected-resource"
OAUTH = "/.well-known/oauth-authorization-server"
OIDC = "/.well-known/openid-configuration"


async def refused(fake: OAuthServer) -> Challenge:
    with pytest.raises(LoginRequired) as caught:
        async with connect(http_settings(fake.url)) as connection:
            await connection.list_tools()
    return caught.value.challenge or Challenge()


async def found(variant: Variant) -> tuple[OAuthServer, Advertised]:
    async with OAuthServer(variant) as fake:
        advertised = await discover(fake.url, await refused(fake))
    assert advertised is not None
    return fake, advertised


async def not_found(variant: Variant) -> tuple[OAuthServer, DiscoveryFailed]:
    async with OAuthServer(variant) as fake:
        challenge = await refused(fake)
        with pytest.raises(DiscoveryFailed) as caught:
            await discover(fake.url, challenge)
    return fake, caught.value


class ServersOfOldest(Spec):
    """2025-03-26: the server is its own authorization server."""

    def variant(self, **options: object) -> Variant:
        given = {"challenge": "Bearer", "resource_at": (), "same_origin": True, **options}
        return Variant(**given)  # type: ignore[arg-type]

    async def test_metadata_are_found_at_the_authorization_base_url(self) -> None:
        """Authorization Base URL: the address of the server without its path."""
        fake, advertised = await found(self.variant())
        assert advertised.provider.metadata_url == fake.server_origin + OAUTH

    async def test_the_request_for_metadata_names_the_revision(self) -> None:
        """Server Metadata Discovery Headers: clients SHOULD send MCP-Protocol-Version."""
        fake, _ = await found(self.variant())
        asked = [request for request in fake.mcp.requests if request.path == OAUTH]
        assert [bool(request.headers.get("mcp-protocol-version")) for request in asked] == [True]

    async def test_without_metadata_the_default_endpoints_are_used(self) -> None:
        """Fallbacks for Servers without Metadata Discovery: clients MUST."""
        fake, advertised = await found(self.variant(metadata_at=()))
        provider = advertised.provider
        assert provider.authorization_endpoint == f"{fake.server_origin}/authorize"
        assert provider.token_endpoint == f"{fake.server_origin}/token"
        assert provider.registration_endpoint == f"{fake.server_origin}/register"


class ResourcesOfNewer(Spec):
    """From 2025-06-18 on a document of the server names its authorization servers (RFC 9728)."""

    async def test_the_header_says_where_the_document_is(self) -> None:
        """Authorization Server Location: clients MUST be able to parse WWW-Authenticate."""
        variant = Variant(pointer="elsewhere", resource_at=("elsewhere",))
        fake, advertised = await found(variant)
        assert asked_for(fake) == ["/about/logins.json", OAUTH]
        assert advertised.resource_metadata_url == f"{fake.server_origin}/about/logins.json"

    async def test_the_authorization_server_may_be_elsewhere(self) -> None:
        """Roles: hosted with the server or a separate entity."""
        fake, advertised = await found(Variant())
        assert advertised.provider.issuer == fake.issuer
        assert fake.origin != fake.server_origin

    async def test_a_document_may_name_several_authorization_servers(self) -> None:
        """Authorization Server Location; RFC 9728, 7.6."""
        variant = Variant(authorization_servers=("{provider}/none", "{issuer}"))
        fake, advertised = await found(variant)
        assert advertised.provider.issuer == fake.issuer

    async def test_a_document_about_another_resource_is_not_used(self) -> None:
        """RFC 9728, 3.3: MUST NOT be used."""
        fake, _ = await not_found(Variant(resource="https://evil.example.com/mcp"))
        assert not fake.provider.requests

    @pytest.mark.parametrize("resource", ["{url}", "{server}"])
    async def test_the_resource_is_what_the_document_says(self, resource: str) -> None:
        """Resource Parameter Implementation: the canonical URI, as in RFC 9728."""
        fake, advertised = await found(Variant(resource=resource))
        assert advertised.resource == fake.resource

    async def test_metadata_are_found_by_rfc_8414(self) -> None:
        fake, advertised = await found(Variant(issuer_path="/tenant1"))
        assert advertised.provider.metadata_url == f"{fake.origin}{OAUTH}/tenant1"

    async def test_metadata_of_another_issuer_are_not_used(self) -> None:
        """RFC 8414, 3.3."""
        fake, _ = await not_found(Variant(metadata={"issuer": "https://attacker.example.com"}))
        assert fake.count("register") == fake.count("authorize") == fake.count("token") == 0


class PlacesOfNewest(Spec):
    """From 2025-11-25 on there are several places, in an order."""

    async def test_without_a_pointer_the_path_comes_before_the_root(self) -> None:
        """Protected Resource Metadata Discovery Requirements: clients MUST, in this order."""
        variant = Variant(pointer="", resource_at=("root",), resource="{server}")
        fake, _ = await found(variant)
        assert asked_for(fake) == [f"{RESOURCE}/mcp", RESOURCE, OAUTH]

    async def test_an_issuer_with_a_path_has_three_places(self) -> None:
        """Authorization Server Metadata Discovery: MUST, in this order."""
        variant = Variant(issuer_path="/tenant1", metadata_at=("oidc-appended",))
        fake, _ = await found(variant)
        assert asked_for(fake)[1:] == [f"{OAUTH}/tenant1", f"{OIDC}/tenant1", f"/tenant1{OIDC}"]

    async def test_an_issuer_without_a_path_has_two_places(self) -> None:
        fake, _ = await found(Variant(metadata_at=("oidc-inserted",)))
        assert asked_for(fake)[1:] == [OAUTH, OIDC]

    async def test_scopes_of_the_challenge_are_authoritative(self) -> None:
        """Scope Selection Strategy."""
        variant = Variant(challenge_scope="files:read", resource_scopes=("all",))
        _, advertised = await found(variant)
        assert scopes_to_request(advertised, operator="") == ("files:read",)

    async def test_else_all_scopes_of_the_document_are_asked_for(self) -> None:
        """Scope Selection Strategy."""
        _, advertised = await found(Variant(resource_scopes=("a", "b"), scopes_supported=("x",)))
        assert scopes_to_request(advertised, operator="") == ("a", "b")

    async def test_else_none_is(self) -> None:
        """Scope Selection Strategy: the parameter is left out."""
        _, advertised = await found(Variant(scopes_supported=("x", "y")))
        assert scopes_to_request(advertised, operator="") == ()

    async def test_a_provider_whose_metadata_lack_pkce_is_refused_only_where_they_say_so(
        self,
    ) -> None:
        """Authorization Code Protection: absent, clients MUST refuse. We go on with a warning,
        since most providers that leave it out support it (`cases.md`, Decided); what lists other
        methods only is refused."""
        _, advertised = await found(Variant(metadata={"code_challenge_methods_supported": OMIT}))
        assert "PKCE" in advertised.warnings[0]
        methods = {"code_challenge_methods_supported": ["plain"]}
        await not_found(Variant(metadata=methods))

    async def test_a_provider_that_takes_client_documents_says_so(self) -> None:
        """Client ID Metadata Documents: client_id_metadata_document_supported."""
        _, advertised = await found(Variant(takes_client_documents=True))
        assert advertised.provider.takes_client_documents


class RulesOfNewest(Spec):
    """What 2026-07-28 adds."""

    @pytest.mark.parametrize("issuer", ["{issuer}/other", "https://attacker.example.com"])
    async def test_an_issuer_that_differs_ends_the_search(self, issuer: str) -> None:
        """Authorization Server Metadata Discovery: MUST NOT use the metadata."""
        fake, error = await not_found(Variant(metadata={"issuer": issuer}))
        assert error.advertised
        assert OAUTH in asked_for(fake)

    async def test_the_issuer_is_recorded_as_it_was_written(self) -> None:
        """Authorization Response Validation; RFC 9207, 2.4: it is compared as a plain text."""
        fake, advertised = await found(Variant(metadata={"issuer": "{issuer}/"}))
        assert advertised.provider.issuer == f"{fake.issuer}/"
        assert advertised.provider.sends_issuer

    async def test_scopes_of_a_refused_call_come_on_top_of_those_before(self) -> None:
        """Step-Up Authorization Flow: the union."""
        _, advertised = await found(Variant(challenge_scope="basic"))
        assert scopes_to_request(advertised, operator="", wanted="write") == ("basic", "write")

    async def test_offline_access_is_asked_for_where_the_provider_names_it(self) -> None:
        """Refresh Tokens: MAY, only where scopes_supported of the provider hold it."""
        supported = ("basic", "offline_access")
        for known, asked in ((supported, supported), (("basic",), ("basic",))):
            _, advertised = await found(Variant(resource_scopes=("basic",), scopes_supported=known))
            assert scopes_to_request(advertised, operator="") == asked

    async def test_the_document_is_read_anew_each_time(self) -> None:
        """Authorization Server Binding: a server may move to another authorization server."""
        variant = Variant(authorization_servers=("{issuer}",))
        async with OAuthServer(variant) as fake, OAuthServer() as other:
            challenge = await refused(fake)
            first = await discover(fake.url, challenge)
            variant.authorization_servers = (other.issuer,)
            second = await discover(fake.url, challenge)
        assert first is not None
        assert second is not None
        assert [first.provider.issuer, second.provider.issuer] == [fake.issuer, other.issuer]

    async def test_a_provider_may_answer_with_anything_at_other_places(self) -> None:
        """Authorization Server Metadata Discovery: multiple well-known endpoints are attempted."""

        def page(request: Request) -> Reply:
            return Reply(200, {"content-type": "text/html"}, b"<html>")

        variant = Variant(replies={OAUTH: page}, metadata_at=("oidc-inserted",))
        fake, advertised = await found(variant)
        assert advertised.provider.metadata_url == fake.origin + OIDC
