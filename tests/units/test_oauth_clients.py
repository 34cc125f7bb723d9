"""Which client is used at a provider, and what Umpteenth says of itself (P54-P57, A30)."""

from __future__ import annotations

from uuid import UUID

import pytest
import time_machine

from servers.oauth.clients import (
    choose_client,
    client_document,
    document_url,
    is_public_https,
    is_usable,
    operator_client,
    storable,
    why_client,
)
from servers.oauth.types import Client, Provider

SERVER = UUID("01890000-0000-7000-8000-000000000001")
APP = "https://ump.example.org"
DOCUMENT = f"{APP}/api/mcp-servers/{SERVER}/oauth/client.json"
CALLBACK = f"{APP}/api/mcp-servers/{SERVER}/oauth/callback"
REGISTERED = Client("registered-1", "registered")
NOW = 1_800_000_000.0


def provider(**changes: object) -> Provider:
    values = {
        "issuer": "https://as.example.org",
        "authorization_endpoint": "https://as.example.org/authorize",
        "token_endpoint": "https://as.example.org/token",
        **changes,
    }
    return Provider(**values)  # type: ignore[arg-type]


def choose(
    at: Provider,
    *,
    operator_id: str = "",
    operator_secret: str = "",
    document: str | None = None,
    registered: Client | None = None,
) -> Client | None:
    return choose_client(
        at,
        operator_id=operator_id,
        operator_secret=operator_secret,
        document_url=document,
        registered=registered,
    )


class TestOrder:
    def test_the_operators_client_id_counts_most(self) -> None:
        """P56: a manual client wins over everything that Umpteenth could do by itself."""
        chosen = choose(
            provider(takes_client_documents=True, registration_endpoint="https://as/register"),
            operator_id="mine",
            document=DOCUMENT,
            registered=REGISTERED,
        )
        assert chosen == Client("mine", "operator", "none")

    def test_then_the_document_where_the_provider_reads_such(self) -> None:
        """MCP 2026-07-28, Client Registration: documents come before dynamic registration."""
        chosen = choose(
            provider(takes_client_documents=True), document=DOCUMENT, registered=REGISTERED
        )
        assert chosen == Client(DOCUMENT, "document", "none")

    @pytest.mark.parametrize(("reads", "document"), [(False, DOCUMENT), (True, None)])
    def test_then_the_client_that_was_registered_before(
        self, reads: bool, document: str | None
    ) -> None:
        """A30: with this issuer, for this redirect URI."""
        at = provider(takes_client_documents=reads)
        assert choose(at, document=document, registered=REGISTERED) is REGISTERED

    def test_else_one_has_to_be_registered(self) -> None:
        """P54."""
        assert choose(provider(), document=DOCUMENT) is None

    @time_machine.travel(NOW, tick=False)
    @pytest.mark.parametrize(
        ("ends", "usable"),
        [(None, True), (NOW - 1, False), (NOW + 60, False), (NOW + 86400, True)],
    )
    def test_a_registration_whose_secret_ends_is_made_anew(
        self, ends: float | None, usable: bool
    ) -> None:
        """RFC 7591, 3.2.1: a login begun with a secret about to end would not live long."""
        client = Client("old", "registered", "client_secret_post", "s", secret_expires_at=ends)
        assert is_usable(client) is usable
        assert (choose(provider(), registered=client) is client) is usable


class TestOperatorsMethod:
    """How the operator's secret is sent (P57, A16)."""

    def test_no_secret_is_a_public_client(self) -> None:
        assert operator_client(provider(), "id", "").method == "none"

    @pytest.mark.parametrize(
        ("methods", "method"),
        [
            (None, "client_secret_basic"),
            (("client_secret_basic",), "client_secret_basic"),
            (("client_secret_post",), "client_secret_post"),
            (("client_secret_basic", "client_secret_post"), "client_secret_post"),
            (("private_key_jwt",), "client_secret_basic"),
        ],
    )
    def test_a_secret_is_sent_as_the_provider_says(
        self, methods: tuple[str, ...] | None, method: str
    ) -> None:
        """RFC 8414, 2: without a word of the provider's it is Basic."""
        client = operator_client(provider(token_auth_methods=methods), "id", "hush")
        assert (client.method, client.secret) == (method, "hush")

    def test_a_private_key_signs(self) -> None:
        """RFC 7523: a key is never sent, whatever the provider lists."""
        pem = "-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n"
        client = operator_client(provider(token_auth_methods=("client_secret_post",)), "id", pem)
        assert client.method == "private_key_jwt"

    def test_its_secret_is_not_kept_with_the_login(self) -> None:
        """The settings hold the reference; only a registered client's secret is stored."""
        assert storable(operator_client(provider(), "id", "hush")).secret == ""
        registered = Client("id", "registered", "client_secret_post", "hush")
        assert storable(registered) is registered

    def test_secrets_are_not_shown(self) -> None:
        """U60's spirit: a client in a log or traceback shows no secret."""
        assert "hush" not in repr(operator_client(provider(), "id", "hush"))


class TestDocument:
    def test_it_names_its_own_address_and_the_callback(self) -> None:
        """draft-ietf-oauth-client-id-metadata-document: client_id is the URL, byte for byte."""
        document = client_document(APP, SERVER, CALLBACK)
        assert document == {
            "client_id": DOCUMENT,
            "client_name": "Umpteenth",
            "client_uri": APP,
            "redirect_uris": [CALLBACK],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": "web",
            "token_endpoint_auth_method": "none",
        }
        assert document_url(APP, SERVER) == document["client_id"]

    @pytest.mark.parametrize(
        "app_url",
        [
            "http://ump.example.org",
            "https://localhost",
            "https://ump.localhost:8443",
            "https://ump",
            "https://ump.local",
            "https://ump.lan",
            "https://ump.corp.internal",
            "https://ump.home.arpa.",
            "https://127.0.0.1",
            "https://10.0.0.8",
            "https://127.1",
            "https://0177.0.0.1",
            "https://2130706433",
            "https://0x7f.0x1",
            "https://ump..",
            "https://192.168.1.4:8443",
            "https://100.64.0.1",
            "https://[::1]",
            "https://[fd00::1]",
            "https://user@ump.example.org",
            "",
        ],
    )
    def test_what_the_internet_cannot_read_is_not_offered(self, app_url: str) -> None:
        assert not is_public_https(app_url)
        assert document_url(app_url, SERVER) is None

    @pytest.mark.parametrize(
        "app_url",
        [APP, "https://ump.example.org:8443", "https://8.8.8.8", "https://UMP.Example.ORG"],
    )
    def test_a_public_https_address_is(self, app_url: str) -> None:
        assert is_public_https(app_url)
        assert document_url(app_url, SERVER) is not None


class TestWhy:
    """The sheet says which client was used and why (issue 4, section 2)."""

    def test_the_operators(self) -> None:
        assert "Client ID in this server's settings" in why_client("operator")

    def test_the_documents(self) -> None:
        assert "reads such documents" in why_client("document")

    def test_a_registered_one_where_the_provider_reads_no_documents(self) -> None:
        assert "reads no client documents" in why_client("registered", provider())

    def test_a_registered_one_where_ours_cannot_be_read(self) -> None:
        words = why_client("registered", provider(takes_client_documents=True))
        assert "no public https address" in words
