"""Servers that publish nothing of their own, that let everybody in, or that take their time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from servers.mcp.types import Challenge
from servers.oauth import discovery
from servers.oauth.discovery import discover
from servers.oauth.types import DiscoveryFailed
from tests.fakes.discoveries import asked_for, failure, found
from tests.fakes.oauth_server import OAuthServer, Reply, Request, Variant

ROOT = "/.well-known/oauth-protected-resource"
OAUTH = "/.well-known/oauth-authorization-server"
OIDC = "/.well-known/openid-configuration"


def without_document(**options: object) -> Variant:
    """A server of revision 2025-03-26, which is its own authorization server."""
    options = {"challenge": "Bearer", "resource_at": (), "same_origin": True, **options}
    return Variant(**options)  # type: ignore[arg-type]


async def never(request: Request) -> Reply | None:
    await asyncio.Event().wait()
    return None


async def test_a_server_without_a_document_is_asked_itself() -> None:
    """MCP 2025-03-26, Authorization Base URL: the path is not part of it."""
    fake, advertised = await found(without_document())
    assert asked_for(fake) == [f"{ROOT}/mcp", ROOT, f"/mcp{ROOT}", OAUTH]
    assert advertised.provider.issuer == fake.server_origin
    assert advertised.provider.metadata_url == f"{fake.server_origin}{OAUTH}"
    assert advertised.resource == fake.url
    assert advertised.resource_metadata_url == ""


async def test_a_server_without_any_metadata_has_the_default_endpoints() -> None:
    """MCP 2025-03-26, Fallbacks for Servers without Metadata Discovery."""
    fake, advertised = await found(without_document(metadata_at=(), challenge_scope="a b"))
    provider, origin = advertised.provider, fake.server_origin
    assert provider.issuer == origin
    assert provider.authorization_endpoint == f"{origin}/authorize"
    assert provider.token_endpoint == f"{origin}/token"
    assert provider.registration_endpoint == f"{origin}/register"
    assert provider.metadata_url == ""
    assert "2025-03-26" in advertised.warnings[0]


@pytest.mark.parametrize("challenge", ["", "Bearer", 'Basic realm="x", Bearer scope="a"'])
async def test_default_endpoints_are_tried_where_a_bearer_token_may_be_meant(
    challenge: str,
) -> None:
    _, advertised = await found(without_document(metadata_at=(), challenge=challenge))
    assert advertised.provider.metadata_url == ""


@pytest.mark.parametrize(
    ("challenge", "status"), [('Basic realm="x"', 401), ("Negotiate", 401), ("", 403)]
)
async def test_default_endpoints_are_not_guessed_where_no_bearer_token_is_meant(
    challenge: str, status: int
) -> None:
    variant = without_document(metadata_at=(), challenge=challenge, refusal_status=status)
    _, error = await failure(variant)
    assert error.message == "The server wants a login, and says nowhere how to get one."
    assert "Authorization header" in error.hint
    assert not error.advertised


@pytest.mark.parametrize("issuer", ["https://attacker.example", "{server}/other"])
async def test_metadata_of_another_issuer_at_the_origin_end_the_search(issuer: str) -> None:
    """RFC 8414, 3.3: what the default endpoints would be is then not guessed."""
    _, error = await failure(without_document(metadata={"issuer": issuer}))
    assert any("metadata of another issuer" in answer for _, answer in error.tried)
    assert error.advertised


async def test_metadata_at_the_origin_may_name_the_server_as_issuer() -> None:
    replies = {OAUTH: Reply(404), OIDC: Reply(404)}
    variant = without_document(issuer_path="/mcp", replies=replies)
    fake, advertised = await found(variant)
    assert advertised.provider.issuer == fake.url


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("", ""),
        ("/", ""),
        ("/mcp", "/mcp"),
        ("/mcp/", "/mcp/"),
        ("/mcp?key=secret", "/mcp"),
        ("/a/b?x#y", "/a/b"),
    ],
)
async def test_the_resource_is_then_the_address_without_its_query(path: str, resource: str) -> None:
    """RFC 8707, 2. A query may hold keys: nobody is sent it."""
    async with OAuthServer(without_document()) as fake:
        advertised = await discover(fake.server_origin + path, Challenge())
    assert advertised is not None
    assert advertised.resource == fake.server_origin + resource
    assert not any("secret" in path for path in asked_for(fake))


async def test_a_server_that_lets_us_in_has_logins_only_by_its_own_document() -> None:
    """P51: metadata at its origin are those of the site around it."""
    async with OAuthServer(without_document(lets_in=True)) as fake:
        assert await discover(fake.url, None) is None
    assert asked_for(fake) == [f"{ROOT}/mcp", ROOT, f"/mcp{ROOT}"]


async def test_a_server_that_lets_us_in_may_have_logins() -> None:
    fake, advertised = await found(Variant(lets_in=True, resource_scopes=("a",)))
    assert advertised.resource_metadata_url == f"{fake.server_origin}{ROOT}/mcp"
    assert advertised.challenge_scopes is None
    assert advertised.resource_scopes == ("a",)


async def test_a_document_about_a_neighbour_means_nothing_where_we_are_let_in() -> None:
    variant = Variant(lets_in=True, resource_at=("root",), resource="{server}/other")
    async with OAuthServer(variant) as fake:
        assert await discover(fake.url, None) is None


async def test_where_nobody_answered_nothing_is_known() -> None:
    """P50: neither that there are logins nor that there are none."""
    async with OAuthServer() as fake:
        url = fake.url
    for challenge in (None, Challenge(), Challenge(schemes=("bearer",))):
        with pytest.raises(DiscoveryFailed) as caught:
            await discover(url, challenge)
        assert not caught.value.advertised
        assert all("refused the connection" in answer for _, answer in caught.value.tried)


@pytest.mark.parametrize("lets_in", [True, False])
async def test_what_did_not_answer_may_hold_anything(lets_in: bool) -> None:
    """P50: neither `None` nor the default endpoints are a safe guess."""
    silent = {f"{ROOT}/mcp": Reply(raw=b"", abort=True)}
    _, error = await failure(without_document(metadata_at=(), replies=silent, lets_in=lets_in))
    assert not error.advertised
    assert error.hint == "Test the server again; perhaps it was busy."


@pytest.mark.parametrize(("status", "guessed"), [(404, True), (500, True), (502, False)])
async def test_the_default_endpoints_are_no_guess_where_a_gateway_answers(
    status: int, guessed: bool
) -> None:
    """MCP 2025-03-26, Fallbacks: they are for servers without metadata."""
    variant = without_document(metadata_at=(), replies={OAUTH: Reply(status)})
    if guessed:
        _, advertised = await found(variant)
        assert not advertised.provider.metadata_url
    else:
        _, error = await failure(variant)
        assert error.hint == "Test the server again; perhaps it was busy."


async def test_one_that_does_not_answer_leaves_time_for_the_others() -> None:
    variant = Variant(replies={f"{ROOT}/mcp": never}, resource_at=("root",), resource="{server}")
    fake, advertised = await found(variant, limit=1)
    assert advertised.provider.issuer == fake.issuer


async def test_it_is_over_when_the_time_is_over() -> None:
    """5 s in all, whatever does not answer."""
    places = (f"{ROOT}/mcp", ROOT, f"/mcp{ROOT}", OAUTH, OIDC)
    variant = without_document(replies=dict.fromkeys(places, never))
    loop = asyncio.get_running_loop()
    started = loop.time()
    _, error = await failure(variant, limit=0.5)
    assert loop.time() - started < 3
    assert error.message in {  # the last document's time and that of all end at once
        "The server wants a login, and how to get one could not be read.",
        "Looking for a login took longer than 0.5 seconds.",
    }
    assert "no answer within 0." in error.tried[0][1]


async def test_a_body_that_drips_is_over_when_the_time_is_over() -> None:
    async def drip(request: Request) -> Reply:
        async def pieces() -> AsyncGenerator[bytes, None]:
            while True:
                yield b" "
                await asyncio.sleep(0.01)

        return Reply(200, {"content-type": "application/json"}, pieces())

    variant = Variant(replies={f"{ROOT}/mcp": drip}, resource_at=("root",), resource="{server}")
    fake, advertised = await found(variant, limit=1)
    assert advertised.provider.issuer == fake.issuer


@pytest.mark.parametrize(
    ("scope", "scopes"),
    [(None, None), ("", ()), ("b  a b", ("b", "a")), ('a "x c\\ d', ("a", "d"))],
)
async def test_scopes_of_the_challenge_are_those_that_can_be_sent(
    scope: str | None, scopes: tuple[str, ...] | None
) -> None:
    """RFC 6749, 3.3."""
    async with OAuthServer() as fake:
        advertised = await discover(fake.url, Challenge(scope=scope))
    assert advertised is not None
    assert advertised.challenge_scopes == scopes


async def test_a_name_service_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5 s in all, whatever takes its time."""

    async def silent(url: str) -> None:
        if not url.endswith("/mcp"):  # the provider's
            await asyncio.Event().wait()

    monkeypatch.setattr(discovery, "check_target", silent)
    fake, error = await failure(Variant(), limit=2.0)
    assert error.message == "Looking for a login took longer than 2 seconds."
    assert error.tried[-1] == (f"{fake.origin}{OAUTH}", "200 OK")
    assert error.advertised
