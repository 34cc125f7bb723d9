"""What is kept of a login that was begun, and of clients that were registered."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from secrets_vault.services import ensure_key_ring, rotate_keys
from servers.models import PendingLogin, RegisteredClient, Server
from servers.oauth import pending, registered
from servers.oauth.binding import base_url, callback_url, hash_of_settings
from servers.oauth.pending import Begun
from servers.oauth.types import Client, OAuthError
from servers.private import private_columns, read_private
from tests.fakes.login_rows import ISSUER, logged_in, provider
from tests.fakes.server_rows import http_server
from tests.fakes.vault import use_ring_in
from tests.units.conftest import SetAppUrl
from umpteenth.accounts.models import User
from umpteenth.core.clock import database_now
from umpteenth.core.masking import known_values

pytestmark = pytest.mark.django_db

SESSION, STATE = "session", "state"
HERE = "http://127.0.0.1:8080/api/mcp-servers/1/oauth/callback"


def begun(**values: Any) -> Begun:
    client = Client("client-1", "registered", "client_secret_post", "client-secret-canary")
    return Begun("verifier-canary", provider(), client, HERE, "https://h/mcp", **values)


def keep(server: Server, person: User, state: str = STATE, **values: Any) -> PendingLogin:
    pending.keep(server, person=person, session_key=SESSION, state=state, begun=begun(**values))
    return PendingLogin.objects.latest("created_at")


def take(server: Server, person: User) -> Begun:
    row = pending.find(server.pk, state=STATE, person=person, session_key=SESSION)
    return pending.take(row)


def test_what_was_begun_comes_back_as_it_was(alice: User) -> None:
    server = http_server()
    first = begun(scopes=("a", "b"), scopes_are_found=False, registered_again=True)
    pending.keep(server, person=alice, session_key=SESSION, state=STATE, begun=first)
    assert take(server, alice) == first


def test_verifier_and_client_secret_are_encrypted(alice: User) -> None:
    """P43: and not in what is printed."""
    row = keep(http_server(), alice)
    assert b"canary" not in bytes(row.private)
    assert "canary" not in repr(begun())


def test_a_login_under_way_outlasts_a_rotation_of_keys(
    alice: User, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is encrypted is encrypted anew."""
    use_ring_in(monkeypatch, tmp_path)
    ensure_key_ring()
    server = http_server()
    keep(server, alice)
    registered.keep(ISSUER, HERE, Client("c", "registered", "client_secret_post", "s"))
    assert rotate_keys(settle_seconds=0).unreadable == []
    assert take(server, alice).verifier == "verifier-canary"
    assert registered.find(ISSUER, HERE) is not None


def test_a_login_that_no_key_opens_is_begun_again(alice: User) -> None:
    """E09."""
    server = http_server()
    keep(server, alice)
    PendingLogin.objects.update(key_id="lost")
    with pytest.raises(OAuthError, match="cannot be read") as caught:
        take(server, alice)
    assert caught.value.hint == "Start the login again."
    assert not PendingLogin.objects.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transport", "unix"),
        ("url", "https://api.example.org/other"),
        ("oauth_kind", "machine"),
        ("oauth_client_id", "other"),
        ("oauth_scopes", "other"),
        ("query", "tenant=2"),
        ("client_secret", "other"),
    ],
)
def test_each_setting_that_a_login_is_for_binds_it(name: str, value: str) -> None:
    """Issue 4, section 3: address and client settings, the encrypted ones too."""
    server = http_server()
    before = hash_of_settings(server)
    if hasattr(server, name):
        setattr(server, name, value)
    else:
        changed: Any = {name: value}
        columns = private_columns(replace(read_private(server), **changed), server.pk)
        server.private, server.key_id = columns["private"], columns["key_id"]
    assert hash_of_settings(server) != before


@pytest.mark.parametrize("name", ["name", "description", "last_error"])
def test_other_settings_do_not_bind_a_login(name: str) -> None:
    server = http_server()
    before = hash_of_settings(server)
    setattr(server, name, "other")
    assert hash_of_settings(server) == before


