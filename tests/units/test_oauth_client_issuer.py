"""An operator's client belongs to the authorization server that took it (MCP 2026-07-28, Client
Registration, Authorization Server Binding)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from servers.definition import OAuthClientData
from servers.mcp.types import Challenge, LoginRequired
from servers.models import Login, Server
from servers.oauth import machine
from servers.oauth.refresh import Place
from servers.oauth.types import LoginSecrets, OAuthError
from servers.services import current_data, delete_server, update_server
from tests.fakes.mcp_http import running
from tests.fakes.oauth_server import OAuthServer, Variant
from tests.fakes.oauth_steps import HERE, added_server, begin, callback_path, log_in
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db

SECRET = "secret-of-the-client"


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer(Variant())) as server:
        yield server


@pytest.fixture
def other() -> Iterator[OAuthServer]:
    """Another provider, which a server names from some day on."""
    with running(OAuthServer(Variant())) as server:
        yield server


def known_at(provider: OAuthServer, server: Server, client_id: str = "ours") -> None:
    callback = f"{HERE}{callback_path(server)}"
    provider.add_client(client_id, secret=SECRET, redirect_uris=[callback])


def turn_to(other: OAuthServer, fake: OAuthServer) -> None:
    fake.variant.authorization_servers = (other.issuer,)


def now(server: Server) -> Server:
    return Server.objects.get(pk=server.pk)


def edit(server: Server, client_id: str, secret: str, *, kind: str = "person") -> None:
    data = replace(current_data(now(server)), oauth=OAuthClientData(kind, client_id, secret))
    update_server(server, actor=None, data=data, version=now(server).version)


def test_it_is_not_sent_to_another_one(fake: OAuthServer, other: OAuthServer, alice: User) -> None:
    server = added_server(fake, client_id="ours", secret=SECRET)
    known_at(fake, server)
    known_at(other, server)
    log_in(fake, server, alice)
    turn_to(other, fake)
    Login.objects.all().delete()  # whether anybody is logged in makes no difference
    with pytest.raises(OAuthError) as caught:
        begin(now(server), alice)
    assert caught.value.message == (
        f"notes now sends people to {other.issuer} to log in, but its Client ID belongs to "
        f"{fake.issuer}."
    )
    assert not other.calls


def test_a_client_that_logs_in_by_itself_does_not_go_there_either(
    fake: OAuthServer, other: OAuthServer
) -> None:
    """Nobody would look at where it goes."""
    server = added_server(fake, kind="machine", client_id="ours", secret=SECRET)
    known_at(fake, server)
    known_at(other, server)
    machine.log_in(Place.of(server), Challenge())
    turn_to(other, fake)
    Login.objects.all().delete()
    with pytest.raises(LoginRequired, match="but its Client ID belongs to"):
        machine.log_in(Place.of(server), Challenge())
    assert not other.calls
    turn_to(fake, fake)
    machine.log_in(Place.of(server), Challenge())


def test_another_client_is_for_whom_it_is_entered(
    fake: OAuthServer, other: OAuthServer, alice: User
) -> None:
    server = added_server(fake, client_id="ours", secret=SECRET)
    known_at(fake, server)
    known_at(other, server, "theirs")
    log_in(fake, server, alice)
    turn_to(other, fake)
    edit(server, "theirs", SECRET)
    log_in(other, now(server), alice)
    assert now(server).oauth_client_issuer == other.issuer


def test_a_new_secret_changes_nothing_about_it(
    fake: OAuthServer, other: OAuthServer, alice: User
) -> None:
    server = added_server(fake, client_id="ours", secret=SECRET)
    known_at(fake, server)
    log_in(fake, server, alice)
    edit(server, "ours", "another-secret")
    assert now(server).oauth_client_issuer == fake.issuer


def test_clients_that_are_registered_follow_the_server(
    fake: OAuthServer, other: OAuthServer, alice: User
) -> None:
    """They are registered with each authorization server anew."""
    server = added_server(fake)
    log_in(fake, server, alice)
    turn_to(other, fake)
    log_in(other, now(server), alice)
    assert other.count("register") == 1
    assert now(server).oauth_client_issuer == ""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("meanwhile", ["edited", "deleted"])
def test_a_client_that_was_taken_out_meanwhile_leaves_no_login(
    meanwhile: str, fake: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P53: the provider's answer is for the client before the edit; its tokens are revoked."""
    server = added_server(fake, kind="machine", client_id="ours", secret=SECRET)
    known_at(fake, server)
    ask = machine._ask

    def slowly(asked: Server, challenge: Challenge) -> LoginSecrets:
        secrets = ask(asked, challenge)
        if meanwhile == "edited":
            edit(server, "theirs", SECRET, kind="machine")
        else:
            delete_server(server, actor=None)
        return secrets

    monkeypatch.setattr(machine, "_ask", slowly)
    with pytest.raises(LoginRequired, match="edited meanwhile"):
        machine.log_in(Place.of(server), Challenge())
    assert not Login.objects.exists()
    for thread in threading.enumerate():
        if thread.name == "revoke-login":
            thread.join(10)
    assert fake.count("revoke") == 1
