"""`umpteenth mcp` without a running server."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from secrets_vault.services import set_secret
from servers import calling, checks, following
from servers.mcp.types import Answer, Question
from servers.models import Check, Server
from servers.services import read_private
from tests.fakes.mcp_helpers import FAKE
from tests.fakes.mcp_server import TOOLS, Behaviour
from tests.fakes.server_rows import after_success, behaviour_argument, http_server
from tests.fakes.spawner import BareSpawner
from umpteenth.cli import asking, mcp, mcp_add, mcp_call, mcp_show

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No real sandbox, no broker, and nobody waits for a worker."""
    for module in (mcp, mcp_add, mcp_call, mcp_show):
        monkeypatch.setattr(module, "setup", lambda: None)
    monkeypatch.setattr(checks, "_hint", lambda pk: None)
    monkeypatch.setattr(following, "CLAIM_AFTER", 0.0)
    monkeypatch.setattr(checks, "get_spawner", lambda **_: BareSpawner())
    monkeypatch.setattr(calling, "get_spawner", lambda **_: BareSpawner())


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(mcp.command, arguments, input=text)


def add_fake(behaviour: Behaviour | None = None, *options: str) -> None:
    given = behaviour_argument(behaviour)
    program = [sys.executable, "-I", "-S", "-X", "utf8", str(FAKE), given]
    assert run("add", "fake", *options, "--", *program).exit_code == 0


def test_a_command_is_added_with_its_arguments_as_they_are() -> None:
    result = run("add", "everything", "--env", "A=b=c", "--", "npx", "-y", "--json", "pkg")
    server = Server.objects.get()
    assert result.exit_code == 0
    assert (server.command, server.args) == ("npx", ["-y", "--json", "pkg"])
    assert read_private(server).env == (("A", "b=c"),)


def test_an_address_is_added_and_its_query_is_stored_unseen() -> None:
    result = run("add", "exa", "--url", "https://h.example/mcp?key=canary-1", "--json")
    assert json.loads(result.stdout)["endpoint"] == "https://h.example/mcp"
    assert "canary" not in result.output
    assert read_private(Server.objects.get()).query == "key=canary-1"
    assert "canary" not in run("show", "exa", "--json").output


def test_a_literal_token_is_accepted_with_a_warning() -> None:
    """U30: it says where the value is stored and how to use a secret instead."""
    result = run("add", "a", "--url", "https://h.example/", "--header", "Authorization: Bearer tok")
    assert result.exit_code == 0
    assert "Warning: Authorization holds a literal value" in result.stderr
    assert "test.sqlite3" in result.stderr
    assert "umpteenth secret set" in result.stderr
    assert "tok" not in result.stderr.replace("token", "")


def test_a_reference_is_no_reason_to_warn() -> None:
    for name in ("TOKEN", "K"):
        set_secret(actor=None, name=name, value="value-of-it")
    header = "Authorization: Bearer {{secret:TOKEN}}"
    result = run("add", "a", "--url", "https://h.example/?k={{secret:K}}", "--header", header)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert run("add", "b", "--env", "MODE=fast", "--", "server").stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "a"),
        ("add", "a", "--url", "https://h.example/", "--", "npx"),
        ("add", "a", "--url", "https://h.example/", "--env", "A=b"),
        ("add", "a", "--header", "A: b", "--", "npx"),
        ("add", "a", "--url", "https://h.example/", "--header", "no colon"),
        ("add", "a", "--env", "NOTHING", "--", "npx"),
        ("call", "a", "echo", "{"),
        ("call", "a", "echo", "[1]"),
        ("remove", "a"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    http_server("a") if arguments[0] in ("call", "remove") else None
    assert run(*arguments).exit_code == 2


def test_a_command_without_two_dashes_before_it_is_told_of_them() -> None:
    assert "after --." in run("add", "a", "npx", "-y", "some-package").stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "x", "--", "npx", "-y"), "npx needs a package to start: name it as an argument"),
        (("add", "a b", "--", "server"), "can hold only letters"),
        (("add", "GITHUB", "--", "server"), "exists already"),
        (("add", "x", "--url", "https://me:pw@h/"), "user name or password"),
        (("show", "nowhere"), "no MCP server named nowhere"),
        (("test", "nowhere"), "no MCP server named nowhere"),
        (("call", "nowhere", "echo"), "no MCP server named nowhere"),
        (("remove", "nowhere", "--yes"), "no MCP server named nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exits_with_1(
    arguments: tuple[str, ...], words: str
) -> None:
    http_server()
    result = run(*arguments)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_the_list_is_a_json_document() -> None:
    assert json.loads(run("list", "--json").stdout) == []
    assert "No MCP server yet" in run("list").stdout
    server = after_success(http_server(), "echo", "add")
    assert server.tested_at is not None
    assert json.loads(run("list", "--json").stdout) == [
        {
            "id": str(server.pk),
            "name": "github",
            "transport": "http",
            "endpoint": "https://api.example.org/mcp",
            "enabled": True,
            "auth": "none",
            "tools": 2,
            "tested_at": server.tested_at.isoformat(timespec="seconds"),
            "state": "connected",
        }
    ]
    assert "github" in run("list").stdout


