"""`umpteenth mcp logout`, and the OAuth client of a server in `add`, `set` and `show`.

Logging in is done on the page MCP Servers: it takes a browser, and the person who sits at it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_words import get_server
from umpteenth.cli.output import fail
from umpteenth.cli.up import running_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers.definition import OAuthClientData
    from servers.models import Server
    from servers.services import InvalidServer

F = TypeVar("F", bound="Callable[..., Any]")

# As `mcp set` calls them, and the fields that they are.
SETTINGS = {
    "oauth_kind": "kind",
    "oauth_client_id": "client_id",
    "oauth_client_secret": "secret",
    "oauth_scopes": "scopes",
}


@click.command()
@click.argument("name")
def logout(name: str) -> None:
    """Remove the OAuth login of a server; its tokens are taken back where the provider can."""
    setup()
    from servers.definition import MACHINE
    from servers.oauth.ending import log_out

    server = get_server(name)
    if not log_out(server, actor=None):
        click.echo(f"Nobody is logged in to {name}.")
        return
    again = " It logs in again by itself with its next use." * (server.oauth_kind == MACHINE)
    click.echo(f"Logged out of {name}.{again}")


def client_options(command: F) -> F:
    """The options of `mcp add`, in the order in which they are listed."""
    options = (
        click.option("--oauth-client-id", metavar="ID", help="Of your own client at the provider."),
        click.option("--oauth-client-secret", metavar="VALUE", help="Better: {{secret:NAME}}."),
        click.option("--oauth-scopes", metavar="'A B'", help="In place of those the server wants."),
        click.option("--oauth-machine", is_flag=True, help="The client logs in by itself."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def client_of(given: dict[str, Any]) -> OAuthClientData | None:
    """What `mcp add` was given; None: nothing."""
    from servers.definition import MACHINE, OAuthClientData

    values = {
        "client_id": given["oauth_client_id"],
        "secret": given["oauth_client_secret"],
        "scopes": given["oauth_scopes"],
        "kind": MACHINE if given["oauth_machine"] else None,
    }
    typed = {name: value for name, value in values.items() if value is not None}
    return OAuthClientData(**typed) if typed else None


def changed_client(server: Server, changes: dict[str, str]) -> OAuthClientData | None:
    """The client of a server with the changes of `mcp set`; None where there are none."""
    from servers.definition import HTTP, PERSON
    from servers.services import stored_client

    values = {SETTINGS[name]: value for name, value in changes.items() if name in SETTINGS}
    if any(values.values()) and server.transport != HTTP:
        fail(f"{server.name} has no login: only servers over HTTP have one.")
    if "kind" in values:
        values["kind"] = values["kind"] or PERSON
    return replace(stored_client(server), **values) if values else None


def problem_words(error: InvalidServer, *, as_options: bool) -> str:
    """What is wrong, and with what of the client, as `mcp add` spells it or `mcp set`."""
    field = next(iter(error.errors))
    if not field.startswith("oauth."):
        return str(error)
    setting = field.replace(".", "_")
    option = f"--{setting.replace('_', '-')}"
    return f"{option if as_options else setting}: {error}"


def login_words(server: Server) -> str:
    """Where to log in, for a server that wants it; empty where nobody could."""
    from django.conf import settings
    from django.urls import reverse

    from servers.oauth.login import setup_problem

    if not server.oauth_advertised or setup_problem(server):
        return ""
    page = reverse("servers:detail", args=[server.pk])
    options = settings.OPTIONS
    return f"Log in in a browser: {running_address(options.data_dir) or options.app_url}{page}"
