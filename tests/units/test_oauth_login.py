"""A person logs in: to the provider, and back with tokens (issue 4, sections 2 and 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import parse_qsl, urlsplit

import pytest

from secrets_vault.services import SecretData, create_secret
from servers.access import NotAllowed
from servers.definition import MACHINE, OAuthClientData, ServerData
from servers.mcp.types import Challenge
from servers.models import Login, PendingLogin, RegisteredClient, Server
from servers.oauth import pending, registered
from servers.oauth.discovery import discover
from servers.oauth.store import read_login
from servers.oauth.types import Client, ClientNeeded, OAuthError
from servers.services import current_data, update_server
from tests.fakes.mcp_http import running
from tests.fakes.oauth_server import OAuthServer, Variant
from tests.fakes.oauth_steps import (
    HERE,
    SESSION,
    added_server,
    begin,
    callback_path,
    finish,
    log_in,
)
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.core.clock import database_now

pytestmark = pytest.mark.django_db


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer()) as server:
        yield server


def asked(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query, keep_blank_values=True))


def test_a_login_ends_with_encrypted_tokens_that_the_server_takes(
    fake: OAuthServer, alice: User
) -> None:
    """P39, P43, P54: registered by itself, as Umpteenth."""
    server = added_server(fake)
    login = log_in(fake, server, alice)
    stored = read_login(server.pk)
    assert stored is not None
    tokens = stored.tokens
    assert fake.grants.family_of(tokens.access_token) is not None
    assert tokens.access_token.encode() not in bytes(login.private)
    assert (login.issuer, login.client_kind, login.logged_in_by) == (
        fake.issuer,
        "registered",
        alice,
    )
    assert login.can_refresh
    client = fake.grants.clients[stored.secrets.client.client_id]
    assert client.name == "Umpteenth"
    assert client.redirect_uris == [f"{HERE}/api/mcp-servers/{server.pk}/oauth/callback"]
    entry = AuditEntry.objects.get(action="server.login")
    assert (entry.actor, entry.details) == (alice, {"issuer": fake.issuer, "client": "registered"})


def test_the_provider_is_asked_with_pkce_state_and_the_resource_byte_for_byte(
    fake: OAuthServer, alice: User
) -> None:
    """RFC 7636, RFC 8707, A04."""
    server = added_server(fake)
    first, second = asked(begin(server, alice)), asked(begin(server, alice))
    assert first["resource"] == fake.resource
    assert first["code_challenge_method"] == "S256"
    assert first["response_type"] == "code"
    assert len(first["state"]) >= 40
    assert "scope" not in first
    assert first["state"] != second["state"]
    assert first["code_challenge"] != second["code_challenge"]


def test_what_the_database_holds_of_a_login_under_way_lets_nobody_finish_it(
    fake: OAuthServer, alice: User
) -> None:
    address = begin(added_server(fake), alice)
    row = PendingLogin.objects.values().get()
    state = asked(address)["state"]
    assert state not in repr({**row, "private": bytes(row["private"])})
    assert SESSION not in repr(row)


def test_a_login_makes_what_a_test_without_it_found_untrue(fake: OAuthServer, alice: User) -> None:
    server = added_server(fake)
    Server.objects.update(state=Server.State.LOGIN_REQUIRED, last_error="401", failures=3)
    log_in(fake, server, alice)
    after = Server.objects.get()
    assert (after.state, after.last_error, after.failures) == ("untested", "", 0)
    assert after.connection_version == server.connection_version + 1
    assert after.version == server.version  # an edit that is open on a page can still be saved


def test_what_was_found_on_the_way_is_stored(fake: OAuthServer, alice: User) -> None:
    begin(added_server(fake), alice)
    server = Server.objects.get()
    assert server.oauth_advertised is True
    assert server.oauth_found["provider"]["issuer"] == fake.issuer


def test_a_search_that_failed_says_why_on_the_sheet(fake: OAuthServer, alice: User) -> None:
    """Each address with its answer."""
    fake.variant.metadata_at = ()
    server = added_server(fake)
    with pytest.raises(OAuthError):
        begin(server, alice)
    server.refresh_from_db()
    assert f"{fake.origin}/.well-known/oauth-authorization-server: " in server.oauth_error


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"registration_endpoint": "http://169.254.169.254/register"},
        {"token_endpoint": "http://169.254.169.254/token"},
    ],
    ids=str,
)
def test_addresses_that_may_not_be_called_are_not_called(
    metadata: dict[str, str],
    fake: OAuthServer,
    alice: User,
    set_network: Callable[..., None],
) -> None:
    """P77, I05: the guard stands before discovery, registration and the exchange."""
    server = added_server(fake)
    if metadata:
        fake.variant.metadata = metadata
    else:
        set_network(allow_private_targets=False)
    with pytest.raises(OAuthError):
        finish(server, alice, fake.visit(begin(server, alice)))
    assert fake.count("token") == 0
    assert not Login.objects.exists()


def test_what_the_server_said_last_is_where_discovery_begins(alice: User) -> None:
    """A01: its pointer, and the scopes of its challenge before those of its document."""
    variant = Variant(
        pointer="elsewhere",
        resource_at=("elsewhere",),
        challenge_scope="of-challenge",
        resource_scopes=("of-document",),
    )
    with running(OAuthServer(variant)) as fake:
        added_server(fake)
        challenge = Challenge(
            resource_metadata=f"{fake.server_origin}/about/logins.json", scope="of-challenge"
        )
        found = asyncio.run(discover(fake.url, challenge))
        assert found is not None
        Server.objects.update(oauth_found=found.as_json())
        address = begin(Server.objects.get(), alice)
        assert address.startswith(fake.endpoint("authorize"))
        assert asked(address)["scope"] == "of-challenge"


@pytest.mark.django_db(transaction=True)
def test_a_server_that_is_deleted_on_the_way_is_told(fake: OAuthServer, alice: User) -> None:
    server = added_server(fake)
    Server.objects.all().delete()
    with pytest.raises(OAuthError, match="notes was deleted meanwhile"):
        begin(server, alice)


def test_discovery_runs_anew_at_each_login(fake: OAuthServer, alice: User) -> None:
    """The provider has moved meanwhile."""
    server = added_server(fake)
    begin(server, alice)
    fake.variant.issuer_path = "/moved"
    address = begin(Server.objects.get(), alice)
    assert urlsplit(address).path == "/moved/authorize"


def test_a_registration_is_used_again(fake: OAuthServer, alice: User) -> None:
    """A30: for the same issuer and address."""
    server = added_server(fake)
    clients = {asked(begin(server, alice))["client_id"] for _ in range(3)}
    assert len(clients) == 1
    assert fake.count("register") == 1


def test_another_address_of_ours_registers_anew(fake: OAuthServer, alice: User) -> None:
    """A30: the provider insists on the redirect URI that it knows."""
    server = added_server(fake)
    log_in(fake, server, alice)
    log_in(fake, server, alice, base_url="http://localhost:9090")
    assert fake.count("register") == 2
    assert RegisteredClient.objects.count() == 2


def test_register_again_forgets_the_client_first(fake: OAuthServer, alice: User) -> None:
    """A29: the way out where a provider shows its own page for a client that it has forgotten."""
    server = added_server(fake)
    begin(server, alice)
    fake.forget_clients()
    with pytest.raises(AssertionError, match="Unrecognized client_id"):
        fake.visit(begin(server, alice))
    login = log_in(fake, server, alice, register_again=True)
    assert login.client_kind == "registered"
    assert RegisteredClient.objects.count() == 1


def test_a_client_that_is_forgotten_before_the_exchange_is_registered_again_once(
    fake: OAuthServer, alice: User
) -> None:
    """A29: invalid_client at the token endpoint; the code belongs to the old client."""
    server = added_server(fake)
    back = fake.visit(begin(server, alice))
    fake.forget_clients()
    outcome = finish(server, alice, back)
    assert asked(outcome.again)["client_id"] in fake.grants.clients
    assert not Login.objects.exists()
    back = fake.visit(outcome.again)
    fake.forget_clients()
    with pytest.raises(OAuthError):  # no third client
        finish(server, alice, back)
    assert fake.count("register") == 2
    assert not RegisteredClient.objects.exists()


def test_a_client_registered_again_logs_in(fake: OAuthServer, alice: User) -> None:
    server = added_server(fake)
    back = fake.visit(begin(server, alice))
    fake.forget_clients()
    again = finish(server, alice, back).again
    assert finish(server, alice, fake.visit(again)).again == ""
    assert Login.objects.get().client_kind == "registered"


def test_without_registration_the_error_asks_for_a_client_id(alice: User) -> None:
    """P55, word for word."""
    with running(OAuthServer(Variant(registration="none"))) as fake:
        server = added_server(fake)
        with pytest.raises(ClientNeeded) as caught:
            begin(server, alice)
    assert (
        "the authorization server doesn't support dynamic client registration, so the server "
        "needs an OAuth client ID" in str(caught.value)
    )
    assert not PendingLogin.objects.exists()


def test_the_operators_client_wins_and_its_secret_is_a_reference(
    fake: OAuthServer, alice: User
) -> None:
    """P56, P57: nothing is registered, and the secret's value is stored nowhere."""
    create_secret(actor=None, name="CLIENT_SECRET", data=SecretData("value-of-the-secret"))
    server = added_server(fake, client_id="ours", secret="{{secret:CLIENT_SECRET}}")
    callback = f"{HERE}/api/mcp-servers/{server.pk}/oauth/callback"
    fake.add_client("ours", secret="value-of-the-secret", redirect_uris=[callback])
    begin(server, alice)
    begun = pending.take(PendingLogin.objects.select_related("server").get())
    assert begun.client == Client("ours", "operator", "client_secret_post", "")
    login = log_in(fake, server, alice)
    stored = read_login(server.pk)
    assert stored is not None
    assert (login.client_kind, stored.secrets.client.client_id) == ("operator", "ours")
    assert stored.secrets.client.secret == ""
    assert fake.count("register") == 0


