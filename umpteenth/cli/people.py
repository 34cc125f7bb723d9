"""`umpteenth user`: people who sign in."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.output import emit_json, fail, is_terminal, json_option, table

if TYPE_CHECKING:
    from umpteenth.accounts.models import User


@click.group()
def command() -> None:
    """People who sign in."""


@command.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="Make the person an administrator.")
@json_option
def add(name: str, admin: bool, as_json: bool) -> None:
    """Add a person; the password is read from standard input."""
    password = _read_password()
    setup()
    from umpteenth.accounts.services import PeopleError, create_user

    try:
        user = create_user(name=name, password=password, administrator=admin)
    except PeopleError as error:
        fail(str(error))
    if as_json:
        emit_json(_facts(user))
    else:
        click.echo(f"Added {user.username}, {user.get_role_display().lower()}.")


@command.command("list")
@json_option
def list_people(as_json: bool) -> None:
    """List everybody."""
    setup()
    from django.db.models.functions import Lower

    from umpteenth.accounts.models import User

    people = list(User.objects.order_by(Lower("username")))
    if as_json:
        emit_json([_facts(user) for user in people])
        return
    rows = [
        (user.username, user.get_role_display(), "active" if user.is_active else "deactivated")
        for user in people
    ]
    table(rows, ("NAME", "ROLE", "STATE"))


@command.command()
@click.argument("name")
def deactivate(name: str) -> None:
    """Shut a person out: sessions end, API tokens are revoked."""
    setup()
    from umpteenth.accounts.models import User
    from umpteenth.accounts.services import PeopleError, deactivate_user

    user = User.objects.filter(username__iexact=name).first()
    if user is None:
        fail(f"There is no person named {name}.")
    try:
        deactivate_user(user)
    except PeopleError as error:
        fail(str(error))
    click.echo(f"Deactivated {user.username}.")


def _facts(user: User) -> dict[str, Any]:
    return {
        "id": str(user.pk),
        "name": user.username,
        "role": user.role,
        "active": user.is_active,
    }


def _read_password() -> str:
    """One line of standard input; on a terminal it is asked for and not shown."""
    if is_terminal():
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("Again: "):
            fail("The two passwords differ.")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        fail("No password was given; write it to standard input.")
    return password
