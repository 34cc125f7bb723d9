"""How a server wants people to log in is found wherever it says so (A01, A04, A07, A08)."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from servers.mcp.types import Challenge
from servers.oauth.discovery import discover
from servers.oauth.types import Advertised
from tests.fakes.discoveries import asked_for, failure, found
from tests.fakes.oauth_server import OMIT, OAuthServer, Reply, Variant

ROOT = "/.well-known/oauth-protected-resource"
OAUTH = "/.well-known/oauth-authorization-server"
OIDC = "/.well-known/openid-configuration"
JSON = {"content-type": "application/json"}
PAGE = Reply(200, {"content-type": "text/html"}, b"<!doctype html><title>Welcome</title>")

# What stands where a document is looked for, and what an error says of it (A08).
ANSWERS: dict[str, tuple[Reply, str]] = {
    "400": (Reply(400, JSON, b'{"error":"x"}'), "400 Bad Request"),
    "401": (Reply(401), "401 Unauthorized"),
    "403": (Reply(403), "403 Forbidden"),
    "404": (Reply(404), "404 Not Found"),
    "500": (Reply(500), "500 Internal Server Error"),
    "599": (Reply(599), "599"),
    "204": (Reply(204), "204 No Content"),
    "a web page": (PAGE, "200 OK, but a web page"),
    "events": (
        Reply(200, {"content-type": "text/event-stream"}, b"{}"),
        "200 OK, but a stream of events",
    ),
    "empty": (Reply(200, JSON), "200 OK, but nothing in it"),
    "text": (Reply(200, {"content-type": "text/plain"}, b"hello"), "200 OK, but no JSON"),
    "a list": (Reply(200, JSON, b"[]"), "200 OK, but no JSON object"),
    "a number": (Reply(200, JSON, b"7"), "200 OK, but no JSON object"),
    "no field": (Reply(200, JSON, b"{}"), "a document "),
    "deep": (
        Reply(200, JSON, b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"),
        "200 OK, but JSON that is nested too deeply",
    ),
    "very deep": (Reply(200, JSON, b'{"a":' + b"[" * 100_000), "200 OK, but no JSON"),
    "large": (
        Reply(200, JSON, b'{"a":"' + b"x" * 2**20 + b'"}'),
        "The server's answer is larger than 1 MiB.",
    ),
    "a bomb": (
        Reply(200, {**JSON, "content-encoding": "gzip"}, gzip.compress(b" " * 2**26)),
        "The server's answer is larger than 1 MiB.",
    ),
    "a coding": (Reply(200, {**JSON, "content-encoding": "br"}, b"x"), "compressed with br"),
    "nothing": (Reply(raw=b"", abort=True), ""),
    "cut": (
        Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{", abort=True),
        "response body failed: ",
    ),
    "no HTTP": (Reply(raw=b"SSH-2.0-OpenSSH\r\n\r\n"), "did not answer as an HTTP server"),
    "a circle": (Reply(302, {"location": "?"}), "more than 5 redirects"),
    "no address": (Reply(302, {"location": "http://[::1"}), "cannot be read"),
    "a file": (Reply(302, {"location": "file:///etc/passwd"}), "which is no web address"),
}


async def test_the_address_in_the_challenge_comes_first() -> None:
    """A01; RFC 9728, 5.1: neither the root nor the path is asked."""
    fake, advertised = await found(Variant(pointer="elsewhere", resource_at=("elsewhere",)))
    assert asked_for(fake) == ["/about/logins.json", OAUTH]
    assert advertised.resource_metadata_url == f"{fake.server_origin}/about/logins.json"
    assert advertised.provider.issuer == fake.issuer


async def test_without_one_the_path_comes_before_the_root() -> None:
    """MCP 2025-11-25, Protected Resource Metadata Discovery Requirements."""
    fake, _ = await found(Variant(pointer="", resource_at=("path", "root")))
    assert asked_for(fake) == [f"{ROOT}/mcp", OAUTH]
    fake, advertised = await found(Variant(pointer="", resource_at=("root",), resource="{server}"))
    assert asked_for(fake) == [f"{ROOT}/mcp", ROOT, OAUTH]
    assert advertised.resource == fake.server_origin


async def test_an_address_in_the_challenge_that_is_dead_is_not_the_end() -> None:
    fake, advertised = await found(Variant(pointer="elsewhere", resource_at=("path",)))
    assert asked_for(fake) == ["/about/logins.json", f"{ROOT}/mcp", OAUTH]
    assert advertised.resource == fake.url


@pytest.mark.parametrize("resource", ["{server}", "{server}/", "{url}", "{url}/"])
async def test_the_resource_is_kept_byte_for_byte(resource: str) -> None:
    """A04: a slash at the end is forgiven in comparing, and never added or taken away."""
    fake, advertised = await found(Variant(resource=resource))
    assert advertised.resource == fake.resource


@pytest.mark.parametrize(
    ("place", "asked"),
    [
        ("oauth-inserted", [f"{OAUTH}/realms/r"]),
        ("oidc-inserted", [f"{OAUTH}/realms/r", f"{OIDC}/realms/r"]),
        ("oidc-appended", [f"{OAUTH}/realms/r", f"{OIDC}/realms/r", f"/realms/r{OIDC}"]),
        (
            "oauth-appended",
            [f"{OAUTH}/realms/r", f"{OIDC}/realms/r", f"/realms/r{OIDC}", f"/realms/r{OAUTH}"],
        ),
    ],
)
async def test_metadata_of_an_issuer_with_a_path_are_found(place: str, asked: list[str]) -> None:
    """A07; the root is somebody else's."""
    fake, advertised = await found(Variant(issuer_path="/realms/r", metadata_at=(place,)))
    assert asked_for(fake)[1:] == asked
    assert advertised.provider.metadata_url == fake.origin + asked[-1]
    assert advertised.provider.token_endpoint == f"{fake.issuer}/token"