def test_a_client_secret_that_does_not_resolve_fails_before_anybody_leaves(
    fake: OAuthServer, alice: User
) -> None:
    """E05: it is named; U24-U27: a secret may be meant for other hosts."""
    server = added_server(fake, client_id="ours", secret="{{secret:MISSING}}")
    with pytest.raises(OAuthError, match="MISSING not found"):
        begin(server, alice)
    scope = SecretData("x", allowed_hosts=["elsewhere.example"])
    create_secret(actor=None, name="MISSING", data=scope)
    with pytest.raises(OAuthError, match="MISSING may not be used for"):
        begin(server, alice)


def test_the_operators_scopes_replace_what_the_server_asks_for(alice: User) -> None:
    """P58."""
    with running(OAuthServer(Variant(challenge_scope="mcp", resource_scopes=("mcp",)))) as fake:
        found = asked(begin(added_server(fake), alice))
        assert found["scope"] == "mcp"
        server = Server.objects.get()
        data = current_data(server)
        data = ServerData(**{**vars(data), "oauth": OAuthClientData(scopes=" read \n write ")})
        server = update_server(server, actor=None, data=data, version=server.version)
        assert asked(begin(server, alice))["scope"] == "read write"


def test_a_login_for_more_rights_asks_for_what_it_had_and_what_was_missing(alice: User) -> None:
    """403 insufficient_scope: rights are added, none is lost."""
    with running(OAuthServer(Variant(resource_scopes=("basic",)))) as fake:
        server = added_server(fake)
        log_in(fake, server, alice)
        Server.objects.update(oauth_wanted="write")
        fake.variant.resource_scopes = ()
        found = asked(begin(Server.objects.get(), alice))
    assert found["scope"].split() == ["basic", "write"]


