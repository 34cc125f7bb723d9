"""`umpteenth mcp`: the same services as the MCP Servers pages, for the operator of the machine."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.output import emit_json, fail, is_terminal, json_option, table
from umpteenth.core.text import read_json

if TYPE_CHECKING:
    from servers.definition import Entry
    from servers.models import Check, Server

LOGIN_REQUIRED_STATUS = 3
# Names of headers and variables whose values are usually secret.
_SENSITIVE = re.compile(r"auth|token|key|secret|passw|cookie|credential", re.IGNORECASE)


@click.group()
def command() -> None:
    """MCP servers: add, test, call."""


class _Add(click.Command):
    """Tells who left out the `--` before the server's own command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = "--" not in args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = " Write the server's own command after --." if bare else ""
            raise click.UsageError(error.format_message() + hint, ctx) from None


@command.command(cls=_Add)
@click.argument("name")
@click.option("--url", help="Address of an HTTP server.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="With --url.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="With a command.")
@click.option("--description", default="", help="What it is for.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@json_option
def add(
    name: str,
    url: str | None,
    headers: tuple[str, ...],
    env: tuple[str, ...],
    description: str,
    program: tuple[str, ...],
    as_json: bool,
) -> None:
    """Register a server: NAME --url URL, or NAME -- COMMAND ARGS.

    Values may refer to secrets: --header 'Authorization: Bearer {{secret:GITHUB_TOKEN}}'.
    """
    if (url is None) == (not program):
        raise click.UsageError("Give either --url URL, or -- and a command.")
    if program and headers:
        raise click.UsageError("--header goes with --url; a command has --env.")
    if url is not None and env:
        raise click.UsageError("--env goes with a command; a URL has --header.")
    setup()
    from servers.definition import HTTP, STDIO, ServerData
    from servers.services import InvalidServer, create_server

    data = ServerData(
        name=name,
        transport=STDIO if url is None else HTTP,
        description=description,
        url=url or "",
        headers=_entries(headers, ":", "--header"),
        command=program[0] if program else "",
        args=program[1:],
        env=_entries(env, "=", "--env"),
    )
    try:
        server = create_server(actor=None, data=data)
    except InvalidServer as error:
        fail(str(error))
    _warn_of_literals(data.url, (*data.headers, *data.env))
    if as_json:
        emit_json(_summary(server))
    else:
        click.echo(f"Added {server.name}. Test it with: umpteenth mcp test {server.name}")


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List all servers."""
    setup()
    from servers.queries import find_servers

    rows = [_summary(server) for server in find_servers()]
    if as_json:
        emit_json(rows)
        return
    if not rows:
        click.echo("No MCP server yet. Add one with: umpteenth mcp add")
        return
    columns = ("name", "transport", "endpoint", "auth", "tools", "enabled", "state")
    table(
        ([_cut(_word(row[column])) for column in columns] for row in rows),
        [column.capitalize() for column in columns],
    )


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a server's settings, what its last test found, and its tools."""
    setup()
    server = _get(name)
    details = {**_summary(server), **_details(server)}
    if as_json:
        emit_json(details)
        return
    tools = details.pop("tool_list")
    for key, value in details.items():
        if value not in ("", None, [], {}):
            click.echo(f"{key.replace('_', ' '):18} {_word(value)}")
    _print_tools(tools)


@command.command()
@click.argument("name")
@json_option
def test(name: str, as_json: bool) -> None:
    """Connect to a server and list its tools.

    Exit status 0 connected, 1 failed, 3 login required. A worker does it if one is running;
    what none has claimed within 3 s is done here.
    """
    setup()
    server = _get(name)
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
@click.argument("tool")
@click.argument("arguments", default="{}")
@click.option("--timeout", type=click.FloatRange(min=0.1), help="Limit of the call in seconds.")
@json_option
def call(name: str, tool: str, arguments: str, timeout: float | None, as_json: bool) -> None:
    """Call a TOOL of a server with ARGUMENTS, a JSON object (- reads it from standard input).

    Exit status 1 where the tool reports an error.
    """
    values = _read_arguments(arguments)
    setup()
    result = _call(_get(name), tool, values, timeout)
    if as_json:
        emit_json(result)
    elif result["text"] and result["text"] == result["error"]:
        pass  # said once, below
    elif result["text"]:
        click.echo(result["text"])
    elif result["structured"] is not None:
        emit_json(result["structured"])
    if not result["ok"]:
        if as_json:
            sys.exit(1)
        fail(result["error"] or "The tool reported an error without a word.")


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Delete a server with its tools and tests; jobs lose it."""
    setup()
    from servers.services import delete_server
    from servers.usage import usages

    server = _get(name)
    used_by = ", ".join(f"{usage.kind} {usage.name}" for usage in usages(server))
    if not yes:
        if not is_terminal():
            raise click.UsageError(f"Say --yes to delete {name} without being asked.")
        click.confirm(f"Delete {name}{f', used by {used_by}' if used_by else ''}?", abort=True)
    delete_server(server, actor=None)
    click.echo(f"Removed {name}.{f' It was used by {used_by}.' if used_by else ''}")


def _get(name: str) -> Server:
    from servers.models import Server

    server = Server.objects.filter(name=name).first()
    if server is None:
        fail(f"There is no MCP server named {name}. See: umpteenth mcp list")
    return server


def _entries(texts: tuple[str, ...], separator: str, option: str) -> tuple[Entry, ...]:
    from servers.definition import Entry

    entries = []
    for text in texts:
        name, found, value = text.partition(separator)
        if not found:
            example = "'Authorization: Bearer …'" if separator == ":" else "NAME=VALUE"
            raise click.UsageError(f"{option} is written {option} {example}.")
        entries.append(Entry(name.strip(), value))
    return tuple(entries)


def _warn_of_literals(url: str, entries: tuple[Entry, ...]) -> None:
    """U30: literal tokens are accepted, and people learn where they are and what is better."""
    from servers.definition import refers, split_query

    _, query = split_query(url)
    found = ["the query of the address"] if query and not refers(query) else []
    found += [
        entry.name
        for entry in entries
        if entry.value and _SENSITIVE.search(entry.name) and not refers(entry.value)
    ]
    for what in found:
        click.echo(
            f"Warning: {what} holds a literal value. It is stored encrypted in {_database()} and "
            "stays in your shell's history. Better: umpteenth secret set NAME, and write "
            "{{secret:NAME}} in its place.",
            err=True,
        )


def _database() -> str:
    from django.conf import settings

    database = settings.DATABASES["default"]
    host = database.get("HOST")
    return f"the database {database['NAME']}" + (f" on {host}" if host else "")


def _summary(server: Server) -> dict[str, Any]:
    from servers.status import auth_status

    return {
        "id": str(server.pk),
        "name": server.name,
        "transport": server.transport,
        "endpoint": server.endpoint,
        "enabled": server.enabled,
        "auth": auth_status(server).value,
        "tools": server.tool_count if server.tested_at else None,
        "tested_at": server.tested_at.isoformat() if server.tested_at else None,
        "state": server.state,
    }


def _details(server: Server) -> dict[str, Any]:
    return {
        "description": server.description,
        **_private_details(server),
        "secrets": server.secret_names,
        "last_error": server.last_error,
        "protocol_version": server.protocol_version,
        "server_name": server.server_name,
        "server_version": server.server_version,
        "instructions": server.instructions,
        "tool_list": _tools(server),
    }


def _private_details(server: Server) -> dict[str, Any]:
    """Headers and variables by name; only references are shown."""
    from secrets_vault.errors import SecretError
    from servers.definition import refers
    from servers.services import read_private

    def shown(value: str) -> str:
        return value if refers(value) else "(stored, not shown)"

    try:
        private = read_private(server)
    except SecretError as error:
        click.echo(f"Warning: {error}", err=True)
        return {}
    return {
        "headers": {name: shown(value) for name, value in private.headers},
        "env": {name: shown(value) for name, value in private.env},
        "has_query": bool(private.query),
    }


def _tools(server: Server) -> list[dict[str, Any]]:
    fields = ("name", "title", "description", "read_only", "destructive", "open_world")
    return list(server.tools.values(*fields))


def _follow(server: Server, *, quiet: bool) -> Check:
    """Ask for a check and wait for its end; steps go to standard error as they happen."""
    from servers.checks import cancel_check, request_check
    from servers.following import CheckFollower

    check = request_check(server, actor=None)
    follower = CheckFollower(check.pk)
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
        "tools": _tools(server) if connected else [],
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
        _print_tools(result["tools"])
        for warning in result["warnings"]:
            click.echo(f"Warning: {warning}", err=True)
        return
    head = {"login_required": "Login required"}.get(result["outcome"], "Connection failed")
    lines = [f"{head} after {duration}: {result['error']}", check.hint]
    if result["outcome"] == "login_required":
        lines.append("Add a header: Authorization: Bearer {{secret:NAME}}")
    if check.exit_code is not None:
        lines.append(f"Exit code {check.exit_code}")
    if check.stderr_tail.strip():
        lines += ["End of standard error:", check.stderr_tail.rstrip()]
    click.echo("\n".join(line for line in lines if line), err=True)


def _print_tools(tools: list[dict[str, Any]]) -> None:
    for tool in tools:
        marks = [
            word
            for word, key in (("read-only", "read_only"), ("destructive", "destructive"))
            if tool[key]
        ]
        head = f"  {tool['name']}" + (f" [{', '.join(marks)}]" if marks else "")
        first_line = (tool["description"] or "").strip().partition("\n")[0]
        click.echo(head + (f": {first_line}" if first_line else ""))


def _read_arguments(text: str) -> dict[str, Any]:
    if text == "-":
        text = sys.stdin.read()
    try:
        value = read_json(text)
    except ValueError as error:
        raise click.UsageError(f"ARGUMENTS {error}.") from None
    if not isinstance(value, dict):
        raise click.UsageError('The arguments must be a JSON object such as {"message": "hi"}.')
    return value


def _call(
    server: Server, tool: str, arguments: dict[str, Any], timeout: float | None
) -> dict[str, Any]:
    """{ok, text, structured, error, duration_ms}; a server that cannot be used is an error."""
    import asyncio
    import time

    from secrets_vault.errors import SecretError
    from servers.calling import call_once
    from servers.mcp.types import ServerError

    began = time.monotonic()
    try:
        result = asyncio.run(call_once(server, tool, arguments, timeout=timeout))
    except (SecretError, ServerError) as error:
        words = " ".join(part for part in (str(error), getattr(error, "hint", "")) if part)
        return {
            "ok": False,
            "text": "",
            "structured": None,
            "error": words,
            "duration_ms": round((time.monotonic() - began) * 1000, 1),
        }
    return {
        "ok": result.ok,
        "text": result.text,
        "structured": result.structured,
        "error": result.error or None,
        "duration_ms": round(result.duration_ms, 1),
    }


def _cut(text: str, limit: int = 60) -> str:
    """Cut in the middle: both ends of an address matter."""
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]}…{text[-(limit // 3) + 1 :]}"


def _word(value: Any) -> str:
    if value is None:
        return "not tested"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return str(value)
