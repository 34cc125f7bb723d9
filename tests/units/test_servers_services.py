"""What people do to servers, below the pages."""

from __future__ import annotations

from typing import Any

import pytest

from secrets_vault.errors import SecretError
from servers.access import NotAllowed
from servers.definition import Entry, ServerData
from servers.models import Server
from servers.private import Private
from servers.services import (
    InvalidServer,
    OutdatedEdit,
    ServerGone,
    auth_status,
    create_server,
    delete_server,
    duplicate_server,
    read_private,
    set_enabled,
    update_server,
)
from servers.status import Auth, auth_condition
from tests.fakes.server_rows import after_success, http_data, http_server, stdio_data, stdio_server
from umpteenth.accounts.models import AuditEntry, User

pytestmark = pytest.mark.django_db

KEEP = Entry("X-Api-Key", None, kept="X-Api-Key")


def edit(server: Server, data: ServerData, **values: Any) -> Server:
    values = {"actor": None, "version": server.version, **values}
    return update_server(server, data=data, **values)


def test_a_new_server_is_enabled_untested_and_encrypted() -> None:
    """P59; literal values are encrypted at rest."""
    server = http_server(
        headers={"X-Api-Key": "canary-1"}, url="https://h.example/mcp?key=canary-2"
    )
    server.refresh_from_db()
    assert (server.enabled, server.state, server.tested_at) == (True, "untested", None)
    assert server.url == "https://h.example/mcp"
    assert b"canary" not in bytes(server.private)
    assert read_private(server) == Private("key=canary-2", (("X-Api-Key", "canary-1"),))
    assert "canary" not in repr(read_private(server))


def test_names_are_unique_ignoring_case() -> None:
    """P17: instructions find servers ignoring case."""
    http_server("GitHub")
    with pytest.raises(InvalidServer, match="exists already") as caught:
        http_server("github")
    assert list(caught.value.errors) == ["name"]
    other = http_server("other")
    with pytest.raises(InvalidServer, match="exists already"):
        edit(other, http_data("GITHUB"))


def test_blanks_around_pasted_values_are_dropped() -> None:
    """E01."""
    header = Entry(" Authorization ", "Bearer sk-secret\n")
    data = http_data(" github ", url=" https://h.example/ ", headers=(header,))
    server = create_server(actor=None, data=data)
    assert server.name == "github"
    assert read_private(server).headers == (("Authorization", "Bearer sk-secret"),)


def test_values_of_variables_keep_their_blanks() -> None:
    server = stdio_server(env={"KEY": " two\nlines \n"})
    assert read_private(server).env == (("KEY", " two\nlines \n"),)


@pytest.mark.parametrize("act", ["create", "update", "duplicate", "delete", "switch"])
def test_members_change_nothing(act: str, member: User) -> None:
    """I19: enforced below the pages as well."""
    server = http_server()
    acts: dict[str, Any] = {
        "create": lambda: create_server(actor=member, data=stdio_data()),
        "update": lambda: edit(server, http_data(), actor=member),
        "duplicate": lambda: duplicate_server(server, actor=member),
        "delete": lambda: delete_server(server, actor=member),
        "switch": lambda: set_enabled(server, actor=member, enabled=False),
    }
    with pytest.raises(NotAllowed, match="Only administrators"):
        acts[act]()
    assert Server.objects.get().enabled


def test_an_edit_of_the_description_leaves_everything_else() -> None:
    """E07, E08."""
    server = after_success(http_server(headers={"X-Api-Key": "canary-1", "X-Two": "2"}), "echo")
    before = bytes(server.private), server.key_id, server.remembered
    data = http_data(description="New", headers=(KEEP, Entry("X-Two", None, kept="X-Two")))
    saved = edit(server, data)
    assert (bytes(saved.private), saved.key_id, saved.remembered) == before
    assert (saved.state, saved.tool_count, saved.description) == ("connected", 1, "New")
    assert saved.version == 2
    assert saved.connection_version == 1


def test_an_edit_that_changes_nothing_is_no_edit() -> None:
    server = http_server()
    assert edit(server, http_data()).version == 1
    assert not AuditEntry.objects.filter(action="server.update").exists()


def test_a_kept_value_survives_a_new_name_of_its_header() -> None:
    server = http_server(headers={"X-Api-Key": "canary-1"})
    saved = edit(server, http_data(headers=(Entry("X-Key", None, kept="X-Api-Key"),)))
    assert read_private(saved).headers == (("X-Key", "canary-1"),)


def test_a_row_that_is_gone_is_gone_and_a_typed_value_replaces() -> None:
    server = http_server(headers={"X-Api-Key": "canary-1", "X-Two": "2"})
    saved = edit(server, http_data(headers=(Entry("X-Api-Key", "new", kept="X-Api-Key"),)))
    assert read_private(saved).headers == (("X-Api-Key", "new"),)


def test_the_stored_query_is_kept_replaced_or_forgotten_as_asked() -> None:
    server = http_server(url="https://h.example/mcp?key=one")
    address = "https://h.example/mcp"
    server = edit(server, http_data(url=address, keep_query=True, description="x"))
    assert read_private(server).query == "key=one"
    server = edit(server, http_data(url=f"{address}?key=two", keep_query=True))
    assert read_private(server).query == "key=two"
    server = edit(server, http_data(url=address, keep_query=False))
    assert read_private(server).query == ""


