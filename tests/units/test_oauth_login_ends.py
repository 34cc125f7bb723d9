"""A login ends: by its person, by an edit, with the server (P52, P53)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction

from secrets_vault.services import SecretData, create_secret
from servers.access import NotAllowed
from servers.definition import Entry, OAuthClientData, ServerData
from servers.models import Login, PendingLogin, RegisteredClient, Server
from servers.oauth import revoking
from servers.oauth.ending import log_out
from servers.oauth.store import put_login, read_login
from servers.services import current_data, delete_server, duplicate_server, update_server
from tests.fakes.login_rows import logged_in
from tests.fakes.mcp_http import Reply, running
from tests.fakes.oauth_server import OAuthServer, Variant
from tests.fakes.oauth_steps import HERE, added_server, begin, log_in
from tests.fakes.server_rows import http_server
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.core.clock import database_now

# Providers are told after the commit.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer()) as server:
        yield server
        until_told()


def edit(server: Server, **values: Any) -> Server:
    server = Server.objects.get(pk=server.pk)
    data = ServerData(**{**vars(current_data(server)), **values})
    return update_server(server, actor=None, data=data, version=server.version)


def until_told() -> None:
    """Every provider that was to be told has answered."""
    for thread in threading.enumerate():
        if thread.name == "revoke-login":
            thread.join(20)


def revoked(fake: OAuthServer) -> list[str]:
    until_told()
    return [form["token"] for form in fake.sent("revoke")]


def test_logging_out_removes_the_login_and_gives_its_tokens_back(
    fake: OAuthServer, alice: User
) -> None:
    """P52, RFC 7009."""
    server = added_server(fake)
    log_in(fake, server, alice)
    stored = read_login(server.pk)
    assert stored is not None
    assert log_out(server, actor=alice)
    assert not Login.objects.exists()
    assert stored.tokens.refresh_token in revoked(fake)
    assert fake.grants.family_of(stored.tokens.access_token) is None
    entry = AuditEntry.objects.get(action="server.logout")
    assert entry.words == "logged out of"
    assert entry.details == {"issuer": fake.issuer, "client": "registered"}


def test_logging_out_makes_untrue_what_was_found_with_the_login(
    fake: OAuthServer, alice: User
) -> None:
    """A test under way is stale, and health looks anew."""
    server = added_server(fake)
    log_in(fake, server, alice)
    version = Server.objects.get().connection_version
    Server.objects.update(
        state=Server.State.CONNECTED, oauth_wanted="write", failures=2, next_check_at=None
    )
    log_out(server, actor=alice)
    after = Server.objects.get()
    assert (after.state, after.oauth_wanted, after.failures) == ("untested", "", 0)
    assert after.connection_version == version + 1
    assert after.next_check_at is not None
    assert after.oauth_advertised is True


def test_logging_out_twice_is_no_error(fake: OAuthServer, alice: User) -> None:
    server = added_server(fake)
    log_in(fake, server, alice)
    assert log_out(server, actor=None)
    assert not log_out(server, actor=None)
    assert AuditEntry.objects.filter(action="server.logout").count() == 1


def test_members_do_not_log_out(fake: OAuthServer, alice: User, bob: User) -> None:
    server = added_server(fake)
    log_in(fake, server, alice)
    with pytest.raises(NotAllowed, match="Ask an administrator"):
        log_out(server, actor=bob)
    assert Login.objects.exists()


@pytest.mark.parametrize("answer", ["error", "nothing", "elsewhere"])
def test_the_login_goes_whatever_the_provider_says(answer: str, alice: User) -> None:
    """Nobody waits for it, and its failure is only logged."""
    variant = Variant()
    if answer == "error":
        variant.replies = {"/revoke": Reply(500, {}, b"")}
    elif answer == "nothing":
        variant.revocation = False
    else:
        variant.metadata = {"revocation_endpoint": "http://127.0.0.1:9/revoke"}
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        log_in(fake, server, alice)
        assert log_out(server, actor=alice)
        assert not Login.objects.exists()
        until_told()


def test_a_provider_that_does_not_answer_is_given_up(
    alice: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(revoking, "REVOKED_WITHIN", 0.05)
    never = asyncio.Event()

    async def silent(request: object) -> Reply:
        await never.wait()
        return Reply(200, {}, b"")

    with running(OAuthServer(Variant(replies={"/revoke": silent}))) as fake:
        server = added_server(fake)
        log_in(fake, server, alice)
        with caplog.at_level("INFO", "servers.oauth.revoking"):
            log_out(server, actor=alice)
            until_told()
    assert "did not revoke the tokens of a login in time" in caplog.text


def test_an_operators_client_gives_tokens_back_with_its_secret(
    fake: OAuthServer, alice: User
) -> None:
    create_secret(actor=None, name="CLIENT_SECRET", data=SecretData("value-of-it"))
    server = added_server(fake, client_id="ours", secret="{{secret:CLIENT_SECRET}}")
    callback = f"{HERE}/api/mcp-servers/{server.pk}/oauth/callback"
    fake.add_client("ours", secret="value-of-it", redirect_uris=[callback])
    log_in(fake, server, alice)
    log_out(server, actor=alice)
    assert revoked(fake)
    assert fake.grants.families[0].revoked


def test_a_secret_that_is_gone_keeps_nobody_logged_in(fake: OAuthServer, alice: User) -> None:
    create_secret(actor=None, name="CLIENT_SECRET", data=SecretData("value-of-it"))
    server = added_server(fake, client_id="ours", secret="{{secret:CLIENT_SECRET}}")
    callback = f"{HERE}/api/mcp-servers/{server.pk}/oauth/callback"
    fake.add_client("ours", secret="value-of-it", redirect_uris=[callback])
    log_in(fake, server, alice)
    edit(server, oauth=OAuthClientData(client_id="ours", secret="{{secret:GONE}}"))
    assert log_out(server, actor=alice)
    assert revoked(fake) == []


def test_a_login_that_no_key_opens_can_be_left(fake: OAuthServer, alice: User) -> None:
    """E09."""
    server = added_server(fake)
    log_in(fake, server, alice)
    Login.objects.update(key_id="lost")
    assert log_out(server, actor=alice)
    assert not Login.objects.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://127.0.0.1:9/mcp"},
        {"url": "http://127.0.0.1:9/mcp?tenant=2"},
        {"oauth": OAuthClientData(client_id="other")},
        {"oauth": OAuthClientData("machine", "other", "s")},
        {"transport": "stdio", "command": "run"},
        {"transport": "unix", "socket_path": "/run/x.sock"},
    ],
    ids=str,
)
def test_a_login_ends_with_what_it_was_for(
    change: dict[str, Any], fake: OAuthServer, alice: User
) -> None:
    """P53: and a login that is under way with it."""
    server = added_server(fake)
    log_in(fake, server, alice)
    begin(server, alice)
    edit(server, **change)
    assert not Login.objects.exists()
    assert not PendingLogin.objects.exists()
    assert len(revoked(fake)) >= 1
    assert AuditEntry.objects.get(action="server.update").details["login"] == "ended"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "renamed"},
        {"description": "Else"},
        {"headers": (Entry("X-More", "1"),)},
        {"headers": (Entry("Authorization", "Bearer x"),)},
        {"oauth": OAuthClientData(scopes="more")},
        {"options": {"tool_timeout_secs": 5}},
    ],
    ids=str,
)
def test_a_login_outlasts_every_other_edit(
    change: dict[str, Any], fake: OAuthServer, alice: User
) -> None:
    """P53, P49: a header beats it and does not end it."""
    server = added_server(fake)
    log_in(fake, server, alice)
    edit(server, **change)
    assert Login.objects.exists()
    assert "login" not in AuditEntry.objects.get(action="server.update").details


@pytest.mark.parametrize("change", [{"secret": "new"}, {"scopes": "more"}], ids=str)
def test_a_machines_login_ends_with_all_that_it_is_made_of(
    change: dict[str, Any], fake: OAuthServer, alice: User
) -> None:
    """It logs in again by itself, with the new secret."""
    server = added_server(fake)
    log_in(fake, server, alice)
    stored = read_login(server.pk)
    assert stored is not None
    secrets = replace(stored.secrets, machine=True)
    edit(server, oauth=OAuthClientData("machine", "ours", "old"))
    put_login(server.pk, secrets, person=None, now=database_now())
    machine = {"kind": "machine", "client_id": "ours", "secret": "old", **change}
    edit(server, oauth=OAuthClientData(**machine))
    assert not Login.objects.exists()


def test_a_login_of_a_person_is_none_of_a_machine() -> None:
    """P53: the same client, logged in by itself from now on."""
    server = http_server(oauth=OAuthClientData(client_id="ours", secret="s"))
    logged_in(server)
    edit(server, oauth=OAuthClientData("machine", "ours"))
    assert not Login.objects.exists()


def test_a_query_is_part_of_the_address() -> None:
    """P53: it may name another tenant."""
    server = http_server()
    logged_in(server)
    edit(server, url=f"{server.url}?tenant=2")
    assert not Login.objects.exists()


def test_an_edit_that_fails_ends_no_login(fake: OAuthServer, alice: User) -> None:
    """In one transaction with the change: the other server's name is taken."""
    server = added_server(fake)
    log_in(fake, server, alice)
    copy = duplicate_server(server, actor=None)
    with pytest.raises(Exception, match="exists already"):
        edit(server, name=copy.name, url="http://127.0.0.1:9/mcp")
    assert Login.objects.exists()
    assert revoked(fake) == []


