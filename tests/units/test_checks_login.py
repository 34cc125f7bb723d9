"""A person's test looks for how people log in, and keeps what it found (P35, P36, P46-P51)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from secrets_vault.services import set_secret
from servers import checks
from servers.checks import cancel_check, make_check, request_check, run_check
from servers.definition import MACHINE, Entry, OAuthClientData
from servers.mcp.types import LoginRequired, ServerUnavailable
from servers.models import Check, Login, Server
from servers.oauth.types import Advertised, DiscoveryFailed, Looked
from servers.probe import Probe
from servers.results import store_looked, with_looked
from servers.services import current_data, store_failure, update_server
from tests.fakes.login_rows import advertised, logged_in, oauth_server
from tests.fakes.oauth_server import OAuthServer, Reply, Request, Variant, running
from tests.fakes.server_rows import http_server
from tests.units.forms_of_pages import fields_of
from umpteenth.core.masking import Masker

pytestmark = pytest.mark.django_db

STEP = "Looking for a login"
OPEN = Variant(lets_in=True)


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


def after_test(server: Server, *, kind: str = "person") -> Check:
    check = make_check(server, kind=kind)
    assert check is not None
    assert run_check(check.pk)
    check.refresh_from_db()
    server.refresh_from_db()
    return check


def labels(check: Check) -> list[str]:
    return [step["label"] for step in check.steps]


def documents_asked_for(fake: OAuthServer) -> int:
    return sum(".well-known" in request.path for request in fake.mcp.requests)


@contextmanager
def a_server(variant: Variant, **values: Any) -> Iterator[tuple[OAuthServer, Server]]:
    with running(OAuthServer(variant)) as fake:
        yield fake, http_server(url=fake.url, **values)


def test_a_server_that_wants_a_login_is_asked_how() -> None:
    """P36, P47: after the refusal, and what its challenge says counts."""
    with a_server(Variant(challenge_scope="a b", resource_scopes=("c",))) as (fake, server):
        check = after_test(server)
    assert (check.outcome, server.state) == ("login_required", "login_required")
    assert labels(check)[-1] == STEP
    assert check.steps[-1]["ms"] is not None
    assert check.hint == f"Log in at {fake.origin.removeprefix('http://')}."
    assert server.oauth_advertised is True
    found = Advertised.from_json(server.oauth_found)
    assert found.provider.token_endpoint == fake.endpoint("token")
    assert found.resource == fake.url
    assert found.challenge_scopes == ("a", "b")
    assert found.resource_scopes == ("c",)
    assert server.oauth_error == ""


@pytest.mark.django_db(transaction=True)
def test_nobody_is_sent_to_log_in_for_a_client_that_does_it_by_itself() -> None:
    client = OAuthClientData(kind=MACHINE, client_id="stranger", secret="so-very-secret")
    with a_server(Variant(), oauth=client) as (_, server):
        check = after_test(server)
    assert check.outcome == "login_required"
    assert "The client could not log in" in check.error
    assert check.hint == "Check the Client ID and the client secret in the server's settings."


def test_a_server_that_lets_everybody_in_and_has_no_logins() -> None:
    """P51."""
    with a_server(Variant(lets_in=True, resource_at=())) as (_, server):
        check = after_test(server)
    assert check.outcome == "connected"
    assert labels(check)[-1] == STEP
    assert (server.oauth_advertised, server.oauth_found) == (False, {})


def test_a_server_that_lets_everybody_in_and_has_logins() -> None:
    """P47."""
    with a_server(OPEN) as (fake, server):
        check = after_test(server)
    assert (check.outcome, check.hint) == ("connected", "")
    assert server.oauth_advertised is True
    assert server.oauth_found["resource"] == fake.url


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_no_login_is_looked_for_where_a_header_authenticates(name: str) -> None:
    """P14, P35."""
    with a_server(OPEN) as (fake, server):
        Server.objects.all().delete()
        server = http_server(url=fake.url, headers={name: "Bearer x"})
        check = after_test(server)
        assert documents_asked_for(fake) == 0
    assert STEP not in labels(check)
    assert server.oauth_advertised is None


@pytest.mark.parametrize("there", [True, False])
def test_no_login_is_looked_for_where_a_token_is_named_and_there(there: bool) -> None:
    """U24-U27: one that does not resolve is left out."""
    if there:
        set_secret(name="TOKEN", value="token-value", actor=None)
    with a_server(OPEN, options={"token_ref": "@TOKEN"}) as (_, server):
        check = after_test(server)
    assert (STEP in labels(check)) is not there


def test_other_headers_do_not_keep_from_looking() -> None:
    with running(OAuthServer(OPEN)) as fake:
        server = http_server(url=fake.url, headers={"X-Tenant": "one"})
        after_test(server)
        sent = [r for r in fake.mcp.requests if ".well-known" in r.path]
    assert server.oauth_advertised is True
    # They are for the server itself, not for whoever serves its documents.
    assert not any("x-tenant" in request.headers for request in sent)


def test_health_checks_never_look() -> None:
    """P36, U2."""
    with a_server(Variant()) as (fake, server):
        check = after_test(server, kind="health")
        assert documents_asked_for(fake) == 0
    assert check.outcome == "login_required"
    assert STEP not in labels(check)
    assert server.oauth_advertised is None


def test_a_health_check_that_a_person_joined_while_it_ran_does_not_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P36: it is still the same check."""
    joined: list[Check] = []

    class Joined(Probe):
        def start(self) -> None:
            joined.append(request_check(server, actor=None))
            super().start()

    monkeypatch.setattr(checks, "Probe", Joined)
    with a_server(OPEN) as (fake, server):
        check = after_test(server, kind="health")
        assert documents_asked_for(fake) == 0
    assert [one.pk for one in joined] == [check.pk]
    assert check.outcome == "connected"