@pytest.mark.parametrize("url", ["https://elsewhere.example/", "http://api.example.org/mcp"])
def test_values_nobody_sees_do_not_follow_an_address_to_another_host(url: str) -> None:
    server = http_server(headers={"X-Api-Key": "canary-1"}, url="https://api.example.org/mcp?k=1")
    with pytest.raises(InvalidServer) as caught:
        edit(server, http_data(url=url, keep_query=True, headers=(KEEP,)))
    assert "forget the stored one" in caught.value.errors["url"]
    assert "enter this value again" in caught.value.errors["headers.0.value"]
    moved = edit(server, http_data(url=url, headers=(Entry("X-Api-Key", "again"),)))
    assert moved.url == url


def test_a_kept_value_that_is_gone_must_be_entered_again() -> None:
    server = http_server()
    with pytest.raises(InvalidServer, match="gone; enter it again"):
        edit(server, http_data(headers=(KEEP,)))


def test_an_outdated_edit_is_refused(administrator: User) -> None:
    """Editing keeps what another person changed meanwhile."""
    server = http_server()
    edit(server, http_data(description="Theirs"), actor=administrator)
    with pytest.raises(OutdatedEdit, match="alice changed this server") as caught:
        edit(server, http_data(description="Mine"))
    assert caught.value.current.description == "Theirs"
    assert Server.objects.get().description == "Theirs"


def test_an_edit_of_a_deleted_server_says_so() -> None:
    server = http_server()
    Server.objects.all().delete()
    with pytest.raises(ServerGone, match="deleted meanwhile"):
        edit(server, http_data(description="x"))


def test_another_endpoint_forgets_what_was_found_at_the_old_one() -> None:
    server = after_success(http_server(), "echo", "add")
    saved = edit(server, http_data(url="https://api.example.org/other"))
    assert (saved.state, saved.tool_count, saved.tested_at) == ("untested", 0, None)
    assert (saved.protocol_version, saved.remembered) == ("", {})
    assert not saved.tools.exists()
    assert saved.connection_version == 2


def test_other_arguments_keep_the_tools_until_the_next_test() -> None:
    server = after_success(stdio_server(), "echo")
    saved = edit(server, stdio_data(args=("-y", "server-everything@2")))
    assert (saved.state, saved.tool_count) == ("untested", 1)
    assert saved.tested_at is not None


def test_switching_the_transport_drops_the_fields_of_the_old_one() -> None:
    server = http_server(headers={"X-Api-Key": "canary-1"}, url="https://h.example/?k=1")
    saved = edit(server, stdio_data(server.name))
    assert (saved.url, saved.transport, saved.command) == ("", "stdio", "npx")
    assert read_private(saved) == Private()


def test_the_secrets_it_refers_to_are_noted() -> None:
    headers = {"Authorization": "Bearer {{secret:B}}", "X": "{{ secret:A }}"}
    server = http_server(headers=headers, url="https://h.example/?k={{secret:C}}")
    assert server.secret_names == ["A", "B", "C"]
    assert server.has_authorization


def test_a_copy_takes_values_along_and_starts_disabled() -> None:
    server = http_server("x" * 64, headers={"X-Api-Key": "canary-1"})
    first = duplicate_server(server, actor=None)
    second = duplicate_server(server, actor=None)
    assert first.name == "x" * 59 + "-copy"
    assert second.name == "x" * 57 + "-copy-2"
    assert not first.enabled
    assert read_private(first) == read_private(server)
    assert bytes(first.private) != bytes(server.private)


def test_the_switch_saves_once_and_bumps_no_version() -> None:
    """P59: an open form is not outdated by it."""
    server = http_server()
    assert set_enabled(server, actor=None, enabled=False)
    assert not set_enabled(server, actor=None, enabled=False)
    server.refresh_from_db()
    assert (server.enabled, server.version) == (False, 1)


def test_the_audit_log_names_what_changed_and_no_value(administrator: User) -> None:
    server = create_server(
        actor=administrator, data=http_data(headers=(Entry("X-Api-Key", "canary-1"),))
    )
    edit(server, http_data(headers=(Entry("X-Api-Key", "canary-2"),)), actor=administrator)
    set_enabled(server, actor=administrator, enabled=False)
    delete_server(server, actor=administrator)
    entries = list(AuditEntry.objects.order_by("at"))
    actions = ["server.create", "server.update", "server.disable", "server.delete"]
    assert [entry.action for entry in entries] == actions
    assert entries[1].details == {"changed": ["headers"]}
    assert "canary" not in str([entry.details for entry in entries])


def test_a_server_whose_key_is_lost_can_be_edited_and_loses_nothing() -> None:
    """E09."""
    server = http_server(headers={"X-Api-Key": "canary-1"})
    Server.objects.update(key_id="gone")
    server.refresh_from_db()
    with pytest.raises(SecretError, match="cannot be decrypted"):
        read_private(server)
    saved = edit(server, http_data(description="x"))
    assert bytes(saved.private) == bytes(server.private)
    saved = edit(saved, http_data(description="x", headers=(Entry("X-Api-Key", "again"),)))
    assert read_private(saved).headers == (("X-Api-Key", "again"),)


def test_the_auth_badge_follows_from_stored_facts() -> None:
    """P14, P49-P51."""
    bearer = http_server("bearer", headers={"authorization": "Bearer x"})
    unknown = http_server("unknown", headers={"X-Api-Key": "x"})
    reached = after_success(http_server("reached"))
    local = stdio_server("local")
    expected = {
        bearer: Auth.BEARER_TOKEN,
        unknown: Auth.UNKNOWN,
        reached: Auth.NONE,
        local: Auth.NONE,
    }
    assert {server: auth_status(server) for server in expected} == expected
    for auth in Auth:
        found = set(Server.objects.filter(auth_condition(auth)))
        assert found == {server for server, status in expected.items() if status == auth}
