"""The documents of strangers are fetched within bounds, and what fails says so in a few words."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.oauth.documents import NoDocument, document_client, fetch_document
from servers.oauth.metadata import (
    covers,
    provider_places,
    read_provider,
    read_resource,
    resource_places,
)
from tests.fakes.mcp_http import FakeHttp, Reply, Request

JSON = {"content-type": "application/json"}


async def fetched(*replies: Reply, seconds: float = 5) -> tuple[FakeHttp, dict[str, Any], str]:
    """Of a place that answers each request with the next reply, and the last one for ever."""
    waiting = list(replies)

    def script(request: Request) -> Reply:
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    async with FakeHttp(script=script) as server, document_client(seconds) as client:
        url = f"http://127.0.0.1:{server.port}/a/b"
        document, final = await fetch_document(client, url, seconds=seconds)
        return server, document, final.removeprefix(f"http://127.0.0.1:{server.port}")


def to(location: str, status: int = 302) -> Reply:
    return Reply(status, {"location": location})


OBJECT = Reply(200, JSON, b'{"a": 1}')


async def test_a_document_is_asked_for_as_json_and_with_the_revision() -> None:
    """MCP 2025-03-26, Server Metadata Discovery: MCP-Protocol-Version is sent."""
    server, document, _ = await fetched(OBJECT)
    assert document == {"a": 1}
    headers = server.requests[0].headers
    assert headers["accept"] == "application/json"
    assert headers["mcp-protocol-version"] == "2026-07-28"
    assert "authorization" not in headers
    assert "cookie" not in headers


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"a": "\xc3\xbc"}',
        '{"a": "ü"}'.encode("utf-16"),
        b' \n{"a": "\xc3\xbc"}\n',
        b'{"a": "\\u00fc"}',
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "text/plain; charset=latin-1", ""])
async def test_json_is_read_whatever_it_is_called(body: bytes, kind: str) -> None:
    """RFC 8259, 8.1."""
    _, document, _ = await fetched(Reply(200, {"content-type": kind} if kind else {}, body))
    assert document == {"a": "ü"}


async def test_compressed_documents_are_read() -> None:
    body = gzip.compress(json.dumps({"a": "x" * 10_000}).encode())
    _, document, _ = await fetched(Reply(200, {**JSON, "content-encoding": "gzip"}, body))
    assert len(document["a"]) == 10_000


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(status: int) -> None:
    server, _, final = await fetched(to("c", status), to("/d?e=f", status), OBJECT)
    assert final == "/d?e=f"
    assert [request.path for request in server.requests] == ["/a/b", "/a/c", "/d?e=f"]


async def test_five_redirects_are_enough() -> None:
    server, _, _ = await fetched(*[to("c")] * 5, OBJECT)
    assert len(server.requests) == 6
    with pytest.raises(NoDocument, match="more than 5 redirects, the last one to http") as caught:
        await fetched(*[to("c?key=canary")] * 6, OBJECT)
    assert "canary" not in str(caught.value)


async def test_cookies_of_a_stranger_are_not_carried_along() -> None:
    setting = Reply(302, {"location": "c", "set-cookie": "a=b"})
    server, _, _ = await fetched(setting, OBJECT)
    assert "cookie" not in server.requests[1].headers


async def test_an_answer_that_does_not_come_is_waited_for_no_longer() -> None:
    async def never(request: Request) -> Reply:
        await asyncio.Event().wait()
        return OBJECT

    async with FakeHttp(script=never) as server, document_client(5) as client:
        with pytest.raises(NoDocument) as caught:
            await fetch_document(client, server.url, seconds=0.2)
    assert str(caught.value) == "no answer within 0.2 seconds"
    assert not caught.value.answered


async def test_whether_somebody_answered_is_told() -> None:
    with pytest.raises(NoDocument) as caught:
        await fetched(Reply(404))
    assert caught.value.answered
    async with FakeHttp() as server:
        url = server.url
    async with document_client(5) as client:
        with pytest.raises(NoDocument, match="refused the connection") as caught:
            await fetch_document(client, url, seconds=5)
    assert not caught.value.answered


@pytest.mark.parametrize(
    ("answered", "status"),
    [(True, status) for status in (400, 401, 404, 410, 500, 501)]
    + [(False, status) for status in (429, 502, 503, 504)],
)
async def test_what_passes_is_no_answer(answered: bool, status: int) -> None:
    """RFC 9110, 15.6.3-15.6.5; RFC 6585, 4: a gateway, or somebody who is busy."""
    with pytest.raises(NoDocument, match=f"^{status} ") as caught:
        await fetched(Reply(status))
    assert caught.value.answered is answered


@pytest.mark.parametrize(
    ("resource", "url", "whether"),
    [
        ("https://h", "https://h/mcp", True),
        ("https://h/", "https://h", True),
        ("https://h", "https://h/", True),
        ("HTTPS://H:443/mcp/", "https://h/mcp", True),
        ("https://h/a", "https://h/a/b?c", True),
        ("https://h/a?b=c", "https://h/a?b=c", True),
        ("https://h/a?b=c", "https://h/a", True),
        ("https://h/a?b=c", "https://h/a?b=d", False),
        ("https://h/a", "https://h/ab", False),
        ("https://h/a/b", "https://h/a", False),
        ("https://h/A", "https://h/a", False),
        ("http://h/a", "https://h/a", False),
        ("https://h:8443/a", "https://h/a", False),
        ("https://h.evil/a", "https://h/a", False),
        ("https://x@h/a", "https://h/a", False),
        ("https://h/a#b", "https://h/a", False),
        ("h/a", "https://h/a", False),
        ("urn:mcp", "https://h/a", False),
        ("https://[::1", "https://h/a", False),
    ],
)
def test_a_resource_covers_its_own_path_and_what_is_below(
    resource: str, url: str, whether: bool
) -> None:
    """RFC 9728, 3.3; A04."""
    assert covers(resource, url) is whether


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    [
        "resource",
        "authorization_servers",
        "scopes_supported",
        "issuer",
        "authorization_endpoint",
        "token_endpoint",
        "registration_endpoint",
        "grant_types_supported",
        "code_challenge_methods_supported",
        "token_endpoint_auth_methods_supported",
    ]
)


@given(st.dictionaries(FIELDS, JSON_VALUES), st.text())
def test_any_document_is_read_or_refused(document: dict[str, Any], address: str) -> None:
    """What comes out can be stored as JSON."""
    with contextlib.suppress(NoDocument):
        json.dumps(asdict(read_resource({"resource": "https://h", **document}, "https://h/mcp")))
    with contextlib.suppress(NoDocument):
        needed = {"issuer": "https://h", "token_endpoint": "t", "authorization_endpoint": "a"}
        json.dumps(read_provider({**needed, **document}, ["https://h"], "https://h").as_json())
    assert isinstance(covers(address, "https://h/mcp"), bool)


@pytest.mark.parametrize(
    ("value", "whether"),
    [(True, True), (False, False), ("true", False), ("false", False), (1, False), (None, False)],
)
def test_what_a_provider_says_it_can_it_says_by_true(value: Any, whether: bool) -> None:
    """RFC 9207, 3, and client-ID metadata documents, 5: Booleans, absent meaning false."""
    document = {
        "issuer": "https://h",
        "token_endpoint": "https://h/t",
        "authorization_endpoint": "https://h/a",
        "authorization_response_iss_parameter_supported": value,
        "client_id_metadata_document_supported": value,
    }
    provider = read_provider(document, ["https://h"], "")
    assert (provider.sends_issuer, provider.takes_client_documents) == (whether, whether)


def test_an_issuer_that_no_column_holds_is_passed_over() -> None:
    """The slash that is forgiven makes one of 2,000 characters too long."""
    longest = "https://h/" + "x" * 1990
    endpoints = {"token_endpoint": "https://h/t", "authorization_endpoint": "https://h/a"}
    assert read_provider({"issuer": longest, **endpoints}, [longest], "").issuer == longest
    with pytest.raises(NoDocument, match="without issuer"):
        read_provider({"issuer": f"{longest}/", **endpoints}, [longest], "")


def test_where_a_document_of_a_server_may_be() -> None:
    """RFC 9728, 3.1; the query is left out, since it may hold keys."""
    known = "/.well-known/oauth-protected-resource"
    assert resource_places("https://user@H:8443/a/b?key=x#y") == [
        f"https://h:8443{known}/a/b",
        f"https://h:8443{known}",
        f"https://h:8443/a/b{known}",
    ]
    assert resource_places("https://h/a/") == [
        f"https://h{known}/a/",
        f"https://h{known}/a",
        f"https://h{known}",
        f"https://h/a{known}",
    ]
    assert resource_places("https://h/") == resource_places("https://h") == [f"https://h{known}"]


def test_where_metadata_of_an_issuer_may_be() -> None:
    """A07; RFC 8414, 3.1 and 5: a slash at the end is taken away first."""
    oauth, oidc = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    assert provider_places("https://as") == provider_places("https://as/")
    assert provider_places("https://as") == [f"https://as{oauth}", f"https://as{oidc}"]
    assert provider_places("https://as/t/1/") == [
        f"https://as{oauth}/t/1",
        f"https://as{oidc}/t/1",
        f"https://as/t/1{oidc}",
        f"https://as/t/1{oauth}",
    ]