async def test_metadata_of_an_issuer_without_a_path_are_found_as_openid() -> None:
    fake, _ = await found(Variant(metadata_at=("oidc-inserted",)))
    assert asked_for(fake)[1:] == [OAUTH, OIDC]


@pytest.mark.parametrize(("reply", "words"), ANSWERS.values(), ids=ANSWERS)
async def test_no_answer_at_one_place_keeps_from_asking_at_the_next(
    reply: Reply, words: str
) -> None:
    """A08, for both kinds of documents; `words` are tested below."""
    wrong = {f"{ROOT}/mcp": reply, OAUTH: reply}
    variant = Variant(
        replies=wrong, resource_at=("root",), metadata_at=("oidc-inserted",), resource="{server}"
    )
    fake, advertised = await found(variant)
    assert advertised.provider.metadata_url == f"{fake.origin}{OIDC}"


@pytest.mark.parametrize(("reply", "words"), ANSWERS.values(), ids=ANSWERS)
async def test_the_error_lists_each_address_with_its_answer(reply: Reply, words: str) -> None:
    """A08."""
    fake, error = await failure(Variant(replies={OAUTH: reply, OIDC: reply}))
    assert [url for url, _ in error.tried] == [
        f"{fake.server_origin}{ROOT}/mcp",
        f"{fake.origin}{OAUTH}",
        f"{fake.origin}{OIDC}",
    ]
    assert error.tried[0][1] == "200 OK"
    for _, answer in error.tried[1:]:
        assert words in answer
    assert error.in_full.splitlines()[0] == (
        f"The server sends people to {fake.issuer} to log in, but no metadata that can be used "
        "were found there."
    )
    assert len(error.in_full.splitlines()) == 4
    assert error.advertised
    assert error.hint


@pytest.mark.parametrize("silent", [Reply(raw=b"", abort=True), Reply(503), Reply(429)])
async def test_a_provider_that_is_down_is_worth_another_attempt(silent: Reply) -> None:
    _, error = await failure(Variant(replies={OAUTH: silent, OIDC: silent}))
    assert error.hint == "Perhaps it is down or busy, and the login works later."


async def test_redirects_are_followed_to_another_origin() -> None:
    async with OAuthServer(Variant(replies={OAUTH: Reply(307, {"location": OIDC})})) as fake:
        fake.variant.metadata_at = ("oidc-inserted",)
        to_provider = Reply(302, {"location": f"{fake.origin}/resource"})
        fake.variant.replies = {
            **fake.variant.replies,
            f"{ROOT}/mcp": to_provider,
            "/resource": Reply(200, JSON, json.dumps(fake.resource_document()).encode()),
        }
        advertised = await discover(fake.url, Challenge())
    assert advertised is not None
    # Where they were asked for, not where they were read.
    assert advertised.resource_metadata_url == f"{fake.server_origin}{ROOT}/mcp"
    assert advertised.provider.metadata_url == f"{fake.origin}{OAUTH}"


async def test_the_next_authorization_server_is_taken_where_the_first_cannot_be_used() -> None:
    servers = ("ftp://x", "http://[::1", "{issuer}/gone", "{issuer}")
    fake, advertised = await found(Variant(authorization_servers=servers))
    assert advertised.provider.issuer == fake.issuer


async def test_authorization_servers_without_number_are_not_all_asked() -> None:
    servers = tuple(f"{{provider}}/{number}" for number in range(1000))
    fake, error = await failure(Variant(authorization_servers=servers))
    assert len(fake.provider.requests) == 20
    assert len(error.in_full) < 3000


@pytest.mark.parametrize("resource", ["https://evil.example/mcp", "{server}/other", "{url}#a"])
async def test_a_document_about_another_resource_is_not_used(resource: str) -> None:
    """RFC 9728, 3.3: nor is anything guessed in its stead."""
    fake, error = await failure(Variant(resource=resource))
    assert error.message == (
        "The server's document about its logins is about another address, so it is not used."
    )
    assert error.tried[0][1] == f"a document about another resource: {fake.resource}"
    assert error.advertised
    assert not fake.provider.requests


@pytest.mark.parametrize("issuer", ["https://attacker.example", "{issuer}/x", "{provider}:80"])
async def test_metadata_of_another_issuer_are_not_used(issuer: str) -> None:
    """RFC 8414, 3.3."""
    _, error = await failure(Variant(metadata={"issuer": issuer}))
    assert error.tried[1][1].startswith("metadata of another issuer: ")


