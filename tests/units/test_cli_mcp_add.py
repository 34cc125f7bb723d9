"""`umpteenth mcp add` and `show`: every transport, options, tokens and what holds in the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from secrets_vault.services import set_secret
from servers.models import Server
from servers.options import CATALOGUE
from servers.policy import Policy
from servers.services import read_private
from tests.fakes.server_rows import after_success, http_server, unix_server
from umpteenth.cli import mcp, mcp_add, mcp_show

pytestmark = pytest.mark.django_db

URL = ("--url", "https://h.example/mcp")
SOCKET = ("--socket", "/run/engine/mcp.sock", "--uri", "http://localhost/rpc")
COMMAND = ("--", "server-memory")


@pytest.fixture(autouse=True)
def _no_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mcp, mcp_add, mcp_show):
        monkeypatch.setattr(module, "setup", lambda: None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(mcp.command, arguments)


def add(*arguments: str) -> Server:
    """The server that was added without a complaint."""
    result = run("add", "a", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return Server.objects.get(name="a")


def show(server: Server) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run("show", server.name, "--json").stdout)
    return shown


def test_a_socket_is_added_with_the_address_over_it() -> None:
    """U12."""
    result = run("add", "a", *SOCKET, "--header", "X-Key: {{secret:K}}", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["endpoint"] == "/run/engine/mcp.sock http://localhost/rpc"
    server = Server.objects.get()
    assert (server.transport, server.socket_path) == ("unix", "/run/engine/mcp.sock")
    assert read_private(server).headers == (("X-Key", "{{secret:K}}"),)


@pytest.mark.parametrize("place", [URL, SOCKET])
def test_a_token_reference_is_stored_as_a_name(place: tuple[str, ...]) -> None:
    """U28, U29: and nothing but the name."""
    set_secret(actor=None, name="TOKEN", value="value-of-token")
    server = add(*place, "--token-ref", "@TOKEN")
    assert (server.options, server.token_name) == ({"token_ref": "@TOKEN"}, "TOKEN")
    assert read_private(server).headers == ()
    assert show(server)["auth"] == "bearer_token"


def test_a_token_reference_to_nothing_is_told_of() -> None:
    """U27: it is accepted; the secret may come later."""
    result = run("add", "a", *URL, "--token-ref", "@LATER")
    assert result.exit_code == 0
    assert "There is no secret named LATER" in result.stderr
    assert "umpteenth secret set LATER" in result.stderr


def test_a_literal_token_warns_and_is_stored_encrypted() -> None:
    """U30: the warning names what it is written into; no option ever holds it."""
    result = run("add", "a", *URL, "--token-ref", "ghp_canary")
    assert result.exit_code == 0
    assert "--token-ref holds a token, not the @NAME of a secret" in result.stderr
    assert "test.sqlite3 as header Authorization" in result.stderr
    assert "canary" not in result.output
    server = Server.objects.get()
    assert read_private(server).headers == (("Authorization", "Bearer ghp_canary"),)
    assert (server.options, server.token_name) == ({}, "")
    assert b"canary" not in bytes(server.private)


@pytest.mark.parametrize(
    "reference",
    [
        (*URL, "--header", "X-Key: {{secret:LATER}}"),
        ("--url", "https://h.example/mcp?key={{secret:LATER}}"),
        (*SOCKET, "--header", "X-Key: {{secret:LATER}}{{secret:LATER}}"),
        ("--env", "KEY={{secret:LATER}}", *COMMAND),
    ],
)
def test_a_reference_to_nothing_is_told_of(reference: tuple[str, ...]) -> None:
    """The same as for a token reference; a secret that is there is no reason to warn."""
    set_secret(actor=None, name="THERE", value="value-of-it")
    result = run("add", "a", *reference)
    assert result.exit_code == 0
    assert result.stderr == (
        "Warning: There is no secret named LATER, so that no connection comes about. "
        "Create it with: umpteenth secret set LATER\n"
    )
    assert run("add", "b", *URL, "--header", "X-Key: {{secret:THERE}}").stderr == ""


def test_a_secrets_name_without_its_at_sign_is_never_sent_as_a_token() -> None:
    """U30 is for tokens; this one would be sent to the server as `Bearer ENGINE`."""
    set_secret(actor=None, name="ENGINE", value="value-of-it")
    result = run("add", "a", *URL, "--token-ref", "ENGINE")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "There is a secret named ENGINE; write --token-ref @ENGINE" in result.stderr
    assert not Server.objects.exists()
    assert run("add", "a", *URL, "--token-ref", "ENGINE-2").exit_code == 0


def test_options_are_set_by_name() -> None:
    """U14: each as often as it is given, the last one counts."""
    given = ("allow_stateless=no", "tool_timeout_secs=9", "tool_timeout_secs = 300", "max_tools=64")
    settings = [word for text in given for word in ("--set", text)]
    assert add(*URL, *settings).options == {
        "allow_stateless": False,
        "tool_timeout_secs": 300.0,
        "max_tools": 64,
    }


def test_a_command_takes_options_before_its_dashes() -> None:
    server = add("--set", "connect_timeout_secs=45", *COMMAND)
    assert (server.transport, server.options) == ("stdio", {"start_timeout_secs": 45.0})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give one of --url URL"),
        ((*URL, *SOCKET), "Give one of --url URL"),
        ((*SOCKET, *COMMAND), "Give one of --url URL"),
        ((*URL, *COMMAND), "Give one of --url URL"),
        (("--socket", "/run/x"), "add --uri http://localhost/mcp"),
        (("--uri", "http://localhost/"), "add --socket PATH"),
        (("--header", "A: b", *COMMAND), "a command has --env"),
        (("--token-ref", "@T", *COMMAND), "a command gets its token by --env"),
        (("--env", "A=b", *SOCKET), "have --header"),
        ((*URL, "--set", "max_tools"), "An option is written OPTION=VALUE"),
        ((*URL, "--set", "max_tols=3"), "There is no option max_tols"),
        ((*URL, "--set", "max_tools=0"), "max_tools must be a whole number from 1"),
        ((*URL, "--set", "token_ref=ghp_canary"), "must name a secret as @NAME"),
        ((*URL, "--token-ref", "@a canary"), "must name a secret as @NAME"),
        (
            (*URL, "--token-ref", "ghp_canary", "--header", "authorization: Bearer x"),
            "leave one out",
        ),
    ],
)
def test_wrong_usage_says_what_belongs_together(arguments: tuple[str, ...], words: str) -> None:
    result = run("add", "a", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "canary" not in result.output
    assert not Server.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--url", "h.example/mcp"), "must begin with https:// or http://"),
        (("--url", "ftp://h.example/"), "must begin with https:// or http://"),
        (("--url", "https://me:pw@h.example/"), "user name or password"),
        (("--url", "https://h.example/#x"), "# part"),
        (("--socket", "mcp.sock", "--uri", "http://localhost/"), "beginning with /"),
        (("--socket", "/run/x", "--uri", "localhost"), "must begin with https:// or http://"),
        (("--", ""), "Enter the program"),
        ((*URL, "--header", "X Y: z"), "header's name can hold only"),
        ((*URL, "--header", "X: a\nb"), "The value of X contains a line break"),
        ((*URL, "--set", "start_timeout_secs=3"), "for stdio servers only"),
        (("--set", "per_actor=on", *COMMAND), "for http and unix servers only"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    """The issue's list of bad input."""
    result = run("add", "a", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_help_lists_every_option_with_its_default() -> None:
    text = " ".join(run("add", "--help").stdout.split())
    for option in CATALOGUE:
        assert f"{option.name} {option.meaning[:20]}" in text
    assert "for the slow" not in text
    assert "Default: 120 s, 300 or 900 by the tool's name." in text


def test_show_tells_each_value_and_where_it_comes_from() -> None:
    """The page's facts for a terminal: limits in force with their source."""
    options = {"limits_profile": "strict", "max_tools": 9}
    server = http_server(options=options)
    limits = {limit["name"]: limit for limit in show(server)["limits"]}
    assert (limits["max_tools"]["value"], limits["max_tools"]["source"]) == (9, "set here")
    assert (limits["max_depth"]["value"], limits["max_depth"]["source"]) == (32, "profile")
    assert limits["max_inflight_calls"]["source"] == "default"
    assert show(server)["options"] == options
    text = run("show", "github").stdout
    assert ["max_depth", "32", "profile"] in [line.split() for line in text.splitlines()]


def test_show_tells_the_policy_and_marks_restricted_tools() -> None:
    """A56."""
    policy = Policy(blocked_tools=("drop",), allowed_tools=("drop", "echo"))
    server = after_success(http_server(policy=policy), "drop", "echo", "other")
    shown = show(server)
    assert shown["policy"] == {
        "trust": "open",
        "allowed_tools": ["drop", "echo"],
        "blocked_tools": ["drop"],
    }
    assert shown["restricted_tools"] == 2
    marks = {tool["name"]: tool["restricted"] for tool in shown["tool_list"]}
    assert marks == {"drop": "blocked", "echo": "", "other": "not allowed"}
    text = run("show", "github").stdout
    lines = [line.removeprefix("policy").strip() for line in text.splitlines()]
    at = lines.index("trust: open")
    assert lines[at + 1 : at + 3] == ["allowed_tools: drop, echo", "blocked_tools: drop"]
    assert "other [not allowed]" in text


def test_show_tells_every_mark_that_a_guarded_policy_acts_on() -> None:
    """A29-A31."""
    server = after_success(http_server(policy=Policy(trust="guarded")), "search", "echo")
    server.tools.filter(name="search").update(open_world=True, read_only=True)
    text = run("show", "github").stdout
    assert "  search [read-only, open world, creator only]" in text


@pytest.mark.parametrize(
    ("hints", "marks"),
    [
        ({}, ""),
        ({"read_only": True, "destructive": True}, " [read-only]"),
        ({"read_only": False}, " [destructive]"),
        ({"read_only": False, "destructive": False}, ""),
        ({"destructive": True}, " [destructive]"),
        ({"open_world": True}, " [destructive, open world]"),
    ],
)
def test_tools_are_marked_as_on_the_pages(hints: dict[str, bool], marks: str) -> None:
    """P33, P73: one rule for `Read-only` and `Destructive`."""
    server = after_success(http_server(), "search")
    unknown = {"read_only": None, "destructive": None, "open_world": None}
    server.tools.update(**{**unknown, **hints})
    assert f"  search{marks}: " in run("show", "github").stdout


@pytest.mark.parametrize("state", Server.State)
def test_each_state_is_told_in_one_word(state: Server.State) -> None:
    """A58: configured (not tested), connected, failed, login required; disabled beside it."""
    server = http_server()
    Server.objects.update(state=state, enabled=state != Server.State.FAILED)
    [listed] = json.loads(run("list", "--json").stdout)
    assert (listed["state"], listed["enabled"]) == (state.value, state != "failed")
    assert (show(server)["state"], show(server)["enabled"]) == (state.value, listed["enabled"])


def test_show_tells_how_it_was_found_and_how_it_goes() -> None:
    server = after_success(unix_server(), "echo")
    Server.objects.update(
        found_how="It answered server/discover.", failures=2, last_error="503 Service Unavailable"
    )
    shown = show(server)
    assert shown["found_how"] == "It answered server/discover."
    assert (shown["failures"], shown["last_error"]) == (2, "503 Service Unavailable")
    assert shown["checked_at"] == shown["tested_at"]
    assert shown["socket_path"] == "/run/engine/mcp.sock"
    assert {"next_check_at", "found_transport", "protocol_version"} <= set(shown)
    Server.objects.update(enabled=False)
    assert show(server)["next_check_at"] is None


def test_a_server_whose_key_is_lost_is_listed_and_shown() -> None:
    """E09: with the sentence that says what to do."""
    http_server(headers={"X-Key": "canary"})
    Server.objects.update(key_id="gone")
    assert json.loads(run("list", "--json").stdout)[0]["name"] == "github"
    result = run("show", "github", "--json")
    assert result.exit_code == 0
    assert "github cannot be decrypted" in result.stderr
    assert "headers" not in json.loads(result.stdout)
