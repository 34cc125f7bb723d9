"""`umpteenth mcp show`: settings, what holds and why, what was found, and how it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_words import get_server, print_tools, summary, tools_of, word
from umpteenth.cli.output import emit_json, json_option, table

if TYPE_CHECKING:
    from datetime import datetime

    from servers.models import Server

# Told elsewhere: in the tables after the lines, or in other words.
_NO_LINES = ("options", "limits", "tool_list")


@click.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a server's settings and limits, its health, what its last test found, its tools."""
    setup()
    server = get_server(name)
    details = {**summary(server), **_details(server)}
    if as_json:
        emit_json(details)
        return
    for key, value in details.items():
        if key not in _NO_LINES and value not in ("", None, [], {}):
            click.echo(f"{key.replace('_', ' '):18} {word(value)}")
    click.echo()
    table(
        ([limit["name"], limit["words"], limit["source"]] for limit in details["limits"]),
        ["Option", "Value", "From"],
    )
    if details["tool_list"]:
        click.echo("\nTools")
        print_tools(details["tool_list"])


def _details(server: Server) -> dict[str, Any]:
    from servers.status import credentials_words

    tools = _tools(server)
    return {
        "description": server.description,
        "socket_path": server.socket_path,
        **_private_details(server),
        "secrets": sorted({*server.secret_names, *filter(None, [server.token_name])}),
        "credentials": credentials_words(server),
        "options": server.options,
        "limits": _limits(server),
        "policy": _policy(server),
        "restricted_tools": sum(bool(tool["restricted"]) for tool in tools),
        **_health(server),
        "found_how": server.found_how,
        "found_transport": str(server.remembered.get("transport", "")),
        "protocol_version": server.protocol_version,
        "server_name": server.server_name,
        "server_version": server.server_version,
        "instructions": server.instructions,
        "tool_list": tools,
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


def _limits(server: Server) -> list[dict[str, Any]]:
    from servers.effective import in_force

    return [
        {"name": one.name, "value": one.value, "words": one.words, "source": one.source}
        for one in in_force(server.options, server.transport)
    ]


def _policy(server: Server) -> dict[str, Any]:
    from servers.policy import OPEN

    return {"trust": OPEN, **server.policy}


def _tools(server: Server) -> list[dict[str, Any]]:
    """A56: each with what the policy says of it; empty where every run may use it."""
    from servers.policy import Policy

    policy = Policy.from_json(server.policy)
    light = server.tools.defer("input_schema", "output_schema")
    restrictions = {tool.name: policy.restriction(tool) for tool in light}
    return [{**tool, "restricted": restrictions[tool["name"]]} for tool in tools_of(server)]


def _health(server: Server) -> dict[str, Any]:
    """Last success and last try, the error in the server's words, and when health looks again."""
    return {
        "checked_at": _moment(server.checked_at),
        "last_error": server.last_error,
        "failures": server.failures,
        "next_check_at": _moment(server.next_check_at) if server.enabled else None,
    }


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