def test_a_client_is_registered_anew_for_scopes_that_the_old_one_did_not_name(alice: User) -> None:
    """RFC 7591, 2: providers such as the SDK's hold a client to the scopes of its registration."""
    with running(OAuthServer(Variant(resource_scopes=("basic",)))) as fake:
        server = added_server(fake)
        first = log_in(fake, server, alice)
        Server.objects.update(oauth_wanted="write")
        server.refresh_from_db()
        fake.variant.decision = "invalid_scope"
        back = fake.visit(begin(server, alice))
        fake.variant.decision = "approve"
        again = finish(server, alice, back).again
        assert asked(again)["scope"].split() == ["basic", "write"]
        assert fake.count("register") == 2
        finish(server, alice, fake.visit(again))
        assert fake.count("register") == 2
    assert Login.objects.get().pk != first.pk


def test_invalid_scope_leads_to_the_provider_once_more_without_scopes(alice: User) -> None:
    variant = Variant(resource_scopes=("odd",), refuses_scopes=True)
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        first = begin(server, alice)
        again = finish(server, alice, fake.visit(first)).again
        assert "scope" not in asked(again)
        for what in ("state", "code_challenge"):
            assert asked(first)[what] != asked(again)[what]
        assert finish(server, alice, fake.visit(again)).again == ""
    assert Login.objects.exists()


