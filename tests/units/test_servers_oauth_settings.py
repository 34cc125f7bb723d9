"""The OAuth client that an operator enters: what it may hold, how it is stored and kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from secrets_vault.services import encrypt_json, usages_of
from servers.definition import HTTP, STDIO, Entry, OAuthClientData, ServerData, check
from servers.models import Server
from servers.oauth.operator_client import MAX_CLIENT_ID, MAX_CLIENT_SECRET, MAX_SCOPES, tidied
from servers.private import Private
from servers.services import (
    InvalidServer,
    create_server,
    current_data,
    duplicate_server,
    read_private,
    stored_client,
    update_server,
)
from tests.fakes.server_rows import http_data, http_server, stdio_data, unix_data

KEY = "-----BEGIN PRIVATE KEY-----\nMIGH\nAgEA\n-----END PRIVATE KEY-----"


def problems(**values: Any) -> dict[str, str]:
    data = ServerData("github", HTTP, url="https://h/mcp", oauth=OAuthClientData(**values))
    return check(data)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"client_id": "Iv1.8a61f9b3a7aba766"},
        {"client_id": "an id with blanks", "secret": 'p@ss w\\rd"'},
        {"client_id": "https://client.example/id.json"},
        {"client_id": "a", "secret": "{{secret:CLIENT_SECRET}}"},
        {"client_id": "a", "secret": KEY},
        {"client_id": "a", "secret": KEY.replace("\n", "\r\n")},
        {"client_id": "a" * MAX_CLIENT_ID, "secret": "s" * MAX_CLIENT_SECRET},
        {"scopes": "repo read:user https://www.googleapis.com/auth/drive"},
        {"kind": "machine", "client_id": "a", "secret": "s"},
    ],
)
def test_what_providers_hand_out_can_be_entered(values: dict[str, str]) -> None:
    """RFC 6749, appendices A.1, A.2 and A.4."""
    assert problems(**values) == {}


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("kind", {"kind": "cat"}, "Choose who logs in"),
        ("client_id", {"client_id": "a" * (MAX_CLIENT_ID + 1)}, "too long"),
        ("client_id", {"client_id": "a\nb"}, "no client ID can hold"),
        ("client_id", {"client_id": "\u200bid"}, "no client ID can hold"),
        ("client_id", {"client_id": "{{secret:ID}}"}, "no secret"),
        ("client_id", {"secret": "s"}, "needs the client ID"),
        ("client_id", {"kind": "machine", "secret": "s"}, "needs a client ID"),
        ("client_secret", {"client_id": "a", "secret": "s" * (MAX_CLIENT_SECRET + 1)}, "too long"),
        ("client_secret", {"client_id": "a", "secret": "two\nlines"}, "line break"),
        ("client_secret", {"client_id": "a", "secret": "ü"}, "no client secret can hold"),
        ("client_secret", {"client_id": "a", "secret": KEY + "\x00"}, "no client secret can hold"),
        ("client_secret", {"client_id": "a", "secret": "{{secret:}}"}, "secret"),
        ("scopes", {"scopes": "s " * MAX_SCOPES}, "too long"),
        ("scopes", {"scopes": " ".join("abcdefghijklmnopqrstuvwxyz" * 2)}, "52 scopes"),
        ("scopes", {"scopes": 'read "write"'}, "without quotes"),
        ("scopes", {"scopes": "read\\write"}, "without quotes"),
        ("scopes", {"scopes": "lesen schreiben-ä"}, "ASCII"),
        ("scopes", {"scopes": "read, write"}, "not by commas"),
    ],
)
def test_each_fault_is_told_at_its_field(field: str, values: dict[str, str], words: str) -> None:
    """RFC 6749, 3.3 and appendix A; E01."""
    errors = problems(**values)
    assert list(errors) == [f"oauth.{field}"]
    assert words in errors[f"oauth.{field}"]


def test_no_sentence_repeats_a_secret() -> None:
    """E01."""
    assert "canary" not in repr(problems(client_id="a", secret="canary\n1"))
    assert "canary" not in repr(OAuthClientData(client_id="a", secret="canary"))


def test_all_faults_are_told_at_once() -> None:
    errors = problems(kind="cat", client_id="a\n", secret="b\nc", scopes='"')
    assert list(errors) == ["oauth.kind", "oauth.client_id", "oauth.client_secret", "oauth.scopes"]


def test_blanks_around_pasted_values_are_dropped() -> None:
    """E01."""
    assert tidied(OAuthClientData("person", " id ", " s\n", " a\n b ")) == OAuthClientData(
        "person", "id", "s", "a b"
    )
    assert tidied(OAuthClientData()).secret is None


@pytest.mark.django_db
class TestStored:
    def server(self, **client: Any) -> Server:
        client = {"client_id": "ours", "secret": "canary-1", "scopes": "a b", **client}
        return http_server(oauth=OAuthClientData(**client))

    def edit(self, server: Server, **values: Any) -> Server:
        data = replace(current_data(server), **values)
        return update_server(server, actor=None, data=data, version=server.version)

    def test_the_secret_is_encrypted_and_the_rest_can_be_read(self) -> None:
        """P57."""
        server = self.server()
        server.refresh_from_db()
        assert stored_client(server) == OAuthClientData("person", "ours", None, "a b")
        assert read_private(server).client_secret == "canary-1"
        assert b"canary" not in bytes(server.private)
        assert "canary" not in repr(read_private(server))

    def test_references_are_found_by_the_page_of_secrets(self) -> None:
        """U24: deleting a secret tells what uses it."""
        self.server(secret="{{secret:CLIENT_SECRET}}")
        assert [usage.name for usage in usages_of("CLIENT_SECRET")] == ["github"]

    def test_an_edit_without_the_part_keeps_it(self) -> None:
        server = self.edit(self.server(), description="New")
        assert stored_client(server).client_id == "ours"
        assert read_private(server).client_secret == "canary-1"
        assert (server.version, server.connection_version) == (2, 1)

    def test_a_secret_that_nobody_typed_is_kept(self) -> None:
        """E07."""
        server = self.server()
        server = self.edit(server, oauth=OAuthClientData(client_id="ours", scopes="c"))
        assert (read_private(server).client_secret, server.oauth_scopes) == ("canary-1", "c")

    def test_a_secret_is_replaced_or_taken_away_as_asked(self) -> None:
        server = self.server()
        server = self.edit(server, oauth=OAuthClientData(client_id="ours", secret="two"))
        assert read_private(server).client_secret == "two"
        server = self.edit(server, oauth=OAuthClientData(client_id="ours", secret=""))
        assert read_private(server).client_secret == ""

    def test_a_secret_goes_with_its_client(self) -> None:
        server = self.edit(self.server(), oauth=OAuthClientData())
        assert (server.oauth_client_id, read_private(server).client_secret) == ("", "")

    @pytest.mark.parametrize("data", [stdio_data(), unix_data()], ids=["stdio", "unix"])
    def test_other_transports_have_no_client(self, data: ServerData) -> None:
        """P51: logins are for HTTP."""
        server = self.server()
        data = replace(data, oauth=OAuthClientData(client_id="\n"))  # ignored like an address
        server = update_server(server, actor=None, data=data, version=1)
        assert stored_client(server) == OAuthClientData()
        assert read_private(server).client_secret == ""
        assert check(stdio_data(oauth=OAuthClientData(client_id="\n"))) == {}

    @pytest.mark.parametrize("url", ["https://elsewhere.example/", "http://api.example.org/mcp"])
    def test_a_secret_does_not_follow_an_address_to_another_host(self, url: str) -> None:
        """E07: the server at the address names the provider that the secret is sent to."""
        server = self.server()
        for oauth in (None, OAuthClientData(client_id="ours")):
            with pytest.raises(InvalidServer) as caught:
                self.edit(server, url=url, oauth=oauth)
            assert list(caught.value.errors) == ["oauth.client_secret"]
        for oauth in (OAuthClientData(client_id="ours", secret="two"), OAuthClientData()):
            changed = self.edit(server, url=url, oauth=oauth)
            assert changed.url == url
            server = self.edit(
                changed, url=server.url, oauth=OAuthClientData(client_id="ours", secret="one")
            )

    def test_a_secret_follows_an_address_on_the_same_host(self) -> None:
        server = self.edit(self.server(), url="https://api.example.org/other")
        assert read_private(server).client_secret == "canary-1"

    def test_without_a_secret_there_is_nothing_to_enter_again(self) -> None:
        server = self.server(secret="")
        assert self.edit(server, url="https://elsewhere.example/").oauth_client_id == "ours"

    def test_a_client_that_logs_in_by_itself_has_a_secret(self) -> None:
        """RFC 6749, 4.4: for confidential clients only."""
        needs = {"oauth.client_secret": "A client that logs in by itself needs its client secret."}
        machine = OAuthClientData("machine", "ours")
        with pytest.raises(InvalidServer) as caught:
            create_server(actor=None, data=http_data(oauth=machine))
        assert caught.value.errors == needs
        server = self.server()
        with pytest.raises(InvalidServer) as caught:
            self.edit(server, oauth=replace(machine, secret=""))
        assert caught.value.errors == needs
        assert self.edit(server, oauth=machine).oauth_kind == "machine"

    @pytest.mark.parametrize(
        ("oauth", "is_stale"),
        [
            (OAuthClientData(client_id="other"), True),
            (OAuthClientData("machine", "ours"), True),
            (OAuthClientData(client_id="ours", scopes="c"), False),
            (OAuthClientData(client_id="ours", scopes="a b", secret="two"), False),
        ],
        ids=str,
    )
    def test_a_test_is_stale_where_the_login_ends(
        self, oauth: OAuthClientData, is_stale: bool
    ) -> None:
        """P53."""
        server = self.edit(self.server(), oauth=oauth)
        assert (server.version, server.connection_version) == (2, 1 + is_stale)

    @pytest.mark.parametrize(
        ("values", "is_forgotten"),
        [
            ({"url": "https://api.example.org/other"}, True),
            ({"url": "https://api.example.org/mcp?a=1"}, True),
            ({"headers": (Entry("X-More", "1"),)}, True),
            ({"transport": STDIO, "command": "run"}, True),
            ({"description": "New"}, False),
            ({"oauth": OAuthClientData(client_id="other")}, False),
            ({"options": {"max_tools": 5}}, False),
        ],
        ids=str,
    )
    def test_what_was_found_of_logins_goes_with_address_and_headers(
        self, values: dict[str, Any], is_forgotten: bool
    ) -> None:
        """P36: it is looked for again."""
        server = self.server(secret="")
        found = {
            "oauth_advertised": True,
            "oauth_found": {"resource": "x"},
            "oauth_error": "e",
            "oauth_wanted": "w",
        }
        Server.objects.update(**found)
        server.refresh_from_db()
        server = self.edit(server, **values)
        after = {name: getattr(server, name) for name in found}
        nothing: dict[str, Any] = {
            "oauth_advertised": None,
            "oauth_found": {},
            "oauth_error": "",
            "oauth_wanted": "",
        }
        assert after == (nothing if is_forgotten else found)

    def test_a_copy_has_the_same_client(self) -> None:
        server = self.server()
        copy = duplicate_server(server, actor=None)
        assert stored_client(copy) == stored_client(server)
        assert read_private(copy).client_secret == "canary-1"

    def test_what_an_older_version_stored_has_no_secret(self) -> None:
        server = http_server()
        raw = {"query": "", "headers": [["X-More", "1"]], "env": []}
        server.private, server.key_id = encrypt_json(raw, kind="server", row_id=server.pk)
        assert read_private(server) == Private(headers=(("X-More", "1"),))
