"""`umpteenth mcp set`: options of a server that is there, so that its attachments stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_add import read_setting
from umpteenth.cli.mcp_oauth import SETTINGS, changed_client, problem_words
from umpteenth.cli.mcp_words import get_server, summary
from umpteenth.cli.output import emit_json, fail, json_option


@click.command("set")
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="OPTION=VALUE...")
@json_option
def set_options(name: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Change options of a server; OPTION= alone brings its default back.

    umpteenth mcp add --help lists the options, umpteenth mcp show NAME what holds now. The OAuth
    client has oauth_kind (person, machine), oauth_client_id, oauth_client_secret, oauth_scopes.
    """
    changes = dict(_setting(text) for text in settings)
    setup()
    from servers.services import (
        InvalidServer,
        OutdatedEdit,
        ServerGone,
        current_data,
        update_server,
    )
    from servers.status import token_problem

    server = get_server(name)
    data = current_data(server)
    options = {**(data.options or {}), **changes}
    options = {key: value for key, value in options.items() if value != "" and key not in SETTINGS}
    data = replace(data, options=options, oauth=changed_client(server, changes))
    try:
        saved = update_server(server, actor=None, data=data, version=server.version)
    except InvalidServer as error:
        fail(problem_words(error, as_options=False))
    except (OutdatedEdit, ServerGone) as error:
        fail(str(error))
    if "token_ref" in changes and (problem := token_problem(saved)):
        remedy = f"Create it with: umpteenth secret set {saved.token_name}"
        click.echo(f"Warning: {problem} {remedy}", err=True)
    if as_json:
        emit_json({**summary(saved), "options": saved.options})
    else:
        untested = saved.connection_version != server.connection_version
        click.echo(f"Changed {name}.{' Test it again.' if untested else ''}")


def _setting(text: str) -> tuple[str, Any]:
    """An empty value is one that is taken away."""
    from servers.options import BY_NAME

    name, equals, value = (part.strip() for part in text.partition("="))
    if equals and (name in SETTINGS or (not value and name in BY_NAME)):
        return name, value
    return read_setting(text)
