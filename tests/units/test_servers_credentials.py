"""What of a server's credentials reaches the wire, and what nothing else ever shows."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import serializers

from secrets_vault.services import set_secret
from servers import checks
from servers.checks import request_check, run_check
from servers.connecting import connection_settings
from servers.mcp.client import connect
from servers.mcp.types import ServerError
from servers.models import Check, Server
from tests.fakes.mcp_http import FakeHttp, Reply, Request, running
from tests.fakes.server_rows import http_server
from umpteenth.core.logs import MaskingFilter

pytestmark = pytest.mark.django_db

CANARY = "sk-canary-4711"


@pytest.fixture
def fake() -> Iterator[FakeHttp]:
    with running(FakeHttp()) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Everything that is logged, at DEBUG, as a handler of this product writes it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(MaskingFilter())
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setattr(root, "level", logging.DEBUG)
    return stream


def listed(server: Server, actor: str = "") -> list[str]:
    """Connect as the product does; the names of the tools."""
    settings, _ = connection_settings(server, actor=actor)

    async def talk() -> list[str]:
        async with connect(settings) as connection:
            return [tool.name for tool in (await connection.list_tools()).tools]

    return asyncio.run(talk())


def sent(fake: FakeHttp, name: str) -> set[str | None]:
    """The values of a header in all requests; None where it was missing."""
    return {request.headers.get(name) for request in fake.requests}


def test_headers_are_on_every_request_from_the_first_on(fake: FakeHttp) -> None:
    """U23, E14: no request asks for a login before the key was shown."""
    set_secret(actor=None, name="KEY", value=CANARY)
    headers = {"X-Api-Key": "{{secret:KEY}}", "X-Plain": "Grüße"}
    assert listed(http_server(url=fake.url, headers=headers))
    assert sent(fake, "x-api-key") == {CANARY}
    assert sent(fake, "x-plain") == {"Grüße"}


def test_a_referred_token_is_on_every_request(fake: FakeHttp) -> None:
    """U25."""
    set_secret(actor=None, name="TOKEN", value=CANARY)
    fake.token = CANARY
    assert listed(http_server(url=fake.url, options={"token_ref": "@TOKEN"}))
    assert sent(fake, "authorization") == {f"Bearer {CANARY}"}


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_one_authorization_header_is_sent_and_it_is_the_servers_own(
    fake: FakeHttp, name: str
) -> None:
    """U26, E15: however it is written; two of them are never sent."""
    set_secret(actor=None, name="TOKEN", value="value-of-token")
    headers = {name: f"Bearer {CANARY}"}
    server = http_server(url=fake.url, headers=headers, options={"token_ref": "@TOKEN"})
    assert listed(server)
    assert sent(fake, "authorization") == {f"Bearer {CANARY}"}


def test_a_dropped_token_leaves_no_trace_on_the_wire(fake: FakeHttp) -> None:
    """U27: neither a header nor the reference."""
    assert listed(http_server(url=fake.url, options={"token_ref": "@NOWHERE"}))
    assert sent(fake, "authorization") == {None}
    everything = "".join(
        f"{request.path}{request.headers}{request.body!r}" for request in fake.requests
    )
    assert "NOWHERE" not in everything


@pytest.mark.parametrize("token", ["", "another"])
def test_a_test_says_once_that_a_token_was_dropped(fake: FakeHttp, token: str) -> None:
    """U27: where it goes well and where it fails, since that may be why."""
    fake.token = token
    server = http_server(url=fake.url, options={"token_ref": "@NOWHERE"})
    check = request_check(server, actor=None)
    assert run_check(check.pk)
    check.refresh_from_db()
    assert check.outcome == ("login_required" if token else "connected")
    assert ["token_ref @NOWHERE" in warning for warning in check.warnings].count(True) == 1


def test_two_actors_have_a_session_each_with_a_header_each(fake: FakeHttp) -> None:
    """U61, U62, U64."""
    server = http_server(url=fake.url, options={"per_actor": True})
    for actor in ("alice", "bob", ""):
        assert listed(server, actor)
    sessions: dict[str | None, set[str]] = {}
    for request in fake.requests:
        session = request.headers.get("mcp-session-id")
        if session:
            sessions.setdefault(request.headers.get("x-ugent-actor"), set()).add(session)
    assert set(sessions) == {"alice", "bob", None}
    assert len(set.union(*sessions.values())) == 3


def test_a_refused_key_is_called_a_refused_key(fake: FakeHttp) -> None:
    """E14: with a key in place, 401 is no invitation to log in."""
    fake.token = "another"
    server = http_server(url=fake.url, headers={"X-Api-Key": CANARY})
    with pytest.raises(ServerError, match="refused the credentials: 401"):
        listed(server)
    assert {request.path for request in fake.requests} == {"/mcp"}


def unknown_scheme(request: Request) -> Reply:
    return Reply(401, {"www-authenticate": 'Zauber realm="x", token="' + CANARY + '"'})


def echo_of_headers(request: Request) -> Reply:
    return Reply(500, {"content-type": "text/plain"}, str(request.headers).encode())


def no_json(request: Request) -> Reply:
    words = f"<html>{request.headers.get('x-api-key')} {request.path}".encode()
    return Reply(200, {"content-type": "application/json"}, words)


def elsewhere(request: Request) -> Reply:
    return Reply(307, {"location": f"http://127.0.0.1:9/?key={CANARY}"})


@pytest.mark.parametrize("trouble", [unknown_scheme, echo_of_headers, no_json, elsewhere, None])
def test_a_credential_shows_up_nowhere_whatever_goes_wrong(
    trouble: Any, fake: FakeHttp, log: io.StringIO
) -> None:
    """E11: neither in logs at DEBUG nor in anything that is stored, as text."""
    set_secret(actor=None, name="KEY", value=CANARY)
    fake.script = trouble
    # The last one: nobody listens.
    url = fake.url if trouble else "http://127.0.0.1:9/mcp"
    headers = {"X-Api-Key": "{{secret:KEY}}", "Authorization": f"Bearer {CANARY}-literal"}
    server = http_server(url=f"{url}?key={CANARY}-query", headers=headers)
    check = request_check(server, actor=None)
    logging.getLogger("servers").debug("The log is heard")
    assert run_check(check.pk)
    check.refresh_from_db()
    assert check.outcome in ("failed", "login_required")
    assert check.error
    rows = serializers.serialize("json", [*Check.objects.all(), *Server.objects.all()])
    assert CANARY not in rows
    assert "The log is heard" in log.getvalue()
    assert CANARY not in log.getvalue()
