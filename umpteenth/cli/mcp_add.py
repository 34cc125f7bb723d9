"""`umpteenth mcp add`: a server over HTTP, over a Unix socket, or as a command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_oauth import client_of, client_options, problem_words
from umpteenth.cli.mcp_words import summary
from umpteenth.cli.output import emit_json, fail, json_option

if TYPE_CHECKING:
    from servers.definition import Entry, ServerData
    from servers.models import Server

# Names of headers and variables whose values are usually secret.
_SENSITIVE = re.compile(r"auth|token|key|secret|passw|cookie|credential", re.IGNORECASE)


class _Add(click.Command):
    """Tells who left out the `--` before the server's own command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = "--" not in args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = " Write the server's own command after --." if bare else ""
            raise click.UsageError(error.format_message() + hint, ctx) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every option that `--set` takes."""
        from servers.effective import default_words
        from servers.options import CATALOGUE

        rows = [
            (option.name, f"{option.meaning} Default: {default_words(option)}.")
            for option in CATALOGUE
        ]
        with formatter.section("Options of --set"):
            formatter.write_dl(rows, col_max=26)


@click.command(cls=_Add)
@click.argument("name")
@click.option("--url", help="Address of an HTTP server.")
@click.option("--socket", metavar="PATH", help="Unix socket of a server; with --uri.")
@click.option("--uri", help="Address used over the socket, e.g. http://localhost/mcp.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Over HTTP.")
@click.option("--token-ref", metavar="@NAME", help="A secret that is sent as bearer token.")
@client_options
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="With a command.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An option of the list below, such as tool_timeout_secs=300.",
)
@click.option("--description", default="", help="What it is for.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@json_option
def add(as_json: bool, **given: Any) -> None:
    """Register a server: NAME --url URL, NAME --socket PATH --uri URI, or NAME -- COMMAND ARGS.

    Values may refer to secrets: --header 'Authorization: Bearer {{secret:GITHUB_TOKEN}}'.
    """
    if problem := _wrong_usage(given):
        raise click.UsageError(problem)
    setup()
    from servers.services import InvalidServer, create_server
    from servers.status import token_problem

    data = _data(given)
    warnings = list(_literals(data))
    if (token := given["token_ref"]) and not token.startswith("@"):
        if problem := _forgotten_at(token.strip()):
            raise click.UsageError(problem)
        data = _with_literal_token(data, token)
        warnings.append(_literal_token_words())
    try:
        server = create_server(actor=None, data=data)
    except InvalidServer as error:
        fail(problem_words(error, as_options=True))
    warnings += [
        f"There is no secret named {name}, so that no connection comes about. "
        f"Create it with: umpteenth secret set {name}"
        for name in _missing_secrets(server)
    ]
    if problem := token_problem(server):
        warnings.append(f"{problem} Create it with: umpteenth secret set {server.token_name}")
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    if as_json:
        emit_json(summary(server))
    else:
        click.echo(f"Added {server.name}. Test it with: umpteenth mcp test {server.name}")


def _wrong_usage(given: dict[str, Any]) -> str:
    url, socket, uri, program = (given[key] for key in ("url", "socket", "uri", "program"))
    ways = [url is not None, socket is not None or uri is not None, bool(program)]
    if sum(ways) != 1:
        return "Give one of --url URL, --socket PATH with --uri URI, or -- and a command."
    if (socket is None) != (uri is None):
        missing = "--uri http://localhost/mcp" if uri is None else "--socket PATH"
        return f"--socket and --uri belong together; add {missing}."
    if program and given["headers"]:
        return "--header goes with --url or --socket; a command has --env."
    if program and given["token_ref"] is not None:
        return "--token-ref goes with --url or --socket; a command gets its token by --env."
    if url is None and any(value for key, value in given.items() if key.startswith("oauth_")):
        return "--oauth-… goes with --url: a socket and a command have no logins."
    if not program and given["env"]:
        return "--env goes with a command; a URL and a socket have --header."
    return ""


def _data(given: dict[str, Any]) -> ServerData:
    from servers.definition import HTTP, STDIO, UNIX, ServerData

    program = given["program"]
    transport = STDIO if program else UNIX if given["socket"] is not None else HTTP
    return ServerData(
        name=given["name"],
        transport=transport,
        description=given["description"],
        url=given["url"] or given["uri"] or "",
        socket_path=given["socket"] or "",
        headers=_entries(given["headers"], ":", "--header"),
        command=program[0] if program else "",
        args=program[1:],
        env=_entries(given["env"], "=", "--env"),
        options=_options(given["settings"], given["token_ref"]),
        oauth=client_of(given),
    )


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


def _options(settings: tuple[str, ...], token_ref: str | None) -> dict[str, Any]:
    """What `--set` and `--token-ref` set, the last one of a name."""
    found = dict(read_setting(text) for text in settings)
    if token_ref is not None and token_ref.startswith("@"):
        found |= [read_setting(f"token_ref={token_ref}")]
    return found


def read_setting(text: str) -> tuple[str, Any]:
    """Name and value of `OPTION=VALUE`."""
    from servers.options import OptionError, parse

    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError("An option is written OPTION=VALUE, e.g. tool_timeout_secs=300.")
    try:
        return name.strip(), parse(name.strip(), value)
    except OptionError as error:
        raise click.UsageError(str(error)) from None


def _missing_secrets(server: Server) -> list[str]:
    """Those that its values refer to; they may come later."""
    from secrets_vault.models import Secret

    there = Secret.objects.filter(name__in=server.secret_names).values_list("name", flat=True)
    return sorted({*server.secret_names} - {*there})


def _forgotten_at(token: str) -> str:
    """A name that was meant, and would be sent in place of the secret's value."""
    from secrets_vault.models import Secret

    if not Secret.objects.filter(name=token).exists():
        return ""
    return (
        f"There is a secret named {token}; write --token-ref @{token} to send its value. "
        "If that text is the token itself, write it into --header 'Authorization: Bearer …'."
    )


