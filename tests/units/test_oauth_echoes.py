"""Providers and servers that repeat what was sent to them: none of it is kept or logged.

What a database dump, the logs and the words for people hold is searched for every token, code,
verifier and secret of the login (P43, U60).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.apps import apps
from django.test import Client

from servers.models import Login
from servers.oauth.types import OAuthError
from tests.fakes.oauth_server import OAuthServer, Reply, Request, Variant
from tests.fakes.oauth_steps import Journey, begun
from umpteenth.accounts.models import User
from umpteenth.core.clock import database_now

pytestmark = pytest.mark.django_db(transaction=True)

JSON = {"content-type": "application/json"}
BASIC = ("client_secret_basic",)  # so that there is a client secret to hide, too
PAGES = ("/servers/", "/servers/{}/", "/servers/{}/edit/", "/settings/audit/", "/")


def sent(request: Request) -> dict[str, str]:
    """All that a token endpoint is told, in the form and in the header."""
    form = dict(parse_qsl(request.body.decode()))
    basic = request.headers.get("authorization", "").partition(" ")[2]
    return {**form, "secret": base64.b64decode(basic).decode().partition(":")[2]}


def repeating(grant: str, status: int, **fields: str) -> Callable[[Request], Reply | None]:
    """Refuses one grant in words that hold everything that it was sent."""

    def answer(request: Request) -> Reply | None:
        told = sent(request)
        if told["grant_type"] != grant:
            return None
        words = " ".join(told[name] for name in told if name != "client_id")
        body = {name: value.replace("ALL", words) for name, value in fields.items()}
        return Reply(status, JSON, json.dumps(body).encode())

    return answer


def dump() -> str:
    """Every row of every table; bytes as they are and as text."""
    rows: list[Any] = []
    for model in apps.get_models():
        for row in model._default_manager.values():
            values = [bytes(v) if isinstance(v, memoryview) else v for v in row.values()]
            rows.append(values)
    return "\n".join(repr(row) for row in rows)


@contextmanager
def nothing_leaks(
    journey: Journey, caplog: pytest.LogCaptureFixture, *kinds: str
) -> Iterator[list[str]]:
    """Words that were shown go into the list; `kinds` of secrets were in use by then."""
    shown: list[str] = []
    with caplog.at_level(0):
        yield shown
    secrets = journey.fake.grants.secrets
    assert {secret.partition("-")[0] for secret in secrets} >= set(kinds)
    client = Client()
    client.force_login(journey.person)
    pages = [client.get(page.format(journey.server.pk)).content.decode() for page in PAGES]
    pages.append(client.get(f"/api/mcp-servers/{journey.server.pk}").content.decode())
    for text in (dump(), caplog.text, *shown, *pages):
        assert not [secret for secret in secrets if secret in text]


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_user("alice", password="x" * 12, role=User.Role.ADMINISTRATOR)


def make_due() -> None:
    Login.objects.update(expires_at=database_now() - timedelta(hours=1))


@pytest.mark.parametrize(
    "answer",
    [
        repeating("refresh_token", 400, error="invalid_grant", error_description="No: ALL"),
        repeating("refresh_token", 400, error="ALL"),
        repeating("refresh_token", 401, error="invalid_client", error_description="ALL"),
        repeating("refresh_token", 503, error="ALL", message="ALL"),
        repeating("refresh_token", 200, error="ALL", access_token=""),
        repeating("refresh_token", 200, token_type="ALL", access_token="ALL"),
    ],
)
def test_a_provider_that_repeats_the_refresh(
    answer: Callable[[Request], Reply | None], alice: User, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        begun(Variant(replies={"/token": answer}, auth_methods=BASIC), alice) as journey,
        nothing_leaks(journey, caplog, "access", "refresh", "secret", "code") as shown,
    ):
        journey.test()
        journey.log_in()
        make_due()
        check = journey.test()
        assert check.outcome != "connected"
        shown += [check.error, check.hint]


@pytest.mark.parametrize(
    "answer",
    [
        repeating("authorization_code", 400, error="invalid_grant", error_description="No: ALL"),
        repeating("authorization_code", 500, error="ALL"),
        repeating("authorization_code", 200, error="No luck", error_description="ALL"),
    ],
)
def test_a_provider_that_repeats_the_exchange(
    answer: Callable[[Request], Reply | None], alice: User, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        begun(Variant(replies={"/token": answer}, auth_methods=BASIC), alice) as journey,
        nothing_leaks(journey, caplog, "secret", "code") as shown,
    ):
        journey.test()
        with pytest.raises(OAuthError) as refused:
            journey.log_in()
        shown += [refused.value.message, refused.value.hint]


class _Parrot:
    """An MCP server that refuses the token of each request and says which one it was."""

    def __init__(self) -> None:
        self.refuses = False

    def __call__(self, request: Request) -> Reply | None:
        token = request.headers.get("authorization", "")
        if not self.refuses:
            return None
        words = {"error": "invalid_token", "error_description": f"Not {token}"}
        challenge = f'Bearer error="invalid_token", error_description="Not {token}"'
        headers = {**JSON, "www-authenticate": challenge}
        return Reply(401, headers, json.dumps(words).encode())


def test_a_server_that_repeats_the_token_it_refuses(
    alice: User, caplog: pytest.LogCaptureFixture
) -> None:
    parrot = _Parrot()
    with (
        begun(Variant(replies={"/mcp": parrot}, auth_methods=BASIC), alice) as journey,
        nothing_leaks(journey, caplog, "access", "refresh", "secret", "code") as shown,
    ):
        journey.test()
        journey.log_in()
        journey.expect_connected()
        parrot.refuses = True
        check = journey.test()
        assert check.outcome == "login_required"
        assert Login.objects.get().ended == "refused"
        assert "Not" in Login.objects.get().ended_reason  # its words are kept without the token
        shown += [check.error, check.hint]


def test_a_server_that_names_the_token_as_a_scope(
    alice: User, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: Request) -> Reply | None:
        token = request.headers.get("authorization", "").partition(" ")[2]
        if not token:
            return None
        challenge = f'Bearer error="insufficient_scope", scope="write {token}"'
        return Reply(403, {**JSON, "www-authenticate": challenge}, b"{}")

    with (
        begun(Variant(replies={"/mcp": answer}), alice) as journey,
        nothing_leaks(journey, caplog, "access", "code") as shown,
    ):
        journey.test()
        journey.log_in()
        check = journey.test()
        assert journey.server.oauth_wanted == "write"
        shown += [check.error, check.hint]
        shown.append(str(journey.begin()).partition("?")[0])


def test_the_search_finds_what_is_there(alice: User) -> None:
    """A search that finds nothing ever would prove nothing."""
    with begun(Variant(), alice) as journey:
        journey.test()
        journey.log_in()
        fake: OAuthServer = journey.fake
        secret = next(iter(fake.grants.secrets))
        Login.objects.update(ended_reason=f"the words {secret} were kept")
        assert secret in dump()
