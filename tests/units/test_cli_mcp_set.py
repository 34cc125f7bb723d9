"""`umpteenth mcp set`: options change, everything else stays."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from servers.models import Server
from servers.policy import Policy
from servers.services import current_data, read_private, update_server
from tests.fakes.server_rows import after_success, http_server, stdio_server, unix_server
from umpteenth.cli import mcp, mcp_set

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_set, "setup", lambda: None)


def change(*arguments: str) -> Result:
    return CliRunner().invoke(mcp.command, ("set", *arguments))


def test_options_change_and_the_rest_stays() -> None:
    """E08, section 0: the server keeps its attachments, its hidden values and its policy."""
    server = http_server(
        headers={"X-Key": "canary-1"},
        url="https://h.example/mcp?k=canary-2",
        options={"max_tools": 3, "per_actor": True},
        policy=Policy(trust="guarded"),
    )
    before = bytes(server.private)
    result = change("github", "tool_timeout_secs=300", "per_actor=no", "--json")
    assert json.loads(result.stdout)["options"] == {"max_tools": 3, "tool_timeout_secs": 300.0}
    saved = Server.objects.get()
    assert (bytes(saved.private), saved.policy) == (before, {"trust": "guarded"})
    assert (saved.pk, saved.version) == (server.pk, 2)
    assert "canary" not in result.output


def test_an_empty_value_brings_the_default_back() -> None:
    http_server(options={"max_tools": 3, "token_ref": "@T"})
    assert change("github", "max_tools=", "token_ref = ").exit_code == 0
    assert (Server.objects.get().options, Server.objects.get().token_name) == ({}, "")


def test_a_token_reference_to_nothing_is_told_of() -> None:
    """U27: as with `mcp add`, and only by the command that sets it."""
    http_server()
    result = change("github", "token_ref=@LATER")
    assert result.exit_code == 0
    assert "There is no secret named LATER" in result.stderr
    assert "umpteenth secret set LATER" in result.stderr
    assert change("github", "max_tools=3").stderr == ""


def test_an_option_that_an_older_version_knew_is_dropped() -> None:
    http_server()
    Server.objects.update(options={"forgotten": 1, "max_tools": 3})
    assert change("github", "max_nodes=9").exit_code == 0
    assert Server.objects.get().options == {"max_tools": 3, "max_nodes": 9}


def test_it_says_whether_a_test_still_counts() -> None:
    after_success(http_server(), "echo")
    assert change("github", "max_inflight_calls=1").stdout == "Changed github.\n"
    assert change("github", "max_tools=9").stdout == "Changed github. Test it again.\n"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("github",), 2, "Missing argument"),
        (("github", "max_tools"), 2, "OPTION=VALUE"),
        (("github", "max_tols="), 2, "There is no option max_tols"),
        (("github", "max_tools=0"), 2, "max_tools must be a whole number"),
        (("github", "start_timeout_secs=3"), 1, "for stdio servers only"),
        (("nowhere", "max_tools=3"), 1, "no MCP server named nowhere"),
    ],
)
def test_what_cannot_be_set_is_refused(arguments: tuple[str, ...], status: int, words: str) -> None:
    http_server()
    result = change(*arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert words in result.stderr
    assert Server.objects.get().version == 1


def test_a_server_whose_key_is_lost_loses_nothing() -> None:
    """E09."""
    server = http_server(headers={"X-Key": "canary-1"})
    Server.objects.update(key_id="gone")
    assert change("github", "max_tools=3").exit_code == 0
    assert bytes(Server.objects.get().private) == bytes(server.private)


@pytest.mark.parametrize("make", [http_server, stdio_server, unix_server])
def test_what_is_stored_is_an_edit_that_changes_nothing(make: type) -> None:
    values = {"env": {"A": "x"}} if make is stdio_server else {"headers": {"A": "x"}}
    server = make(**values, options={"max_tools": 3}, policy=Policy(blocked_tools=("x",)))
    saved = update_server(server, actor=None, data=current_data(server), version=1)
    assert saved.version == 1
    assert read_private(saved) == read_private(server)