class TestUnfinished:
    """A29: a login that never came back is spoken of, so that people find `Register again`."""

    def later(self, **values: Any) -> datetime:
        return database_now() + timedelta(**values)

    def test_it_is_told_after_a_minute_and_stays(self, alice: User) -> None:
        server = http_server()
        row = keep(server, alice)
        assert pending.unfinished(server.pk, self.later(seconds=50)) is None
        assert pending.unfinished(server.pk, self.later(seconds=70)) == row
        assert pending.unfinished(server.pk, self.later(hours=2)) == row

    def test_the_newest_counts(self, alice: User) -> None:
        server = http_server()
        keep(server, alice)
        row = keep(server, alice, state="later")
        assert pending.unfinished(server.pk, self.later(hours=2)) == row

    def test_whoever_came_back_has_finished(self, alice: User) -> None:
        server = http_server()
        keep(server, alice)
        take(server, alice)
        assert pending.unfinished(server.pk, self.later(hours=2)) is None

    def test_a_login_since_then_is_the_better_news(self, alice: User) -> None:
        """The other one of two tabs."""
        server = http_server()
        row = keep(server, alice)
        logged_in(server, logged_in_at=row.created_at - timedelta(days=1))
        assert pending.unfinished(server.pk, self.later(hours=2)) == row
        server.login.delete()
        logged_in(Server.objects.get(), logged_in_at=row.created_at + timedelta(seconds=5))
        assert pending.unfinished(server.pk, self.later(hours=2)) is None

    def test_other_servers_say_nothing(self, alice: User) -> None:
        keep(http_server(), alice)
        other = http_server("other")
        assert pending.unfinished(other.pk, self.later(hours=2)) is None


class TestRegistrations:
    def client(self, name: str = "c") -> Client:
        return Client(name, "registered", "client_secret_post", "canary-secret", 4e9)

    def test_a_client_comes_back_for_its_issuer_and_address(self) -> None:
        """A30."""
        registered.keep(ISSUER, HERE, self.client())
        assert registered.find(ISSUER, HERE) == self.client()
        assert registered.find(f"{ISSUER}/other", HERE) is None
        assert registered.find(ISSUER, f"{HERE}/") is None

    def test_its_secret_is_encrypted_and_known_to_the_logs(self) -> None:
        registered.keep(ISSUER, HERE, self.client())
        row = RegisteredClient.objects.get()
        assert b"canary" not in bytes(row.private)
        assert row.expires_at is not None
        registered.find(ISSUER, HERE)
        assert "canary-secret" not in known_values().mask("see canary-secret")

    def test_the_newer_one_takes_the_place_of_the_older(self) -> None:
        registered.keep(ISSUER, HERE, self.client("old"))
        registered.keep(ISSUER, HERE, self.client("new"))
        found = registered.find(ISSUER, HERE)
        assert found is not None
        assert found.client_id == "new"
        assert RegisteredClient.objects.count() == 1

    def test_a_client_is_forgotten_by_its_name_at_its_issuer(self) -> None:
        """A29."""
        registered.keep(ISSUER, HERE, self.client("c"))
        registered.keep(ISSUER, f"{HERE}/2", self.client("d"))
        registered.keep(f"{ISSUER}/2", HERE, self.client("c"))
        assert registered.forget(ISSUER, "c")
        assert not registered.forget(ISSUER, "c")
        assert RegisteredClient.objects.count() == 2

    def test_one_that_no_key_opens_is_as_good_as_none(self) -> None:
        """E09: another one is registered in its place."""
        registered.keep(ISSUER, HERE, self.client())
        RegisteredClient.objects.update(key_id="lost")
        assert registered.find(ISSUER, HERE) is None
        registered.keep(ISSUER, HERE, self.client("new"))
        assert registered.find(ISSUER, HERE) is not None


class TestAddresses:
    @pytest.mark.parametrize(
        ("app_url", "browser", "found"),
        [
            (None, "http://10.0.0.5:8080", "http://10.0.0.5:8080"),
            ("https://h.example", "https://h.example", "https://h.example"),
            ("https://h.example", "https://h.example:443", "https://h.example"),
            ("https://H.example", "https://h.example", "https://H.example"),
            ("http://h.example:80", "http://h.example", "http://h.example:80"),
            ("http://[::1]:8080", "http://[::1]:8080", "http://[::1]:8080"),
        ],
    )
    def test_app_url_is_what_counts_where_the_browser_is_there(
        self,
        app_url: str | None,
        browser: str,
        found: str,
        set_app_url: SetAppUrl,
    ) -> None:
        """P40: written as in the configuration, since providers compare character by character."""
        set_app_url(app_url)
        assert base_url(browser) == found

    @pytest.mark.parametrize(
        "browser",
        [
            "http://h.example",
            "https://h.example:8443",
            "https://h.example.evil",
            "https://10.0.0.5",
            "https://h.example:port",
        ],
    )
    def test_any_other_address_is_named_beside_app_url(
        self, browser: str, set_app_url: SetAppUrl
    ) -> None:
        """P40."""
        set_app_url("https://h.example")
        with pytest.raises(OAuthError) as caught:
            base_url(browser)
        assert f"opened at {browser}, " in caught.value.message
        assert "https://h.example, which is app.url" in caught.value.message

    def test_the_callback_has_the_path_that_people_enter_at_providers(self) -> None:
        """P40."""
        server = http_server()
        address = f"https://h.example/api/mcp-servers/{server.pk}/oauth/callback"
        assert callback_url("https://h.example", server.pk) == address
        assert callback_url("https://h.example/", server.pk) == address