def test_a_health_check_that_a_person_took_over_before_it_began_looks() -> None:
    with a_server(OPEN) as (_, server):
        make_check(server, kind="health")
        check = request_check(server, actor=None)
        assert run_check(check.pk)
    server.refresh_from_db()
    assert server.oauth_advertised is True


def test_a_server_with_a_login_is_not_asked_again() -> None:
    """P36."""
    with a_server(OPEN) as (fake, server):
        logged_in(server)
        check = after_test(server)
        assert documents_asked_for(fake) == 0
    assert check.outcome == "connected"
    assert server.oauth_advertised is None


def test_a_server_whose_login_is_over_is_asked_again() -> None:
    """P36, P47: so that `Log in` knows where to go."""
    with a_server(OPEN) as (_, server):
        logged_in(server, ended=Login.Ended.REFUSED)
        after_test(server)
    assert server.oauth_advertised is True


def test_nothing_is_known_of_a_server_that_cannot_be_reached() -> None:
    """P50."""
    with a_server(Variant()) as (_, server):
        pass
    check = after_test(server)
    assert check.outcome == "failed"
    assert STEP not in labels(check)
    assert server.oauth_advertised is None


def test_what_is_known_stays_where_a_server_cannot_be_reached() -> None:
    server = oauth_server()
    before = server.oauth_found
    store_failure(server, ServerUnavailable("It is down."))
    server.refresh_from_db()
    assert (server.oauth_advertised, server.oauth_found) == (True, before)


def test_a_search_that_failed_lists_what_was_tried() -> None:
    """A08: in the result of the test, and with the server."""
    with a_server(Variant(metadata_at=())) as (fake, server):
        check = after_test(server)
    assert check.outcome == "login_required"
    lines = check.error.splitlines()
    assert lines[0] == server.last_error
    assert lines[0].startswith("The server requires a login: 401 Unauthorized")
    assert lines[1].startswith(f"The server sends people to {fake.issuer} to log in")
    assert lines[-1] == f"{fake.origin}/.well-known/openid-configuration: 404 Not Found"
    assert "Authorization header" in check.hint
    assert server.oauth_error.splitlines() == lines[1:]
    # It says that there are logins; only how is not known.
    assert (server.oauth_advertised, server.oauth_found) == (True, {})


def test_a_guess_is_not_shown_as_an_advice() -> None:
    """MCP 2025-03-26: a server that takes keys alone looks the same."""
    with a_server(Variant(resource_at=(), pointer="", metadata_at=())) as (_, server):
        check = after_test(server)
    assert server.oauth_advertised is True
    assert server.oauth_found["provider"]["metadata_url"] == ""
    assert "Log in at" not in check.hint
    assert "Authorization header" in check.hint


def test_a_failed_search_keeps_what_an_earlier_one_found() -> None:
    server = oauth_server()
    before = server.oauth_found
    assert store_looked(
        server, Looked(failure=DiscoveryFailed("Down.", tried=(("https://h", "x"),)))
    )
    server.refresh_from_db()
    assert (server.oauth_advertised, server.oauth_found) == (True, before)
    assert server.oauth_error == "Down.\nhttps://h: x"
    assert store_looked(server, Looked())
    server.refresh_from_db()
    assert (server.oauth_advertised, server.oauth_found, server.oauth_error) == (False, {}, "")


