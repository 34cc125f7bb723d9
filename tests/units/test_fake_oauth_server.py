"""The fake provider refuses what it should: a test of the product may rely on it.

No test here cites a kind of fault: those are about the product.
"""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from tests.fakes.oauth_server import OMIT, OAuthServer, Reply, Variant, running

BACK = "http://127.0.0.1:8080/api/mcp-servers/x/oauth/callback"
VERIFIER = "v" * 43


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer(Variant())) as fake:
        fake.add_client("ours", redirect_uris=[BACK])
        yield fake


def ask(url: str, data: dict[str, str] | None = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and document."""
    body = urlencode(data).encode() if data is not None else None
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
            return error.code, error.headers, json.loads(text or b"null")


def authorization(fake: OAuthServer, **changes: str) -> str:
    digest = hashlib.sha256(VERIFIER.encode()).digest()
    parameters = {
        "response_type": "code",
        "client_id": "ours",
        "redirect_uri": BACK,
        "state": "s",
        "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": fake.resource,
        **changes,
    }
    return f"{fake.endpoint('authorize')}?{urlencode(parameters)}"


def code_of(fake: OAuthServer, **changes: str) -> str:
    return dict(parse_qsl(urlsplit(fake.visit(authorization(fake, **changes))).query))["code"]


def redeem(fake: OAuthServer, code: str, **changes: str) -> tuple[int, Any]:
    form = {
        "grant_type": "authorization_code",
        "client_id": "ours",
        "code": code,
        "redirect_uri": BACK,
        "code_verifier": VERIFIER,
        "resource": fake.resource,
        **changes,
    }
    status, _, answer = ask(fake.endpoint("token"), form)
    return status, answer


def refresh(fake: OAuthServer, token: str) -> tuple[int, Any]:
    form = {"grant_type": "refresh_token", "client_id": "ours", "refresh_token": token}
    status, _, answer = ask(fake.endpoint("token"), form)
    return status, answer


def status_with(fake: OAuthServer, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    request = urllib.request.Request(fake.url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_the_challenge_leads_to_the_documents(fake: OAuthServer) -> None:
    """RFC 9728, 5.1 and 3; RFC 8414, 3."""
    status, headers, _ = ask(fake.url, {})
    assert status == 401
    pointer = headers["WWW-Authenticate"].partition('resource_metadata="')[2].partition('"')[0]
    document = ask(pointer)[2]
    assert document["resource"] == fake.url
    [issuer] = document["authorization_servers"]
    metadata = ask(f"{issuer}/.well-known/oauth-authorization-server")[2]
    assert metadata["issuer"] == issuer != fake.server_origin
    assert metadata["token_endpoint"] == fake.endpoint("token")


def test_a_code_is_good_once_and_only_with_its_verifier_and_address(fake: OAuthServer) -> None:
    """RFC 6749, 4.1.3 and 10.5; RFC 7636, 4.6."""
    code = code_of(fake)
    assert redeem(fake, code, code_verifier="w" * 43)[1]["error"] == "invalid_grant"
    assert redeem(fake, code, redirect_uri="http://127.0.0.1/other")[1]["error"] == "invalid_grant"
    status, tokens = redeem(fake, code)
    assert status == 200
    assert status_with(fake, tokens["access_token"]) == 200
    assert redeem(fake, code)[1]["error"] == "invalid_grant"
    assert status_with(fake, tokens["access_token"]) == 401  # the login went with it


def test_a_refresh_token_used_twice_ends_the_whole_login(fake: OAuthServer) -> None:
    """RFC 9700, 4.14.2."""
    access, first = fake.tokens("ours")
    status, renewed = refresh(fake, first)
    assert status == 200
    assert status_with(fake, renewed["access_token"]) == 200
    assert refresh(fake, first)[1]["error"] == "invalid_grant"
    assert refresh(fake, renewed["refresh_token"])[1]["error"] == "invalid_grant"
    assert status_with(fake, renewed["access_token"]) == status_with(fake, access) == 401


def test_expired_access_tokens_are_refused_and_refreshed_ones_taken(fake: OAuthServer) -> None:
    access, token = fake.tokens("ours")
    assert status_with(fake, access) == 200
    fake.grants.expire_access_tokens()
    assert status_with(fake, access) == 401
    assert status_with(fake, refresh(fake, token)[1]["access_token"]) == 200
    fake.variant.refuses_every_token = True
    assert status_with(fake, fake.tokens("ours")[0]) == 401


def test_the_way_back_carries_state_and_issuer(fake: OAuthServer) -> None:
    """RFC 6749, 4.1.2; RFC 9207, 2."""
    back = dict(parse_qsl(urlsplit(fake.visit(authorization(fake))).query))
    assert back["state"] == "s"
    assert back["iss"] == fake.issuer
    denied = fake.visit(authorization(fake), decision="access_denied")
    assert "error=access_denied" in denied
    assert "code=" not in denied


@pytest.mark.parametrize("changes", [{"client_id": "other"}, {"redirect_uri": "http://x.test/"}])
def test_strangers_are_not_sent_back(fake: OAuthServer, changes: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=r"Unrecognized|does not match"):
        fake.visit(authorization(fake, **changes))


def test_a_strict_resource_is_compared_byte_for_byte() -> None:
    """In all three requests."""
    with running(OAuthServer(Variant(resource="{server}", strict_resource=True))) as fake:
        fake.add_client("ours", redirect_uris=[BACK])
        assert "invalid_target" in fake.visit(authorization(fake, resource=fake.resource + "/"))
        code = code_of(fake)
        assert redeem(fake, code, resource=fake.resource + "/")[1]["error"] == "invalid_target"
        tokens = redeem(fake, code)[1]
        assert refresh(fake, tokens["refresh_token"])[1]["error"] == "invalid_target"


def test_a_registration_is_a_client_and_its_method_holds() -> None:
    """RFC 7591, 3.2.1."""
    with running(OAuthServer(Variant(auth_methods=("client_secret_post",)))) as fake:
        request = urllib.request.Request(
            fake.endpoint("register"),
            json.dumps({"redirect_uris": [BACK], "client_name": "Umpteenth"}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            registered = json.load(answer)
        client = {"client_id": registered["client_id"], "client_secret": "wrong"}
        code = code_of(fake, client_id=registered["client_id"])
        assert redeem(fake, code, **client)[1]["error"] == "invalid_client"
        client["client_secret"] = registered["client_secret"]
        assert redeem(fake, code, **client)[0] == 200
        assert registered["client_secret"] in fake.grants.secrets


def test_every_answer_can_be_bent() -> None:
    """Fields are replaced or left out."""
    variant = Variant(
        expires_in=OMIT,
        token_answer={"token_type": "bearer", "access_token": OMIT, "ok": False},
        metadata={"token_endpoint": "{server}/elsewhere", "registration_endpoint": OMIT},
    )
    with running(OAuthServer(variant)) as fake:
        fake.add_client("ours", redirect_uris=[BACK])
        answer = redeem(fake, code_of(fake))[1]
        assert answer == {
            "token_type": "bearer",
            "ok": False,
            "refresh_token": answer["refresh_token"],
        }
        document = fake.provider_document()
        assert document["token_endpoint"] == f"{fake.server_origin}/elsewhere"
        assert "registration_endpoint" not in document


def test_any_address_can_be_scripted_and_its_calls_still_count() -> None:
    """A provider that is busy once."""
    busy = [Reply(503)]
    variant = Variant(replies={"/token": lambda request: busy.pop() if busy else None})
    with running(OAuthServer(variant)) as fake:
        fake.add_client("ours")
        _, token = fake.tokens("ours")
        assert refresh(fake, token)[0] == 503
        assert refresh(fake, token)[0] == 200
        assert fake.count("token") == 2
        assert [form["refresh_token"] for form in fake.sent("token")] == [token] * 2


def test_a_page_lets_a_person_decide() -> None:
    """What the browser tests click on."""
    with running(OAuthServer(Variant(decision="ask"))) as fake:
        fake.add_client("ours", redirect_uris=[BACK])
        with urllib.request.urlopen(authorization(fake), timeout=10) as answer:
            page = answer.read().decode()
        assert 'value="approve"' in page
        assert f'action="{fake.endpoint("decide")}"' in page
        assert "code=" in fake.visit(authorization(fake))