def test_invalid_scope_twice_is_told(alice: User) -> None:
    variant = Variant(resource_scopes=("odd",), decision="invalid_scope")
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        again = finish(server, alice, fake.visit(begin(server, alice))).again
        with pytest.raises(OAuthError, match="invalid_scope"):
            finish(server, alice, fake.visit(again))


def test_invalid_scope_without_scopes_is_told_at_once(alice: User) -> None:
    """There is nothing to leave out: the browser would go to and fro for ever."""
    with running(OAuthServer(Variant(decision="invalid_scope"))) as fake:
        server = added_server(fake)
        with pytest.raises(OAuthError, match="invalid_scope"):
            finish(server, alice, fake.visit(begin(server, alice)))


def test_the_method_that_worked_is_kept_with_the_client(alice: User) -> None:
    """A16: two methods advertised, one implemented."""
    variant = Variant(
        registration_answer={
            "token_endpoint_auth_method": "client_secret_basic",
            "client_secret": "s" * 20,
        },
        advertised_auth_methods=("client_secret_basic", "client_secret_post"),
        auth_methods=("client_secret_post",),
    )
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        log_in(fake, server, alice)
        kept = registered.find(fake.issuer, f"{HERE}{callback_path(server)}")
        assert kept is not None
        assert kept.method == "client_secret_post"
        attempts = fake.count("token")
        log_in(fake, server, alice)
        assert fake.count("token") == attempts + 1


def test_the_operators_own_scopes_are_not_dropped(alice: User) -> None:
    """Whoever asks for scopes must learn that they are refused (P58)."""
    with running(OAuthServer(Variant(refuses_scopes=True))) as fake:
        server = added_server(fake, scopes="odd")
        with pytest.raises(OAuthError, match="invalid_scope") as caught:
            finish(server, alice, fake.visit(begin(server, alice)))
    assert "Correct the scopes" in caught.value.hint


def test_members_do_not_log_in(fake: OAuthServer, alice: User, bob: User) -> None:
    server = added_server(fake)
    with pytest.raises(NotAllowed, match="Ask an administrator"):
        begin(server, bob)
    back = fake.visit(begin(server, alice))
    User.objects.filter(pk=alice.pk).update(role=User.Role.MEMBER)
    alice.refresh_from_db()
    with pytest.raises(NotAllowed):  # no longer an administrator when coming back
        finish(server, alice, back)
    assert fake.count("token") == 0


@pytest.mark.parametrize("how", ["header", "token_ref", "machine", "stdio"])
def test_where_a_login_would_not_be_used_none_is_begun(
    how: str, fake: OAuthServer, alice: User
) -> None:
    """P35, P49."""
    server = added_server(fake)
    if how == "header":
        server.has_authorization = True
    elif how == "token_ref":
        create_secret(actor=None, name="TOKEN", data=SecretData("x"))
        server.token_name = "TOKEN"
    elif how == "machine":
        server.oauth_kind = MACHINE
    else:
        server.transport = "stdio"
    with pytest.raises(OAuthError):
        begin(server, alice)
    assert fake.count("authorize") == 0
    assert not PendingLogin.objects.exists()


@pytest.mark.parametrize(("seconds", "counts"), [(590, True), (601, False)])
def test_a_login_lasts_ten_minutes(
    seconds: int,
    counts: bool,
    fake: OAuthServer,
    alice: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P42: by the database's clock."""
    server = added_server(fake)
    back = fake.visit(begin(server, alice))
    later = database_now() + timedelta(seconds=seconds)
    monkeypatch.setattr(pending, "database_now", lambda: later)
    if counts:
        finish(server, alice, back)
    else:
        with pytest.raises(OAuthError, match="longer than 10 minutes"):
            finish(server, alice, back)
    assert fake.count("token") == int(counts)
