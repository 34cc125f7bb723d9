"""Whatever a provider or a server answers, a login ends with tokens or with a sentence (I05, I06).

Nothing else is raised, no secret is in the sentence, and nothing takes long.
"""

from __future__ import annotations

import gzip
import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from servers.models import Login, PendingLogin, Server
from servers.oauth import asking
from servers.oauth.types import OAuthError
from tests.fakes.mcp_http import JSON, Reply, running
from tests.fakes.oauth_server import OMIT, OAuthServer, Variant
from tests.fakes.oauth_steps import added_server, begin, finish
from umpteenth.accounts.models import User
from umpteenth.core.text import clean

pytestmark = pytest.mark.django_db

DOCUMENTS = (
    "/.well-known/oauth-protected-resource/mcp",
    "/.well-known/oauth-authorization-server",
)
ENDPOINTS = ("/register", "/token")
LONG = "x" * 900_000


def raw(text: bytes) -> Reply:
    return Reply(raw=text, cut=True)


def answer(body: bytes, status: int = 200, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"content-type": JSON, **named}, body)


ANSWERS: dict[str, Reply] = {
    "nothing at all": raw(b""),
    "no HTTP": raw(b"<html>hello</html>"),
    "another version": raw(b"HTTP/9.9 200 OK\r\n\r\n{}"),
    "a status that is no number": raw(b"HTTP/1.1 abc OK\r\n\r\n{}"),
    "a status of four digits": raw(b"HTTP/1.1 1000 OK\r\n\r\n{}"),
    "other protocols": raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
    "a negative length": raw(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n{}"),
    "a length without end": raw(b"HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\n{}" % (b"9" * 5000)),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x"),
    "chunks of rubbish": raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}"),
    "a chunk without end": raw(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n{}"
    ),
    "another transfer": raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n"),
    "headers without end": raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200_000 + b"\r\n{}"),
    "a header without end": raw(b"HTTP/1.1 200 OK\r\na: " + b"x" * 2_000_000 + b"\r\n\r\n{}"),
    "a header without a colon": raw(b"HTTP/1.1 200 OK\r\nfoo\r\n\r\n{}"),
    "NUL in a header": raw(b"HTTP/1.1 200 OK\r\nfoo: a\x00b\r\n\r\n{}"),
    "no body after all": answer(b"", 204),
    "later": answer(b"{}", 429, retry_after="1e999"),
    "a status that nobody knows": answer(b'{"error": "x"}', 599),
    "an empty body": answer(b""),
    "a page": answer(b"<html>", content_type="text/html"),
    "a list": answer(b"[1]"),
    "a text": answer(b'"x"'),
    "null": answer(b"null"),
    "nested deeply": answer(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "nested too deeply to store": answer(b'{"a":' * 300 + b"1" + b"}" * 300),
    "a number too long to read": answer(b'{"a":' + b"9" * 5000 + b"}"),
    "more than a mebibyte": answer(b" " * (1024 * 1024 + 1) + b"{}"),
    "a bomb": answer(gzip.compress(bytes(50_000_000)), content_encoding="gzip"),
    "packed twice": answer(gzip.compress(gzip.compress(b"{}")), content_encoding="gzip, gzip"),
    "packed by nobody": answer(b"no gzip", content_encoding="gzip"),
    "cut off": answer(gzip.compress(b'{"a": 1}')[:-9], content_encoding="gzip"),
    "another coding": answer(b"x", content_encoding="br"),
    "a charset that is none": answer(b"\xff{}", content_type="application/json; charset=zlib"),
    "half of UTF-16": answer(b"\xff\xfe{", content_type="application/json; charset=utf-16"),
    "half a surrogate pair": answer(b'{"error": "\\ud800", "error_description": "\\ud800"}', 400),
    "beginnings of titles": answer(
        json.dumps({"error": "a", "error_description": "\x9d" * 200_000}).encode(), 400
    ),
    "very long words": answer(json.dumps({"error": LONG}).encode(), 400),
    "an error that is a list": answer(b'{"error": [1], "error_description": {"a": []}}', 400),
    "a redirect to a script": Reply(307, {"location": "javascript:alert(1)"}),
    "a redirect to a file": Reply(307, {"location": "file:///etc/passwd"}),
    "a redirect to metadata": Reply(307, {"location": "http://169.254.169.254/latest"}),
    "a redirect to half an address": Reply(307, {"location": "http://[::1"}),
    "a redirect to no port": Reply(307, {"location": "http://127.0.0.1:99999/"}),
    "a redirect to nothing": Reply(307, {"location": ""}),
    "a redirect to itself": Reply(307, {"location": "?again"}),
    "a redirect to bytes": raw(b"HTTP/1.1 307 X\r\nlocation: /\xff\xfe\r\n\r\n"),
}  # fmt: skip

