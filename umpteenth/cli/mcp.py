"""`umpteenth mcp`: the same services as the MCP Servers pages, for the operator of the machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_add import add
from umpteenth.cli.mcp_call import call
from umpteenth.cli.mcp_home import clear_home
from umpteenth.cli.mcp_oauth import login_words, logout
from umpteenth.cli.mcp_set import set_options
from umpteenth.cli.mcp_show import show
from umpteenth.cli.mcp_switch import disable, enable
from umpteenth.cli.mcp_words import cut, get_server, print_tools, summary, tools_of, word
from umpteenth.cli.output import emit_json, is_terminal, json_option, table

if TYPE_CHECKING:
    from servers.models import Check, Server

LOGIN_REQUIRED_STATUS = 3


@click.group()
def command() -> None:
    """MCP servers: add, test, call, switch on and off.

    Name, address, headers, variables and tool policy of one that is there change on its page.
    People log in on its page, too; the test of a server that wants a login names it.
    """


command.add_command(add)
command.add_command(show)
command.add_command(set_options)
command.add_command(call)
command.add_command(logout)
command.add_command(enable)
command.add_command(disable)
command.add_command(clear_home)


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List all servers."""
    setup()
    from servers.queries import find_servers

    rows = [summary(server) for server in find_servers()]
    if as_json:
        emit_json(rows)
        return
    if not rows:
        click.echo("No MCP server yet. Add one with: umpteenth mcp add")
        return
    columns = ("name", "transport", "endpoint", "auth", "tools", "enabled", "state")
    table(
        ([cut(word(row[column])) for column in columns] for row in rows),
        [column.capitalize() for column in columns],
    )


@command.command()
@click.argument("name")
@json_option
def test(name: str, as_json: bool) -> None:
    """Connect to a server and list its tools.

    Exit status 0 connected, 1 failed, 3 login required. On a terminal it is done here, and what
    the server asks is put to you. Elsewhere a worker does it if one is running; what none has
    claimed within 3 s is done here.
    """
    setup()
    server = get_server(name)
    check = _follow(server, quiet=as_json)
    result = _check_result(server, check)
    if as_json:
        emit_json(result)
    else:
        _print_result(result, check)
    if check.outcome == check.Outcome.LOGIN_REQUIRED:
        sys.exit(LOGIN_REQUIRED_STATUS)
    if check.outcome != check.Outcome.CONNECTED:
        sys.exit(1)


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Delete a server with its tools and tests; jobs lose it."""
    setup()
    from servers.services import delete_server
    from servers.usage import usages

    server = get_server(name)
    used_by = ", ".join(f"{usage.kind} {usage.name}" for usage in usages(server))
    if not yes:
        if not is_terminal():
            raise click.UsageError(f"Say --yes to delete {name} without being asked.")
        click.confirm(f"Delete {name}{f', used by {used_by}' if used_by else ''}?", abort=True)
    delete_server(server, actor=None)
    click.echo(f"Removed {name}.{f' It was used by {used_by}.' if used_by else ''}")


def _follow(server: Server, *, quiet: bool) -> Check:
    """Ask for a check and wait for its end; steps go to standard error as they happen.

    Where a person sits at the terminal, the check is done here, so that the server can ask them.
    """
    from servers.checks import cancel_check, request_check
    from servers.following import CheckFollower
    from umpteenth.cli.asking import terminal_asker

    ask = terminal_asker(server.name)
    check = request_check(server, actor=None, hinted=ask is None)
    follower = CheckFollower(check.pk, ask)
    try:
        for label in follower.steps():
            if not quiet:
                click.echo(f"{label}…", err=True)
    except KeyboardInterrupt:
        cancel_check(check)
        follower.wait_for_end()
        raise
    return follower.check


def _check_result(server: Server, check: Check) -> dict[str, Any]:
    from servers.status import auth_status

    server.refresh_from_db()
    connected = check.outcome == check.Outcome.CONNECTED
    began = check.started_at or check.created_at
    ended = check.finished_at or began
    return {
        "server": server.name,
        "outcome": check.outcome if check.outcome != check.Outcome.CANCELLED else "failed",
        "error": _error_words(check),
        "duration_ms": round((ended - began).total_seconds() * 1000, 1),
        "protocol_version": check.protocol_version or None,
        "transport": check.transport or server.transport,
        "auth": auth_status(server).value,
        "tools": tools_of(server) if connected else [],
        "warnings": check.warnings,
    }


def _error_words(check: Check) -> str | None:
    if check.outcome == check.Outcome.CANCELLED:
        return "cancelled"
    return check.error or None


def _print_result(result: dict[str, Any], check: Check) -> None:
    from umpteenth.core.templatetags.ui import duration_words

    duration = duration_words(result["duration_ms"] / 1000)
    if result["outcome"] == "connected":
        click.echo(f"Connected in {duration}: {len(result['tools'])} tools")
        print_tools(result["tools"])
    else:
        _print_failure(result, check, duration)
    for warning in result["warnings"]:
        click.echo(f"Warning: {warning}", err=True)
    for notice in check.notices:
        click.echo(f"Note: {notice}", err=True)


def _login_words(check: Check) -> str:
    """The same as the hint says, in commands."""
    from servers.definition import MACHINE

    name = check.server.name
    check.server.refresh_from_db()
    if words := login_words(check.server):
        return words
    if check.server.oauth_kind == MACHINE:
        return (
            f"Correct the client: umpteenth mcp set {name} oauth_client_id=ID "
            "'oauth_client_secret={{secret:NAME}}'"
        )
    return (
        "Send a token: umpteenth secret set TOKEN, then: "
        f"umpteenth mcp set {name} token_ref=@TOKEN\n"
        "Or add the server again with: --header 'Authorization: Bearer {{secret:NAME}}'"
    )


def _print_failure(result: dict[str, Any], check: Check, duration: str) -> None:
    head = {"login_required": "Login required"}.get(result["outcome"], "Connection failed")
    lines = [f"{head} after {duration}: {result['error']}"]
    lines.append(_login_words(check) if result["outcome"] == "login_required" else check.hint)
    if check.exit_code is not None:
        lines.append(f"Exit code {check.exit_code}")
    if check.stderr_tail.strip():
        lines += ["End of standard error:", check.stderr_tail.rstrip()]
    click.echo("\n".join(line for line in lines if line), err=True)