@pytest.mark.parametrize("failure", [None, DiscoveryFailed("Down.", advertised=True)])
def test_what_was_found_of_an_edited_server_is_not_kept(failure: DiscoveryFailed | None) -> None:
    """P36: the edit asks for a search of its own."""
    server = http_server()
    Server.objects.update(connection_version=2)
    found = None if failure else advertised()
    assert not store_looked(server, Looked(found, failure))
    server.refresh_from_db()
    assert (server.oauth_advertised, server.oauth_found, server.oauth_error) == (None, {}, "")


def test_secrets_that_come_back_are_masked() -> None:
    server = http_server()
    masker = Masker({"KEY": "canary-secret"})
    failure = DiscoveryFailed("It said canary-secret.", tried=(("https://h/canary-secret", "x"),))
    store_looked(server, Looked(failure=failure), masker=masker)
    store_looked(server, Looked(advertised("https://h/canary-secret")), masker=masker)
    server.refresh_from_db()
    assert "canary-secret" not in f"{server.oauth_error} {server.oauth_found}"
    store_looked(server, Looked(failure=failure), masker=masker)
    server.refresh_from_db()
    assert "canary-secret" not in server.oauth_error


def test_other_errors_stay_as_they_are() -> None:
    error = ServerUnavailable("Down.", "Check it.")
    assert with_looked(error, Looked(advertised())) is error
    refused = LoginRequired("No.", "Add a header.")
    assert with_looked(refused, None) is refused
    assert with_looked(refused, Looked()) is refused


def test_a_test_can_be_cancelled_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(request: Request) -> Reply | None:
        await asyncio.Event().wait()
        return None

    class Cancelled(Probe):
        def wait(self, timeout: float) -> bool:
            if self.progress().steps[-1:] == [{"label": STEP, "ms": None}]:
                cancel_check(Check.objects.get())
            return super().wait(timeout)

    monkeypatch.setattr(checks, "Probe", Cancelled)
    place = "/.well-known/oauth-protected-resource/mcp"
    with a_server(Variant(replies={place: never})) as (_, server):
        check = after_test(server)
    assert check.outcome == "cancelled"
    assert labels(check)[-1] == STEP
    assert server.oauth_advertised is None


def edited(server: Server, **values: Any) -> Server:
    data = replace(current_data(server), **values)
    return update_server(server, actor=None, data=data, version=server.version)


@pytest.mark.parametrize(
    "values",
    [
        {"url": "https://other.example.org/mcp"},
        {"url": "https://api.example.org/mcp?tenant=two", "keep_query": False},
        {"headers": (Entry("X-Tenant", "two"),)},
    ],
    ids=["address", "query", "headers"],
)
def test_an_edit_of_what_is_reached_looks_anew(values: dict[str, Any]) -> None:
    """P36: what was found belongs to the server before, so a person's test is asked for."""
    server = edited(oauth_server(), **values)
    assert (server.oauth_advertised, server.oauth_found) == (None, {})
    check = Check.objects.get()
    assert (check.kind, check.status) == ("person", "queued")
    assert check.connection_version == server.connection_version


@pytest.mark.parametrize(
    "values",
    [
        {"description": "Another one."},
        {"options": {"tool_timeout_secs": 7}},
        {"headers": (Entry("authorization", "Bearer x"),)},
        {"transport": "stdio", "command": "npx", "args": ("-y", "server")},
    ],
    ids=["description", "option", "a header that authenticates", "transport"],
)
def test_other_edits_ask_for_no_test(values: dict[str, Any]) -> None:
    """P35: logins are for servers over HTTP without an Authorization header."""
    edited(oauth_server(), **values)
    assert not Check.objects.exists()


def test_the_person_who_edited_is_told_that_the_server_is_being_tested(
    administrator_client: Client,
) -> None:
    server = http_server()
    address = reverse("servers:edit", args=[server.pk])
    fields = fields_of(administrator_client.get(address).content.decode(), "server-form")
    fields["url"] = ["https://other.example.org/mcp"]
    text = administrator_client.post(address, fields, follow=True).content.decode()
    assert "github is saved and being tested." in text
    check = Check.objects.get()
    assert check.requested_by is not None
    assert check.requested_by.username == "alice"
