"""`umpteenth token`: keys to the REST API, for people of this installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.output import emit_json, fail, json_option, table

if TYPE_CHECKING:
    from datetime import datetime

    from umpteenth.accounts.models import ApiToken, User

user_option = click.option("--user", "person", metavar="NAME", help="Whose token it is.")


@click.group(name="token")
def command() -> None:
    """API tokens: programs call the REST API with them.

    A token has the role that its person has at that moment.
    """


@command.command()
@click.argument("name")
@user_option
@click.option("--days", type=int, metavar="N", help="Expire after N days; else never.")
@json_option
def create(name: str, person: str | None, days: int | None, as_json: bool) -> None:
    """Make a token for a person; it is printed this once.

    Without --user it is for the only person that there is.
    """
    setup()
    from umpteenth.accounts.tokens import TokenError, create_token

    owner = _person(person)
    try:
        token, text = create_token(owner=owner, name=name, days=days, actor=None)
    except TokenError as error:
        fail(str(error))
    if as_json:
        emit_json({**_facts(token, token.created_at), "token": text})
        return
    # Alone on standard output, so that a script can keep it.
    click.echo(text)
    click.echo(f"A token of {owner.username}, named {token.name}. It is not shown again.", err=True)


@command.command("list")
@json_option
def list_tokens(as_json: bool) -> None:
    """List all tokens; never what they are."""
    setup()
    from umpteenth.accounts.models import ApiToken
    from umpteenth.core.clock import database_now

    tokens = ApiToken.objects.select_related("owner").order_by("owner__username", "created_at")
    now = database_now()
    facts = [_facts(token, now) for token in tokens]
    if as_json:
        emit_json(facts)
    elif not facts:
        click.echo("No API token yet. Make one: umpteenth token create NAME", err=True)
    else:
        columns = ("name", "user", "hint", "state", "last_used_at", "expires_at")
        table(
            ([row[column] or "never" for column in columns] for row in facts),
            ("NAME", "USER", "BEGINS", "STATE", "LAST USED", "EXPIRES"),
        )


@command.command()
@click.argument("name")
@user_option
def remove(name: str, person: str | None) -> None:
    """End a token, by its name or id, at once and for good."""
    setup()
    from umpteenth.accounts.tokens import revoke_token

    token = _token(name, person)
    if not revoke_token(token, actor=None):
        fail(f"{token.name} was revoked already.")
    click.echo(f"Revoked {token.name} of {token.owner.username}.")


def _person(name: str | None) -> User:
    from umpteenth.accounts.models import User

    active = User.objects.filter(is_active=True)
    if name is not None:
        found = active.filter(username__iexact=name).first()
        if found is None:
            fail(f"There is no active person named {name}. See: umpteenth user list")
        return found
    people = list(active[:2])
    if len(people) != 1:
        fail("Say whose token it is: --user NAME. See: umpteenth user list")
    return people[0]


def _token(name: str, person: str | None) -> ApiToken:
    from django.db.models import Q

    from umpteenth.accounts.models import ApiToken

    found = ApiToken.objects.select_related("owner").filter(_named(name))
    if person is not None:
        found = found.filter(owner__username__iexact=person)
    # A revoked one may have the same name as the one that followed it.
    tokens = list(found.filter(revoked_at=None)) or list(found.filter(~Q(revoked_at=None))[:1])
    if not tokens:
        fail(f"There is no such token: {name}. See: umpteenth token list")
    if len(tokens) > 1:
        owners = ", ".join(sorted(token.owner.username for token in tokens))
        fail(f"Several people have a token named {name}: {owners}. Say whose: --user NAME")
    return tokens[0]


def _named(name: str) -> Any:
    from uuid import UUID

    from django.db.models import Q

    try:
        return Q(pk=UUID(name)) | Q(name__iexact=name)
    except ValueError:
        return Q(name__iexact=name)


def _facts(token: ApiToken, now: datetime) -> dict[str, Any]:
    return {
        "id": str(token.pk),
        "name": token.name,
        "user": token.owner.username,
        "hint": f"{token.hint}…",
        "state": token.state_at(now),
        "created_at": _moment(token.created_at),
        "last_used_at": _moment(token.last_used_at),
        "expires_at": _moment(token.expires_at),
    }


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None
