"""OAuth clients and logins at the command line (issue 4, sections 2 and 3)."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from secrets_vault.services import set_secret
from servers.definition import OAuthClientData
from servers.models import Check, Login, Server
from servers.services import read_private, stored_client
from tests.fakes.login_rows import ACCESS, ISSUER, REFRESH, logged_in, oauth_server
from tests.fakes.server_rows import http_server, stdio_server
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.cli import mcp, mcp_add, mcp_oauth, mcp_set, mcp_show

pytestmark = pytest.mark.django_db

ADD = ("add", "a", "--url", "https://h.example/mcp")
CLIENT = ("--oauth-client-id", "ours", "--oauth-client-secret", "{{secret:S}}")


@pytest.fixture(autouse=True)
def _no_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mcp, mcp_add, mcp_oauth, mcp_set, mcp_show):
        monkeypatch.setattr(module, "setup", lambda: None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(mcp.command, arguments)


def shown(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(run("show", name, "--json").stdout)
    return facts


def test_a_server_is_added_with_the_operators_client() -> None:
    """P56-P58."""
    set_secret(actor=None, name="S", value="x")
    result = run(*ADD, *CLIENT, "--oauth-scopes", "read  write")
    assert (result.exit_code, result.stderr) == (0, "")
    server = Server.objects.get()
    assert stored_client(server) == OAuthClientData("person", "ours", None, "read write")
    assert read_private(server).client_secret == "{{secret:S}}"


def test_a_client_that_logs_in_by_itself_is_a_flag() -> None:
    set_secret(actor=None, name="S", value="x")
    assert run(*ADD, *CLIENT, "--oauth-machine").exit_code == 0
    assert Server.objects.get().oauth_kind == "machine"


def test_a_literal_client_secret_is_warned_of() -> None:
    """U30."""
    result = run(*ADD, "--oauth-client-id", "ours", "--oauth-client-secret", "canary")
    assert "--oauth-client-secret holds a literal value" in result.stderr
    assert "canary" not in result.output
    assert read_private(Server.objects.get()).client_secret == "canary"


def test_a_reference_to_no_secret_is_warned_of() -> None:
    assert "There is no secret named S" in run(*ADD, *CLIENT).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*ADD, "--oauth-client-secret", "s"), "needs the client ID"),
        ((*ADD, "--oauth-machine"), "needs a client ID"),
        (
            (*ADD, "--oauth-machine", "--oauth-client-id", "ours"),
            "--oauth-client-secret: A client that logs in by itself needs its client secret.",
        ),
        ((*ADD, "--oauth-scopes", 'a "b"'), "without quotes"),
        (("add", "a", *CLIENT, "--", "run"), "--oauth-… goes with --url"),
        (
            ("add", "a", "--oauth-machine", "--socket", "/s", "--uri", "http://localhost/"),
            "--oauth-… goes with --url",
        ),
    ],
)
def test_what_is_wrong_is_told(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert words in result.stderr
    assert not Server.objects.exists()


def test_the_client_is_changed_piece_by_piece() -> None:
    """What is not named stays, the secret unseen (E07)."""
    http_server("a", oauth=OAuthClientData(client_id="ours", secret="canary"))
    assert run("set", "a", "oauth_scopes=read write", "max_tools=5").exit_code == 0
    server = Server.objects.get()
    assert stored_client(server) == OAuthClientData("person", "ours", None, "read write")
    assert (read_private(server).client_secret, server.options) == ("canary", {"max_tools": 5})
    assert run("set", "a", "oauth_client_secret=s=1", "oauth_kind=machine").exit_code == 0
    server = Server.objects.get()
    assert (read_private(server).client_secret, server.oauth_kind) == ("s=1", "machine")
    assert server.options == {"max_tools": 5}


def test_an_empty_value_takes_a_piece_of_the_client_away() -> None:
    client = OAuthClientData("machine", "ours", "canary", "read")
    http_server("a", oauth=client)
    assert run("set", "a", "oauth_kind=", "oauth_client_secret=", "oauth_scopes=").exit_code == 0
    server = Server.objects.get()
    assert stored_client(server) == OAuthClientData(client_id="ours")
    assert read_private(server).client_secret == ""


def test_a_wrong_client_is_refused_and_nothing_changes() -> None:
    http_server("a", oauth=OAuthClientData(client_id="ours", secret="canary"))
    for setting in ("oauth_kind=cat", "oauth_scopes=a,"):
        result = run("set", "a", setting)
        assert result.exit_code == 1
        assert result.stderr.startswith(setting.partition("=")[0] + ": ")
        assert "canary" not in result.output
    assert Server.objects.get().version == 1


def test_a_server_that_is_a_command_takes_no_client() -> None:
    """It would be dropped without a word."""
    stdio_server("a")
    result = run("set", "a", "oauth_client_id=ours")
    assert (result.exit_code, "only servers over HTTP" in result.stderr) == (1, True)
    assert run("set", "a", "oauth_client_id=").exit_code == 0


def test_set_names_the_pieces_in_its_help() -> None:
    text = run("set", "--help").output
    assert all(name in text for name in mcp_oauth.SETTINGS)


def test_log_out_removes_the_login() -> None:
    """P52."""
    logged_in(oauth_server("a"))
    result = run("logout", "a")
    assert (result.exit_code, result.output) == (0, "Logged out of a.\n")
    assert not Login.objects.exists()
    assert AuditEntry.objects.get(action="server.logout").actor_name == "command line"
    assert run("logout", "a").output == "Nobody is logged in to a.\n"


def test_log_out_of_a_machine_says_that_it_comes_back() -> None:
    logged_in(oauth_server("a", oauth_kind="machine", oauth_client_id="ours"))
    assert "logs in again by itself" in run("logout", "a").output


def test_log_out_of_no_server_is_an_error() -> None:
    result = run("logout", "a")
    assert result.exit_code == 1
    assert "There is no MCP server named a" in result.stderr


def test_show_tells_of_the_login_without_its_tokens(alice: User) -> None:
    """P43, P46."""
    server = oauth_server("a", oauth_wanted="admin")
    logged_in(server, lasts=timedelta(hours=1), logged_in_by=alice)
    facts = shown("a")
    assert facts["oauth"] == {"advertised": True, "issuer": ISSUER, "missing_scopes": "admin"}
    assert (
        facts["login"].items()
        >= {
            "state": "usable",
            "issuer": ISSUER,
            "client": "registered",
            "by": "alice",
            "refreshes": True,
            "scopes": "read write",
        }.items()
    )
    text = run("show", "a").output
    assert "\nlogin              state: usable\n                   issuer: " in text
    assert re.search(r"\n {19}since: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\n", text)
    assert ACCESS not in text + json.dumps(facts)
    assert REFRESH not in text + json.dumps(facts)


def test_show_tells_of_the_client_without_its_secret() -> None:
    """P57: a reference is shown, a literal is not."""
    http_server("a", oauth=OAuthClientData(client_id="ours", secret="canary", scopes="read"))
    facts = shown("a")
    assert facts["oauth"] == {"kind": "person", "client_id": "ours", "scopes": "read"}
    assert facts["client_secret"] == "(stored, not shown)"
    assert facts["login"] == {}
    run("set", "a", "oauth_client_secret={{secret:S}}")
    assert shown("a")["client_secret"] == "{{secret:S}}"


def test_a_test_that_wants_a_login_says_where_to_log_in(settings: Any) -> None:
    """P31 at the command line."""
    server = oauth_server("a")
    check = Check(server=server, outcome=Check.Outcome.LOGIN_REQUIRED)
    assert mcp._login_words(check) == (
        f"Log in in a browser: {settings.OPTIONS.app_url}/servers/{server.pk}/"
    )


@pytest.mark.parametrize("why", ["nothing advertised", "stdio"])
def test_where_nobody_could_log_in_a_test_tells_of_tokens(why: str) -> None:
    server = stdio_server("a") if why == "stdio" else oauth_server("a", oauth_advertised=None)
    assert "token_ref" in mcp._login_words(Check(server=server))


def test_a_test_of_a_client_that_cannot_log_in_leads_to_its_settings() -> None:
    words = mcp._login_words(Check(server=oauth_server("a", oauth_kind="machine")))
    assert "umpteenth mcp set a oauth_client_id=ID" in words
    assert "token_ref" not in words
