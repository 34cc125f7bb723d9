"""Logins in the database: whoever writes names what was read (A20, P43)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from secrets_vault import services as vault
from servers.models import Login, Server
from servers.oauth import store
from servers.oauth.operator import operator_secret
from servers.oauth.types import Client, LoginSecrets, Provider, Tokens
from servers.private import private_columns, read_private
from tests.fakes.server_rows import http_server

pytestmark = pytest.mark.django_db

PROVIDER = Provider(
    "https://as.example.org", "https://as.example.org/a", "https://as.example.org/t"
)
CLIENT = Client("ours", "registered", "client_secret_post", "client-secret")
TOKENS = Tokens("access-1", "refresh-1", expires_at=2_000_000_000.0, issued_at=1_999_996_400.0)
SECRETS = LoginSecrets(TOKENS, PROVIDER, CLIENT, "https://api.example.org/mcp", ("read",))


def put(server: Server, secrets: LoginSecrets = SECRETS) -> Login:
    return store.put_login(server.pk, secrets, person=None, now=timezone.now())


def read(server: Server) -> store.Stored:
    found = store.read_login(server.pk)
    assert found is not None
    return found


def test_a_login_is_read_as_it_was_put_and_holds_nothing_in_the_clear() -> None:
    """P43."""
    server = http_server()
    put(server)
    found = read(server)
    assert found.secrets == SECRETS
    assert found.row.can_refresh
    assert found.row.scopes == "read"
    assert found.row.issuer == "https://as.example.org"
    stored = str(Login.objects.values_list().get()).encode() + bytes(found.row.private)
    assert not any(word in stored for word in (b"access-1", b"refresh-1", b"client-secret"))


def test_a_new_login_takes_the_place_of_the_one_before_it() -> None:
    """Nothing is written over it by whoever has read the older one."""
    server = http_server()
    put(server)
    older = read(server)
    put(server, replace(SECRETS, tokens=Tokens("access-2")))
    assert not store.replace_tokens(older, Tokens("late"), CLIENT, timezone.now())
    assert not store.end_login(older.row, Login.Ended.REFUSED, "late", timezone.now())
    assert read(server).tokens == Tokens("access-2")
    assert read(server).row.pk != older.row.pk


def test_the_slower_of_two_never_overwrites_the_faster() -> None:
    """A20."""
    server = http_server()
    put(server)
    slow = read(server)
    assert store.replace_tokens(slow, Tokens("fast", "r"), CLIENT, timezone.now())
    assert not store.replace_tokens(slow, Tokens("slow", "r"), CLIENT, timezone.now())
    assert not store.end_login(slow.row, Login.Ended.REFUSED, "no", timezone.now())
    assert read(server).tokens.access_token == "fast"
    assert not read(server).row.ended


def test_refreshed_tokens_clear_what_failed_before() -> None:
    server, now = http_server(), timezone.now()
    put(server)
    Login.objects.update(
        refresh_failures=3, refresh_error="busy", warned_at=now, lease_token="x", lease_until=now
    )
    basic = replace(CLIENT, method="client_secret_basic")
    assert store.replace_tokens(read(server), Tokens("b", "r", scopes=("a", "b")), basic, now)
    row = read(server).row
    assert (row.refresh_failures, row.refresh_error, row.warned_at) == (0, "", None)
    assert (row.lease_token, row.lease_until) == ("", None)
    assert row.refreshed_at == now
    assert row.refresh_due_at == now + store.AWAKE_FOR
    assert row.scopes == "a b"
    assert read(server).secrets.client == basic


def test_an_end_is_kept_by_the_clock_that_all_machines_compare_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("umpteenth.core.clock.ahead", lambda: timedelta(minutes=5))
    row = put(http_server())
    assert row.expires_at is not None
    assert TOKENS.expires_at is not None
    assert row.expires_at.timestamp() == TOKENS.expires_at + 300


def test_an_operators_secret_is_not_kept_twice() -> None:
    """P57: it is resolved anew each time."""
    server = http_server()
    put(server, replace(SECRETS, client=replace(CLIENT, kind="operator")))
    assert read(server).secrets.client.secret == ""


def test_a_login_without_refresh_token_is_not_kept_awake() -> None:
    """P45; a machine gets its next token by itself."""
    server = http_server()
    row = put(server, replace(SECRETS, tokens=Tokens("a", expires_at=1e12), machine=True))
    assert row.refresh_due_at is None
    assert row.can_refresh
    assert row.expires_at is None
    assert read(server).secrets.machine


def test_a_login_of_a_deleted_server_is_not_put() -> None:
    server = http_server()
    Server.objects.all().delete()
    with pytest.raises(Server.DoesNotExist):
        put(server)


def test_a_client_secret_resolves_for_the_host_of_the_provider_alone() -> None:
    """P57: it never goes to the server, so that the server's host need not be allowed."""
    server = http_server()
    data = vault.SecretData("so-very-secret", allowed_hosts=("as.example.org",))
    vault.create_secret(actor=None, name="CLIENT", data=data)
    private = replace(read_private(server), client_secret="{{secret:CLIENT}}")
    for column, value in private_columns(private, server.pk).items():
        setattr(server, column, value)
    assert operator_secret(server, PROVIDER.token_endpoint) == "so-very-secret"
    with pytest.raises(vault.SecretNotAllowed):
        operator_secret(server, "https://elsewhere.example.org/token")


def test_without_a_client_secret_nothing_is_resolved() -> None:
    assert operator_secret(http_server(), PROVIDER.token_endpoint) == ""


def test_an_end_is_told_anew_and_leaves_nothing_to_do_for_beat() -> None:
    server, now = http_server(), timezone.now()
    put(server)
    Login.objects.update(warned_at=now - timedelta(days=1), lease_token="x")
    assert store.end_login(read(server).row, Login.Ended.REFUSED, "taken\x00 back", now)
    row = read(server).row
    assert (row.ended, row.ended_at, row.ended_reason) == ("refused", now, "taken back")
    assert (row.refresh_due_at, row.warned_at, row.lease_token) == (None, None, "")