# Laid over each answer of the provider and over the server's document.
VALUES: tuple[Any, ...] = (
    OMIT, None, 0, -1, True, 1.5, "", " ", "\x00", "\ud800", "a\r\nb: c", "\x1b[31mred", LONG,
    [], [[]], [None, 1, "\ud800"], {}, {"a": {"b": []}}, float("nan"), float("-inf"), 10**400,
    "javascript:alert(1)", "http://[::1", "//evil.test", "https://u:p@h.test/", "https://h.test:0/",
    "https://h.test:65536/", "http://169.254.169.254/", "https://" + "a" * 300 + ".test/",
    "https://bücher.test/", "https://xn--zz--.test/", "https://h.test./", "{issuer}#f",
    "{issuer}?q", "{issuer}\n", " {issuer}",
)  # fmt: skip
METADATA = (
    "issuer", "authorization_endpoint", "token_endpoint", "registration_endpoint",
    "revocation_endpoint", "code_challenge_methods_supported", "scopes_supported",
    "token_endpoint_auth_methods_supported", "grant_types_supported",
    "authorization_response_iss_parameter_supported", "client_id_metadata_document_supported",
)  # fmt: skip
RESOURCE = ("resource", "authorization_servers", "scopes_supported")
REGISTRATION = (
    "client_id", "client_secret", "token_endpoint_auth_method", "client_secret_expires_at",
)  # fmt: skip
TOKENS = ("access_token", "token_type", "expires_in", "refresh_token", "scope")
FIELDS = [
    *(("metadata", name) for name in METADATA),
    *(("resource_document", name) for name in RESOURCE),
    *(("registration_answer", name) for name in REGISTRATION),
    *(("token_answer", name) for name in TOKENS),
]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LIMIT_SECONDS", 2.0)


def journey(fake: OAuthServer, server: Server, person: User) -> str:
    """A whole login; the sentence that it ends with, or nothing where there are tokens."""
    given, begun = "", time.process_time()
    try:
        there = begin(server, person)
        if there.partition("?")[0] != fake.endpoint("authorize"):
            assert there.startswith(("https://", fake.origin))
            return "The browser is elsewhere."
        back = fake.visit(there)
        given = parse_qs(urlsplit(back).query).get("code", [""])[0]
        finish(server, person, back)
        return ""
    except OAuthError as error:
        secrets = {given, *fake.grants.secrets} - {""}
        told = f"{error.words} {getattr(error, 'in_full', '')}"
        assert not [secret for secret in secrets if len(secret) > 6 and secret in told]
        assert len(told) < 40_000
        assert clean(told) == told
        return told
    finally:
        assert time.process_time() - begun < 5


@pytest.mark.parametrize("path", [*DOCUMENTS, *ENDPOINTS])
@pytest.mark.parametrize("reply", ANSWERS.values(), ids=ANSWERS.keys())
def test_any_answer_ends_with_a_sentence_or_with_a_login(
    reply: Reply, path: str, alice: User
) -> None:
    """A08, I05."""
    with running(OAuthServer(Variant(replies={path: reply}))) as fake:
        server = added_server(fake)
        told = journey(fake, server, alice)
        assert bool(told) is not Login.objects.filter(server=server).exists()


@pytest.mark.parametrize(("part", "name"), FIELDS)
def test_any_value_of_any_field_ends_with_a_sentence_or_with_a_login(
    part: str, name: str, alice: User
) -> None:
    """A14, A24, I05, I06."""
    variant = Variant()
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        for value in VALUES:
            Login.objects.all().delete()
            setattr(variant, part, {name: value})
            told = journey(fake, server, alice)
            assert bool(told) is not Login.objects.filter(server=server).exists(), value


QUERIES = (
    "", "state", "state=", "state=%00&code=a", "state=%FF%FE&code=a", "state=%ED%A0%80&code=a",
    "state=a&code=%00", "state=a&state=b&code=c", "state[]=a&code=c", "state=a;code=c",
    "code=a&error=b", "error=<script>alert(1)</script>&state=a", "=&==&&&", "%", "state=%&code=%zz",
    f"state={'a' * 20_000}&code={'b' * 20_000}", "&".join(["state=a"] * 900),
    "&".join(f"a{number}=b" for number in range(2000)),
)  # fmt: skip


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_any_answer_of_a_browser_leads_back_to_the_list(
    query: str, administrator_client: Client, administrator: User
) -> None:
    """I07: nothing is consumed, and no parameter is left."""
    with running(OAuthServer()) as fake:
        server = added_server(fake)
        begin(server, administrator)
        where = f"/api/mcp-servers/{server.pk}/oauth/callback"
        response = administrator_client.get(f"{where}?{query}")
    assert response.status_code in (302, 303, 400)
    assert response.get("Location", "/servers/") == "/servers/"
    assert PendingLogin.objects.count() == 1
    assert fake.count("token") == 0
