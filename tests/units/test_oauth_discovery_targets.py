"""Addresses that strangers name are checked before anybody is sent there (I05, I06)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from servers.mcp.types import Challenge
from servers.oauth.discovery import discover
from servers.oauth.documents import NoDocument, address_problem, document_client, fetch_document
from servers.oauth.types import DiscoveryFailed
from tests.fakes.discoveries import failure, found
from tests.fakes.oauth_server import OAuthServer, Reply, Variant

if TYPE_CHECKING:
    from tests.fakes.names import Names

ROOT = "/.well-known/oauth-protected-resource"
OAUTH = "/.well-known/oauth-authorization-server"

# I06
NEVER = {
    "javascript:alert(1)": "which is no web address",
    "JaVaScRiPt:alert(1)": "which is no web address",
    "\tjavascript:alert(1)": "which holds a blank, a control character or a backslash",
    "java\nscript:alert(1)": "which holds a blank, a control character or a backslash",
    "data:text/html,<script>": "which is no web address",
    "file:///etc/passwd": "which is no web address",
    "//evil.example/a": "which is no web address",
    "/authorize": "which is no web address",
    "https:///a": "which is no web address",
    "https://h.test:0x1/": "which is no web address",
    "https://h.test:99999/": "which is no web address",
    "https://[::1/": "which is no web address",
    "https:\\\\evil.example": "which holds a blank, a control character or a backslash",
    "https://h.test/\u202egro.live": "which holds a blank, a control character or a backslash",
    "https://h.test/\ud800": "which holds a blank, a control character or a backslash",
    "https://h.test/\u3000": "which holds a blank, a control character or a backslash",
    "https://good.test@evil.example/": "which holds a user name",
    "https://user:pass@h.test/": "which holds a user name",
    "http://public.test/a": "which is not encrypted: https is needed outside of a private network",
    "http://unknown.test/a": "which is not encrypted: https is needed outside of a private network",
    "https://h.test/" + "x" * 2000: "which is longer than 2,000 characters",
    "https://fa\u00df.test/": "whose name is not the same to all browsers",
    "https://a\u200db.test/": "whose name is not the same to all browsers",
}
METADATA_ADDRESSES = [
    "http://169.254.169.254/latest/meta-data",
    "http://[::ffff:169.254.169.254]/",
    "https://2852039166/",
    "https://0xA9FEA9FE/",
    "https://[fd00:ec2::254]/",
    "https://metadata.google.internal/",
]


@pytest.fixture(autouse=True)
def _hosts(names: Names) -> None:
    names.set("public.test", "203.0.113.5")
    names.set("lan.test", "192.168.1.5")
    names.set("both.test", "192.168.1.5", "203.0.113.5")
    names.set("metadata.google.internal", "169.254.169.254")


@pytest.mark.parametrize(("url", "words"), NEVER.items())
async def test_addresses_that_are_never_used(url: str, words: str) -> None:
    """I06."""
    assert await address_problem(url) == words


@pytest.mark.parametrize(
    "url",
    [
        "https://public.test/a?b=c",
        "HTTPS://Public.Test/",
        "https://unknown.test/",
        "https://bücher.test/",
        "http://lan.test:8080/a",
        "http://127.0.0.1:8000",
        "http://[::1]:8000/",
        "http://10.1.2.3/",
    ],
)
async def test_addresses_that_can_be_used(url: str) -> None:
    """Plain http is for private networks; whether the guard lets through is another question."""
    assert await address_problem(url) == ""


async def test_plain_http_needs_every_address_of_a_name_to_be_private() -> None:
    """I02."""
    assert "not encrypted" in await address_problem("http://both.test/")


async def test_plain_http_is_taken_on_the_origin_that_is_in_use_already() -> None:
    near = "http://public.test/mcp"
    assert await address_problem("http://public.test/authorize", near=near) == ""
    assert "not encrypted" in await address_problem("http://public.test:81/", near=near)


@pytest.mark.parametrize("field", ["authorization_endpoint", "token_endpoint"])
@pytest.mark.parametrize("url", [*NEVER, *METADATA_ADDRESSES, "https://h.test/a#b"])
async def test_a_provider_with_such_an_endpoint_is_refused(field: str, url: str) -> None:
    """I05, I06."""
    _, error = await failure(Variant(metadata={field: url}))
    place, words = error.tried[1]
    assert place.endswith(OAUTH)
    assert words.startswith(f"{field} is an address ")


@pytest.mark.parametrize("field", ["registration_endpoint", "revocation_endpoint"])
@pytest.mark.parametrize("url", ["http://public.test/register", *METADATA_ADDRESSES])
async def test_an_endpoint_that_not_every_login_needs_is_left_out(field: str, url: str) -> None:
    """I05."""
    _, advertised = await found(Variant(metadata={field: url}))
    assert getattr(advertised.provider, field) == ""
    assert advertised.provider.token_endpoint
    assert [f"The provider's {field} is not used" in text for text in advertised.warnings] == [True]


@pytest.mark.parametrize("issuer", [*NEVER, *METADATA_ADDRESSES])
async def test_authorization_servers_at_such_addresses_are_not_asked(issuer: str) -> None:
    """I05: nothing is sent there."""
    _, error = await failure(Variant(authorization_servers=(issuer,)))
    assert len(error.tried) > 1


@pytest.mark.parametrize("issuer", ["{issuer}?a=b", "{issuer}#a"])
async def test_an_issuer_has_neither_query_nor_fragment(issuer: str) -> None:
    """RFC 8414, 2."""
    fake, error = await failure(Variant(authorization_servers=(issuer,)))
    assert error.tried[1][1] == "not asked: an address which holds a query or a fragment"
    assert not fake.provider.requests


@pytest.mark.parametrize("pointer", [*NEVER, *METADATA_ADDRESSES])
async def test_a_pointer_to_such_an_address_is_passed_over(pointer: str) -> None:
    """I05, A08."""
    async with OAuthServer() as fake:
        advertised = await discover(fake.url, Challenge(resource_metadata=pointer))
    assert advertised is not None
    assert advertised.resource_metadata_url == f"{fake.server_origin}{ROOT}/mcp"


@pytest.mark.parametrize("url", ["http://public.test/a", *METADATA_ADDRESSES])
async def test_redirects_lead_to_no_such_address(url: str) -> None:
    """I05: each hop is checked."""
    variant = Variant(replies={"/a": Reply(302, {"location": url})})
    async with OAuthServer(variant) as fake, document_client(5) as client:
        with pytest.raises(NoDocument):
            await fetch_document(client, f"{fake.server_origin}/a", seconds=5)


async def test_redirects_carry_no_user_name() -> None:
    replies = {
        "/a": Reply(302, {"location": "http://user:pass@{place}/b"}),
        "/b": Reply(200, {}, b"{}"),
    }
    async with OAuthServer(Variant(replies=replies)) as fake:
        place = fake.server_origin.removeprefix("http://")
        replies["/a"].headers["location"] = f"http://user:pass@{place}/b"
        async with document_client(5) as client:
            _, final = await fetch_document(client, f"{fake.server_origin}/a", seconds=5)
    assert final == f"{fake.server_origin}/b"
    assert "authorization" not in fake.mcp.requests[-1].headers


@pytest.mark.parametrize(
    "network", [{"allow_private_targets": False}, {"blocked_targets": ["127.0.0.0/8"]}]
)
async def test_nothing_is_fetched_that_the_operator_has_forbidden(
    network: dict[str, object], set_network: Callable[..., None]
) -> None:
    """P77, I05: a server that was saved before is no exception, and the reason names the option."""
    async with OAuthServer() as fake:
        set_network(**network)
        with pytest.raises(DiscoveryFailed) as caught:
            await discover(fake.url, Challenge())
    assert not fake.mcp.requests
    assert caught.value.message.startswith("127.0.0.1 points to a ")
    assert f"network.{next(iter(network))}" in caught.value.hint


async def test_the_guard_stands_before_each_address_that_a_server_names(
    set_network: Callable[..., None],
) -> None:
    """P77, I05."""
    set_network(blocked_targets=["10.0.0.0/8"])
    async with OAuthServer() as fake:
        pointer = "http://10.0.0.8/logins.json"
        fake.variant.authorization_servers = ("http://10.0.0.9",)
        with pytest.raises(DiscoveryFailed) as caught:
            await discover(fake.url, Challenge(resource_metadata=pointer))
    tried = dict(caught.value.tried)
    assert tried[pointer] == "10.0.0.8 points to a blocked address."
    at = "http://10.0.0.9/.well-known/oauth-authorization-server"
    assert tried[at] == "10.0.0.9 points to a blocked address."
    assert "network.blocked_targets" in caught.value.hint


async def test_an_endpoint_that_the_operator_has_forbidden_is_refused(
    set_network: Callable[..., None],
) -> None:
    """I05: the redis next door."""
    set_network(blocked_targets=["192.168.0.0/16"])
    _, error = await failure(Variant(metadata={"token_endpoint": "http://lan.test:6379/"}))
    assert error.tried[1][1] == (
        "token_endpoint is an address that is refused: lan.test points to a blocked address."
    )
    assert "network.blocked_targets" in error.hint


async def test_errors_hold_no_query_and_no_user_name() -> None:
    """U60."""
    async with OAuthServer(Variant(metadata_at=())) as fake:
        pointer = f"{fake.server_origin}/none?key=canary"
        with pytest.raises(DiscoveryFailed) as caught:
            await discover(f"{fake.url}?key=canary", Challenge(resource_metadata=pointer))
    assert "canary" not in caught.value.in_full


async def test_words_of_strangers_are_cleaned_and_bounded_in_errors() -> None:
    hostile = "https://h.test/\x1b[31m\u202e" + "x" * 5000
    _, error = await failure(Variant(metadata={"issuer": hostile}))
    assert "\x1b" not in error.in_full
    assert "\u202e" not in error.in_full
    assert len(error.in_full) < 2000


async def test_no_value_of_a_stranger_adds_a_line_to_an_error() -> None:
    """Each line is an address of ours with its answer."""
    _, error = await failure(Variant(metadata={"issuer": "x\nhttps://bank.example/: 200 OK"}))
    assert len(error.in_full.splitlines()) == 1 + len(error.tried)