def _with_literal_token(data: ServerData, token: str) -> ServerData:
    """U30: a token in place of a secret's name works; it is stored as the header that it is."""
    from servers.definition import Entry

    if any(entry.name.lower() == "authorization" for entry in data.headers):
        raise click.UsageError(
            "--token-ref holds a token and there is an Authorization header too; leave one out."
        )
    bearer = Entry("Authorization", f"Bearer {token.strip()}")
    return replace(data, headers=(*data.headers, bearer))


def _literals(data: ServerData) -> Iterator[str]:
    """U30: literal tokens are accepted, and people learn where they are and what is better."""
    from servers.definition import refers, split_query

    _, query = split_query(data.url)
    found = ["the query of the address"] if query and not refers(query) else []
    found += [
        entry.name
        for entry in (*data.headers, *data.env)
        if entry.value and _SENSITIVE.search(entry.name) and not refers(entry.value)
    ]
    secret = data.oauth.secret if data.oauth else None
    found += ["--oauth-client-secret"] if secret and not refers(secret) else []
    for what in found:
        yield (
            f"{what} holds a literal value. It is stored encrypted in {_database()} and "
            "stays in your shell's history. Better: umpteenth secret set NAME, and write "
            "{{secret:NAME}} in its place."
        )


def _literal_token_words() -> str:
    return (
        "--token-ref holds a token, not the @NAME of a secret. It is stored encrypted in "
        f"{_database()} as header Authorization and stays in your shell's history. "
        "Better: umpteenth secret set NAME, and --token-ref @NAME."
    )


def _database() -> str:
    from django.conf import settings

    database = settings.DATABASES["default"]
    host = database.get("HOST")
    return f"the database {database['NAME']}" + (f" on {host}" if host else "")
