"""`umpteenth mcp show`: settings, what holds and why, what was found, and how it goes."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_words import get_server, print_tools, summary, word
from umpteenth.cli.output import emit_json, json_option, table

if TYPE_CHECKING:
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
    from servers.facts import details

    facts = {**summary(server), **_private_details(server), **details(server)}
    if as_json:
        emit_json(facts)
        return
    for key, value in facts.items():
        if key not in _NO_LINES and value not in ("", None, [], {}):
            for label, line in zip_longest([key.replace("_", " ")], _lines(value), fillvalue=""):
                click.echo(f"{label:18} {line}")
    click.echo()
    table(
        ([limit["name"], limit["words"], limit["source"]] for limit in facts["limits"]),
        ["Option", "Value", "From"],
    )
    if facts["tool_list"]:
        click.echo("\nTools")
        print_tools(facts["tool_list"])


def _lines(value: Any) -> list[str]:
    """What has parts of its own, such as the login, has a line for each."""
    if isinstance(value, dict):
        return [f"{key}: {word(item)}" for key, item in value.items()]
    return [word(value)]


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
        "client_secret": shown(private.client_secret) if private.client_secret else "",
    }