def test_show_names_headers_and_shows_only_references() -> None:
    after_success(http_server(headers={"X-Key": "canary", "Y": "{{secret:A}}"}), "echo")
    shown = json.loads(run("show", "github", "--json").stdout)
    assert shown["headers"] == {"X-Key": "(stored, not shown)", "Y": "{{secret:A}}"}
    assert [tool["name"] for tool in shown["tool_list"]] == ["echo"]
    assert "echo" in run("show", "github").stdout


@pytest.mark.django_db(transaction=True)
def test_a_test_is_done_here_where_no_worker_takes_it() -> None:
    """U32: exit status 0, and the document of the design."""
    add_fake()
    result = run("test", "fake", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document.pop("duration_ms") > 0
    tools = {tool["name"]: tool for tool in document.pop("tools")}
    assert len(tools) == len(TOOLS)
    assert tools["echo"] == {
        "name": "echo",
        "title": "",
        "description": "Returns its arguments",
        "read_only": True,
        "destructive": None,
        "open_world": None,
    }
    assert document == {
        "server": "fake",
        "outcome": "connected",
        "error": None,
        "protocol_version": "2025-11-25",
        "transport": "stdio",
        "auth": "none",
        "warnings": [],
    }


@pytest.mark.django_db(transaction=True)
def test_a_disabled_server_can_be_tested() -> None:
    """A person's test is the one thing that still contacts it."""
    add_fake()
    Server.objects.update(enabled=False)
    assert run("test", "fake").exit_code == 0


@pytest.mark.django_db(transaction=True)
def test_a_failed_test_exits_with_1_and_shows_stderr() -> None:
    add_fake(Behaviour(start="die", exit_code=3, stderr="KEY is required"))
    result = run("test", "fake")
    assert result.exit_code == 1
    assert "Connection failed after" in result.stderr
    assert "Exit code 3" in result.stderr
    assert "KEY is required" in result.stderr
    document = json.loads(run("test", "fake", "--json").stdout)
    assert document["outcome"] == "failed"
    assert document["tools"] == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("at_a_terminal", [True, False])
def test_a_test_at_a_terminal_can_ask_the_person(
    at_a_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 5 of the issue: it is done here and no worker is told; elsewhere nobody is asked."""

    async def ask(question: Question) -> Answer:
        return Answer("decline")

    seen: list[Any] = []
    hinted: list[Any] = []

    def run_check(pk: Any, *, ask: Any) -> None:
        seen.append(ask)
        Check.objects.filter(pk=pk).update(status="done", outcome="connected")

    monkeypatch.setattr(asking, "terminal_asker", lambda name: ask if at_a_terminal else None)
    monkeypatch.setattr(following, "run_check", run_check)
    monkeypatch.setattr(checks, "_hint", hinted.append)
    http_server("a")
    assert run("test", "a").exit_code == 0
    assert seen == [ask if at_a_terminal else None]
    assert len(hinted) == (0 if at_a_terminal else 1)


def test_login_required_exits_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    server = http_server()

    def as_a_worker_did(server: Server, *, quiet: bool) -> Check:
        return Check.objects.create(
            server=server,
            connection_version=1,
            status="done",
            outcome="login_required",
            error="401 Unauthorized",
            hint="Add an Authorization header under Headers.",
            warnings=["token_ref @NOWHERE is left out"],
            notices=["The server asked “Who?”; declined."],
        )

    monkeypatch.setattr(mcp, "_follow", as_a_worker_did)
    result = run("test", server.name)
    assert result.exit_code == 3
    assert "umpteenth mcp set github token_ref=@TOKEN" in result.stderr
    assert "Authorization: Bearer {{secret:NAME}}" in result.stderr
    assert "under Headers" not in result.stderr  # there is no such place here
    assert "Warning: token_ref @NOWHERE is left out" in result.stderr  # it may be why (U27)
    assert "Note: The server asked “Who?”; declined." in result.stderr
    assert run("test", server.name, "--json").exit_code == 3


@pytest.mark.django_db(transaction=True)
def test_a_call_prints_the_answer() -> None:
    add_fake()
    document = json.loads(run("call", "fake", "echo", '{"a": "ü"}', "--json").stdout)
    assert document["ok"] is True
    assert json.loads(document["text"]) == {"a": "ü"}
    assert set(document) == {"ok", "text", "structured", "error", "duration_ms"}
    assert run("call", "fake", "echo", "-", text='{"b": 1}').stdout.strip() == '{"b": 1}'


@pytest.mark.parametrize("seconds", ["nan", "-nan", "0", "-1", "soon"])
def test_a_limit_of_a_call_that_is_no_time_is_refused(seconds: str) -> None:
    result = run("call", "fake", "echo", "{}", f"--timeout={seconds}")
    assert result.exit_code == 2
    assert "Invalid value for '--timeout'" in result.stderr


@pytest.mark.django_db(transaction=True)
def test_a_call_that_the_tool_refuses_exits_with_1() -> None:
    """P74."""
    add_fake()
    plain = run("call", "fake", "fail", "{}")
    assert plain.exit_code == 1
    assert plain.stderr.strip()
    assert plain.stdout == ""  # the words of the tool are said once
    document = run("call", "fake", "fail", "{}", "--json")
    assert document.exit_code == 1
    assert json.loads(document.stdout)["ok"] is False


@pytest.mark.django_db(transaction=True)
def test_a_call_to_a_server_that_does_not_start_says_why() -> None:
    add_fake(Behaviour(start="die", stderr="KEY is required"))
    result = run("call", "fake", "echo", "{}", "--json")
    assert result.exit_code == 1
    assert "exit code 1" in json.loads(result.stdout)["error"]


@pytest.mark.django_db(transaction=True)
def test_a_secret_in_an_answer_is_masked() -> None:
    set_secret(actor=None, name="KEY", value="canary-value-1")
    add_fake(None, "--env", "GIVEN={{secret:KEY}}")
    result = run("call", "fake", "environ", "{}")
    assert "[secret KEY]" in result.stdout
    assert "canary" not in result.output


def test_removing_asks_unless_told() -> None:
    server = http_server()
    assert run("remove", server.name).exit_code == 2
    assert run("remove", server.name, "--yes").stdout == "Removed github.\n"
    assert not Server.objects.exists()


def test_the_endpoint_in_the_table_is_cut_in_the_middle() -> None:
    http_server(url="https://h.example/" + "x" * 200 + "/the-end")
    line = run("list").stdout.splitlines()[1]
    assert "…" in line
    assert "/the-end" in line


def test_commands_take_any_options_of_the_added_program() -> None:
    result: Any = run("add", "git", "--", "uvx", "mcp-server-git", "--repository", "/x")
    assert result.exit_code == 0
    assert Server.objects.get().args == ["mcp-server-git", "--repository", "/x"]
