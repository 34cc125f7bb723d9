"""`umpteenth mcp clear-home`: what a stdio server keeps on this machine goes."""

from __future__ import annotations

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_words import get_server
from umpteenth.cli.output import emit_json, fail, json_option


@click.command("clear-home")
@click.argument("name")
@json_option
def clear_home(name: str, as_json: bool) -> None:
    """Delete the packages that a stdio server fetched and whatever else is in its home.

    On this machine; each machine with a worker has homes of its own.
    """
    setup()
    from servers import homes

    server = get_server(name)
    kept = homes.homes_for(server)
    if kept is None:
        fail(f"{name} has no home: only servers that are started have one.")
    try:
        freed = homes.clear_home(server, actor=None) or 0
    except homes.CannotClear as error:
        fail(str(error))
    kept.remove_cleared()
    if as_json:
        emit_json({"name": name, "freed_bytes": freed})
    else:
        click.echo(f"Cleared the home of {name}: {freed / 1024**2:,.1f} MiB.")
