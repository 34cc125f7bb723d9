"""`umpteenth secret …`: values come in on standard input and never go out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import load_django, migrate_database, setup
from umpteenth.cli.output import emit_json, fail, is_terminal, json_option, table
from umpteenth.cli.seconds import Seconds

if TYPE_CHECKING:
    from secrets_vault.models import Secret
    from secrets_vault.rotation import Rotation

# Somewhat more than a value may have, so that the refusal can name its size.
_READ_AT_MOST = 1024 * 1024


@click.group(name="secret")
def command() -> None:
    """Secrets and the keys that encrypt them."""


@command.command(name="set")
@click.argument("name")
@click.option("--description", help="What it is for, up to 500 characters.")
@click.option("--host", "hosts", multiple=True, help="A host it may be sent to; repeat for more.")
@click.option("--server", "servers", multiple=True, help="A server that may use it.")
@click.option("--job", "jobs", multiple=True, help="A job that may use it.")
@click.option("--anywhere", is_flag=True, help="Take all limits away.")
@click.option("--members/--no-members", default=None, help="Whether members may use it in jobs.")
def set_(
    name: str,
    description: str | None,
    hosts: tuple[str, ...],
    servers: tuple[str, ...],
    jobs: tuple[str, ...],
    anywhere: bool,
    members: bool | None,
) -> None:
    """Create NAME or replace its value, which is read from standard input.

    What no option names stays as it is.
    """
    if anywhere and (hosts or servers or jobs):
        raise click.UsageError("--anywhere and a host, server or job exclude each other.")
    value = _read_value()
    setup()
    from secrets_vault.services import BadSecret, set_secret

    limited = anywhere or hosts or servers or jobs
    try:
        saved = set_secret(
            actor=None,
            name=name,
            value=value,
            description=description,
            open_to_members=members,
            allowed_hosts=hosts if limited else None,
            allowed_servers=servers if limited else None,
            allowed_jobs=jobs if limited else None,
        )
    except BadSecret as error:
        fail(str(error))
    click.echo(f"Secret {name} {'created' if saved.created else 'has a new value'}.")
    for note in saved.notes:
        click.echo(note)


def _read_value() -> str:
    if is_terminal():
        value: str = click.prompt("Value", hide_input=True, err=True)
        return value
    data = sys.stdin.buffer.read(_READ_AT_MOST + 1)
    if len(data) > _READ_AT_MOST:
        fail("The value has more than 1 MB; at most 65,536 bytes can be kept.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        fail("The value is not text in UTF-8; encode it first, for example with base64.")


@command.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """Names, descriptions and uses; never values."""
    setup()
    from secrets_vault.queries import matching
    from secrets_vault.usage import usages_of_many

    secrets = list(matching(""))
    usages = usages_of_many([secret.name for secret in secrets])
    rows = [_facts(secret, [str(use) for use in usages[secret.name]]) for secret in secrets]
    if as_json:
        emit_json(rows)
    elif not rows:
        click.echo("No secrets yet. Make one: umpteenth secret set NAME < file", err=True)
    else:
        columns = ("name", "description", "used_by", "last_used_at", "updated_at")
        table([[_cell(row[key]) for key in columns] for row in rows], _HEADERS)


_HEADERS = ("NAME", "DESCRIPTION", "USED BY", "LAST USED", "UPDATED")


def _facts(secret: Secret, used_by: list[str]) -> dict[str, Any]:
    used, updated = secret.last_used_at, secret.updated_at
    return {
        "name": secret.name,
        "description": secret.description,
        "used_by": used_by,
        "open_to_members": secret.open_to_members,
        "hosts": secret.allowed_hosts,
        "servers": secret.allowed_servers,
        "jobs": secret.allowed_jobs,
        "last_used_at": used.isoformat(timespec="seconds") if used else None,
        "updated_at": updated.isoformat(timespec="seconds"),
    }


def _cell(value: Any) -> str:
    if value is None:
        return "never"
    return ", ".join(value) if isinstance(value, list) else str(value)


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask, even if something uses it.")
def remove(name: str, yes: bool) -> None:
    """Delete NAME; asks if something uses it."""
    setup()
    from secrets_vault.models import Secret
    from secrets_vault.services import SecretError, delete_secret, usages_of

    secret = Secret.objects.filter(name=name).first()
    if secret is None:
        fail(f"There is no secret named {name}.")
    used_by = ", ".join(str(use) for use in usages_of(name))
    if used_by and not yes:
        if not is_terminal():
            fail(f"Secret {name} is used by {used_by}; add --yes to delete it all the same.")
        click.confirm(f"Secret {name} is used by {used_by}. Delete it?", abort=True)
    try:
        delete_secret(secret, actor=None)
    except SecretError as error:
        fail(str(error))
    click.echo(f"Secret {name} deleted.")


@command.command(name="rotate-keys")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the new ring, if it is given by security.key_ring.",
)
@click.option(
    "--wait",
    type=Seconds(0, 3600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for writes that others have begun before old keys go.",
)
def rotate_keys(output: Path | None, wait: float) -> None:
    """Encrypt everything with a new key, while the site runs, and retire the old ones."""
    setup()
    from secrets_vault import rotation
    from secrets_vault.errors import RotationRefused

    try:
        done = rotation.rotate_keys(click.echo, output=output, settle_seconds=wait)
    except RotationRefused as error:
        fail(str(error))
    _report(done)


def _report(done: Rotation) -> None:
    if done.retired:
        click.echo(f"Key {', '.join(done.retired)} is no longer used and has been removed.")
    if done.next_step:
        click.echo(done.next_step)
    if done.unreadable:
        fail(
            f"These cannot be decrypted and were left as they are: {', '.join(done.unreadable)}. "
            "Enter their values again, or bring the right key back."
        )
    click.echo("Done.")


@command.command(name="forget-key")
@click.argument("key_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget_key(key_id: str, yes: bool) -> None:
    """Go on without KEY_ID, which is lost: what it encrypted must be entered again."""
    # Not `setup`, which stops because of that very key.
    migrate_database(load_django())
    from secrets_vault.encryption import rows_of_key
    from secrets_vault.rotation import forget_key

    lost = rows_of_key(key_id)
    if not yes:
        if not is_terminal():
            fail(f"{lost} values need key {key_id} and would stay unreadable; add --yes.")
        click.confirm(f"{lost} values need key {key_id} and stay unreadable. Go on?", abort=True)
    if not forget_key(key_id):
        fail(f"Key {key_id} is not among the keys that this database needs.")
    click.echo(f"Key {key_id} is no longer required. Values to enter again: {lost}.")
