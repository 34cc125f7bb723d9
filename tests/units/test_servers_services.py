"""What people do to servers, below the pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from secrets_vault.errors import SecretError
from secrets_vault.services import set_secret
from servers.access import NotAllowed
from servers.definition import Entry, ServerData
from servers.models import Server
from servers.policy import Policy
from servers.private import Private
from servers.queries import find_servers
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
from servers.status import Auth, auth_condition, credentials_words, token_problem
from tests.fakes.server_rows import (
    after_success,
    http_data,
    http_server,
    stdio_data,
    stdio_server,
    unix_data,
    unix_server,
)
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (http_data("a"), stdio_data("a")),
        (http_data("a", url="http://localhost/mcp"), unix_data("a")),
        (unix_data("a"), unix_data("a", socket_path="/run/other.sock")),
        (unix_data("a"), unix_data("a", url="http://localhost/rpc")),
        (unix_data("a"), http_data("a", url="http://localhost/mcp")),
        (stdio_data("a"), unix_data("a")),
    ],
)
def test_another_place_is_another_endpoint(before: ServerData, after: ServerData) -> None:
    server = after_success(create_server(actor=None, data=before), "echo")
    saved = edit(server, after)
    assert (saved.state, saved.tool_count, saved.connection_version) == ("untested", 0, 2)
    assert (saved.found_how, saved.remembered) == ("", {})


@pytest.mark.parametrize(
    "after",
    [
        unix_data("github", url="https://api.example.org/mcp", headers=(KEEP,)),
        http_data(url="https://elsewhere.example/", headers=(KEEP,)),
    ],
)
def test_values_nobody_sees_do_not_follow_from_a_host_to_a_socket(after: ServerData) -> None:
    """E07, U12: what listens on a socket need not be the host that its address names."""
    server = http_server(headers={"X-Api-Key": "canary-1"}, url="https://api.example.org/mcp")
    with pytest.raises(InvalidServer, match="another host or socket now: enter this value again"):
        edit(server, after)


def test_values_nobody_sees_stay_with_their_socket() -> None:
    server = unix_server(headers={"X-Api-Key": "canary-1"}, url="http://localhost/mcp?k=1")
    saved = edit(server, unix_data(headers=(KEEP,), keep_query=True, description="x"))
    assert read_private(saved) == Private("k=1", (("X-Api-Key", "canary-1"),))
    moved = unix_data(headers=(KEEP,), keep_query=True, socket_path="/run/other.sock")
    with pytest.raises(InvalidServer) as caught:
        edit(saved, moved)
    assert set(caught.value.errors) == {"url", "headers.0.value"}


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


def test_the_auth_badge_follows_from_stored_facts(django_assert_num_queries: Any) -> None:
    """P14, P49-P51, U26: a token whose secret exists is a bearer token. The list asks once."""
    set_secret(actor=None, name="THERE", value="value-of-there")
    there, gone = {"token_ref": "@THERE"}, {"token_ref": "@GONE"}
    expected = {
        http_server("bearer", headers={"authorization": "Bearer x"}): Auth.BEARER_TOKEN,
        http_server("both", headers={"Authorization": "x"}, options=gone): Auth.BEARER_TOKEN,
        http_server("unknown", headers={"X-Api-Key": "x"}): Auth.UNKNOWN,
        after_success(http_server("reached")): Auth.NONE,
        http_server("token", options=there): Auth.BEARER_TOKEN,
        http_server("lost", options=gone): Auth.UNKNOWN,
        after_success(http_server("lost-but-reached", options=gone)): Auth.NONE,
        stdio_server("local"): Auth.NONE,
        unix_server("socket"): Auth.NONE,
        unix_server("socket-with-token", options=there): Auth.BEARER_TOKEN,
        unix_server("socket-with-header", headers={"Authorization": "x"}): Auth.BEARER_TOKEN,
    }
    assert {server: auth_status(server) for server in expected} == expected
    for auth in Auth:
        found = set(Server.objects.filter(auth_condition(auth, timezone.now())))
        assert found == {server for server, status in expected.items() if status == auth}
    with django_assert_num_queries(1):
        assert {server: auth_status(server) for server in find_servers()} == expected


def no_sockets(settings: Settings) -> None:
    network = settings.OPTIONS.network.model_copy(update={"allow_private_targets": False})
    settings.OPTIONS = settings.OPTIONS.model_copy(update={"network": network})


def test_a_socket_is_saved_with_the_address_over_it() -> None:
    """U12: and its query lies with the other hidden values."""
    server = unix_server(url="http://localhost/rpc?key=canary-1")
    server.refresh_from_db()
    assert (server.socket_path, server.url) == ("/run/engine/mcp.sock", "http://localhost/rpc")
    assert (server.command, server.args) == ("", [])
    assert server.endpoint == "/run/engine/mcp.sock http://localhost/rpc"
    assert read_private(server).query == "key=canary-1"


def test_a_socket_is_refused_while_private_targets_are(settings: Settings) -> None:
    """Section 1 of the issue: at every save; an existing one can only become something else."""
    server = unix_server()
    no_sockets(settings)
    with pytest.raises(InvalidServer, match=r"network\.allow_private_targets is false") as caught:
        unix_server("another")
    assert list(caught.value.errors) == ["transport"]
    with pytest.raises(InvalidServer, match="switched off here"):
        edit(server, unix_data(description="x"))
    assert edit(server, http_data("engine")).transport == "http"


def test_a_socket_is_for_administrators(member: User, administrator: User) -> None:
    """U12."""
    with pytest.raises(NotAllowed, match="Only administrators"):
        create_server(actor=member, data=unix_data())
    assert create_server(actor=administrator, data=unix_data()).transport == "unix"


OPTIONS = {"tool_timeout_secs": 300.0, "token_ref": "@TOKEN", "max_inflight_calls": 4}
POLICY = Policy(trust="guarded", blocked_tools=("drop",))


def test_options_and_policy_are_stored_without_their_defaults() -> None:
    server = http_server(options=OPTIONS, policy=POLICY)
    server.refresh_from_db()
    assert server.options == {"tool_timeout_secs": 300.0, "token_ref": "@TOKEN"}
    assert server.token_name == "TOKEN"
    assert server.policy == {"trust": "guarded", "blocked_tools": ["drop"]}
    plain = http_server("plain", options={}, policy=Policy())
    assert (plain.options, plain.token_name, plain.policy) == ({}, "", {})


@pytest.mark.parametrize("key", ["options.max_tools", "policy.blocked_tools"])
def test_what_cannot_be_stored_is_refused_by_its_field(key: str) -> None:
    wrong: dict[str, Any] = {
        "options.max_tools": {"options": {"max_tools": 0}},
        "policy.blocked_tools": {"policy": Policy(blocked_tools=("",))},
    }
    with pytest.raises(InvalidServer) as caught:
        http_server(**wrong[key])
    assert list(caught.value.errors) == [key]


def test_an_edit_that_sends_no_options_and_no_policy_keeps_them() -> None:
    """E08."""
    server = after_success(http_server(options=OPTIONS, policy=POLICY), "echo")
    saved = edit(server, http_data(description="New"))
    assert (saved.options, saved.policy) == (server.options, server.policy)
    assert (saved.token_name, saved.state) == ("TOKEN", "connected")


def test_an_edit_replaces_options_and_policy_whole() -> None:
    server = http_server(options=OPTIONS, policy=POLICY)
    saved = edit(server, http_data(options={"per_actor": True}, policy=Policy()))
    assert (saved.options, saved.token_name, saved.policy) == ({"per_actor": True}, "", {})


def test_options_of_the_old_transport_go_with_it() -> None:
    """U13, U63."""
    server = http_server(options=OPTIONS)
    saved = edit(server, stdio_data(server.name))
    assert (saved.options, saved.token_name) == ({"tool_timeout_secs": 300.0}, "")


@pytest.mark.parametrize(
    ("values", "tested"),
    [
        ({"options": {"token_ref": "@OTHER"}}, False),
        ({"options": {"allow_stateless": False}}, False),
        ({"options": {"limits_profile": "strict"}}, False),
        ({"options": {"max_tools": 3}}, False),
        ({"options": {"tool_timeout_secs": 5.0, "max_inflight_calls": 1}}, True),
        ({"options": {"tool_call_max_attempts": 1, "evidence_source": True}}, True),
        ({"options": {"max_result_bytes": 4096}}, True),
        ({"policy": POLICY}, True),
    ],
)
def test_a_test_stays_true_unless_the_way_there_changes(
    values: dict[str, Any], tested: bool
) -> None:
    server = after_success(http_server(), "echo")
    saved = edit(server, http_data(**values))
    assert (saved.state == "connected") is tested
    assert saved.connection_version == (1 if tested else 2)
    assert (saved.tool_count, saved.version) == (1, 2)


def test_the_audit_log_names_each_changed_option_and_the_policy() -> None:
    server = http_server(options=OPTIONS)
    edit(server, http_data(options={"token_ref": "@TOKEN", "per_actor": True}, policy=POLICY))
    entry = AuditEntry.objects.get(action="server.update")
    changed = ["options.per_actor", "options.tool_timeout_secs", "policy"]
    assert entry.details == {"changed": changed}


def test_a_copy_takes_socket_options_and_policy_along() -> None:
    server = unix_server(options={"token_ref": "@TOKEN"}, policy=POLICY)
    copy = duplicate_server(server, actor=None)
    for name in ("socket_path", "url", "options", "token_name", "policy"):
        assert getattr(copy, name) == getattr(server, name)


def test_which_credential_is_sent_is_told() -> None:
    """E15, U26, U27."""
    set_secret(actor=None, name="THERE", value="value-of-there")
    there, gone = {"token_ref": "@THERE"}, {"token_ref": "@GONE"}
    both = http_server("both", headers={"Authorization": "x"}, options=there)
    assert credentials_words(both) == (
        "The Authorization header is sent; it wins over token_ref @THERE."
    )
    assert "THERE is sent as bearer token" in credentials_words(http_server("a", options=there))
    lost = http_server("lost", options=gone)
    assert credentials_words(lost) == token_problem(lost)
    assert "There is no secret named GONE" in token_problem(lost)
    assert token_problem(http_server("b", headers={"Authorization": "x"}, options=gone)) == ""
    assert credentials_words(http_server("none")) == ""
    assert credentials_words(stdio_server()) == ""


def test_health_looks_at_a_server_that_was_made_switched_on_or_moved() -> None:
    """U2: and leaves alone what was only described anew."""
    server = http_server()
    assert moment(server) is not None
    set_enabled(server, actor=None, enabled=False)
    assert moment(server) is None
    set_enabled(server, actor=None, enabled=True)
    assert moment(server) is not None
    Server.objects.update(next_check_at=None, failures=3)
    server = edit(server, http_data(description="x"))
    assert (moment(server), server.failures) == (None, 3)
    server = edit(server, http_data(url="https://api.example.org/other"))
    assert moment(server) is not None
    assert Server.objects.get().failures == 0


def moment(server: Server) -> Any:
    return Server.objects.values_list("next_check_at", flat=True).get(pk=server.pk)