def test_a_transaction_that_is_undone_tells_the_provider_nothing(
    fake: OAuthServer, alice: User
) -> None:
    server = added_server(fake)
    log_in(fake, server, alice)
    with transaction.atomic():
        log_out(server, actor=alice)
        transaction.set_rollback(True)
    assert revoked(fake) == []
    assert Login.objects.exists()


def test_a_deleted_server_leaves_nothing_behind(fake: OAuthServer, alice: User) -> None:
    """P53: neither here nor at the provider."""
    server = added_server(fake)
    log_in(fake, server, alice)
    begin(server, alice)
    delete_server(server, actor=alice)
    counts = [model.objects.count() for model in (Login, PendingLogin, RegisteredClient)]
    assert counts == [0, 0, 0]
    assert len(revoked(fake)) >= 1


def test_registrations_of_other_servers_stay(fake: OAuthServer, alice: User) -> None:
    server = added_server(fake)
    log_in(fake, server, alice)
    other = duplicate_server(server, actor=None)
    log_in(fake, Server.objects.get(pk=other.pk), alice)
    delete_server(server, actor=alice)
    assert RegisteredClient.objects.count() == 1


def test_a_copy_has_no_login(fake: OAuthServer, alice: User) -> None:
    server = added_server(fake)
    log_in(fake, server, alice)
    copy = duplicate_server(server, actor=None)
    assert not Login.objects.filter(server=copy).exists()