@pytest.mark.parametrize(("named", "says"), [("{issuer}/", "{issuer}"), ("{issuer}", "{issuer}/")])
@pytest.mark.parametrize("path", ["", "/realms/r"])
async def test_a_slash_at_the_end_of_an_issuer_is_forgiven_and_kept(
    named: str, says: str, path: str
) -> None:
    variant = Variant(issuer_path=path, authorization_servers=(named,), metadata={"issuer": says})
    fake, advertised = await found(variant)
    assert advertised.provider.issuer == says.replace("{issuer}", fake.issuer)


async def test_a_provider_that_does_not_speak_of_pkce_is_used_with_a_warning() -> None:
    """`cases.md`, Decided."""
    _, advertised = await found(Variant(metadata={"code_challenge_methods_supported": OMIT}))
    assert advertised.provider.code_challenge_methods is None
    assert advertised.warnings == (
        "The provider does not say whether it supports PKCE; the login uses it (S256) all the "
        "same.",
    )


@pytest.mark.parametrize("methods", [["plain"], [], "plain"])
async def test_a_provider_whose_pkce_lacks_s256_is_refused(methods: Any) -> None:
    """`cases.md`, Decided."""
    _, error = await failure(Variant(metadata={"code_challenge_methods_supported": methods}))
    assert "PKCE with S256" in error.tried[1][1]


@pytest.mark.parametrize("field", ["issuer", "authorization_endpoint", "token_endpoint"])
@pytest.mark.parametrize("value", [OMIT, None, 7, ["https://h"], ""])
async def test_metadata_without_a_needed_field_are_passed_over(field: str, value: Any) -> None:
    """A08."""
    _, error = await failure(Variant(metadata={field: value}))
    words = error.tried[1][1]
    assert words == f"a document without {field}" or (field, value) == ("issuer", "")


async def test_machines_need_no_authorization_endpoint() -> None:
    """RFC 8414, 2."""
    variant = Variant(
        metadata={
            "authorization_endpoint": OMIT,
            "code_challenge_methods_supported": OMIT,
            "grant_types_supported": ["client_credentials"],
        }
    )
    _, advertised = await found(variant)
    assert advertised.provider.authorization_endpoint == ""
    assert not advertised.warnings


@pytest.mark.parametrize("servers", [OMIT, [], None, [7], {}])
async def test_a_document_without_authorization_servers_is_passed_over(servers: Any) -> None:
    variant = Variant(resource_document={"authorization_servers": servers}, same_origin=True)
    _, advertised = await found(variant)
    assert advertised.resource_metadata_url == ""


@pytest.mark.parametrize("resource", [OMIT, None, "", 7, "https://h/" + "x" * 2000])
async def test_a_document_that_does_not_name_its_resource_is_passed_over(resource: Any) -> None:
    """RFC 9728, 2: the field is required."""
    variant = Variant(resource_document={"resource": resource}, same_origin=True)
    _, advertised = await found(variant)
    assert advertised.resource_metadata_url == ""


@pytest.mark.parametrize(
    "resource",
    ["{url}?\ud800", "{url}?a=\x00", "{url}\n", " {url}", "{url}?\u202e"],
)
async def test_a_resource_with_signs_that_no_address_holds_is_passed_over(resource: str) -> None:
    """A04: it would be sent as it stands; half a surrogate pair cannot be."""
    variant = Variant(resource_document={"resource": resource}, same_origin=True)
    fake, advertised = await found(variant)
    assert advertised.resource == fake.url
    assert advertised.resource_metadata_url == ""


async def test_a_server_that_wants_bound_tokens_is_used_with_a_warning() -> None:
    """RFC 9728, 2."""
    document = {"dpop_bound_access_tokens_required": True}
    _, advertised = await found(Variant(resource_document=document))
    assert "DPoP" in advertised.warnings[0]


async def test_more_scopes_than_a_login_can_ask_for_are_cut_with_a_warning() -> None:
    scopes = tuple(f"scope{number}" for number in range(5000))
    _, advertised = await found(Variant(resource_scopes=scopes, scopes_supported=scopes))
    assert advertised.resource_scopes == scopes[:200]
    assert advertised.warnings == (
        "The server names 5,000 scopes, of which a login asks for 200; enter those that are "
        "needed in Scopes.",
    )
    assert len(json.dumps(advertised.as_json())) < 10_000


async def test_nothing_is_remembered_of_what_an_answer_says_besides() -> None:
    """What is kept has the shape that `Advertised` has, and comes back from JSON as it was."""
    methods = "token_endpoint_auth_methods_supported"
    junk = {"x": "y", "scopes_supported": [1, None, "a", "a"], methods: "a b"}
    _, advertised = await found(Variant(metadata=junk, resource_scopes=("a", "b")))
    assert advertised.provider.scopes_supported == ("a",)
    assert advertised.provider.token_auth_methods == ("a", "b")
    assert advertised.resource_scopes == ("a", "b")
    assert Advertised.from_json(json.loads(json.dumps(advertised.as_json()))) == advertised
