"""`umpteenth mcp enable` and `disable`: the switch of a server's page; attachments stay."""

from __future__ import annotations

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_words import get_server, summary
from umpteenth.cli.output import emit_json, json_option


@click.command()
@click.argument("name")
@json_option
def enable(name: str, as_json: bool) -> None:
    """Let runs use a server again, and have it checked."""
    _switch(name, as_json, enabled=True)


@click.command()
@click.argument("name")
@json_option
def disable(name: str, as_json: bool) -> None:
    """Keep a server with its attachments, but let nothing call it; only mcp test reaches it."""
    _switch(name, as_json, enabled=False)


def _switch(name: str, as_json: bool, *, enabled: bool) -> None:
    setup()
    from servers.services import set_enabled

    server = get_server(name)
    changed = set_enabled(server, actor=None, enabled=enabled)
    if as_json:
        emit_json(summary(server))
        return
    done = "enabled" if enabled else "disabled"
    click.echo(f"{done.capitalize()} {name}." if changed else f"{name} was {done} already.")
