"""What people do to servers: create, change, duplicate, switch, delete.

Every change asks `servers.access` first and leaves an audit entry that names what changed and
never a value. Callers elsewhere find the rest of the room's doors here as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from servers import checks, health
from servers import options as catalogue
from servers.access import NotAllowed as NotAllowed
from servers.access import require_manager, sockets_problem
from servers.connecting import connection_settings as connection_settings
from servers.definition import (
    HTTP,
    MACHINE,
    MAX_NAME,
    OVER_HTTP,
    STDIO,
    UNIX,
    Entry,
    Errors,
    OAuthClientData,
    ServerData,
    check,
    split_query,
)
from servers.kept import client_problems, kept_problems, merged, read_private_or_empty
from servers.models import Check, Server, Tool
from servers.oauth import ending, operator_client
from servers.options import BY_NAME
from servers.policy import Policy, tidied
from servers.private import Pairs, Private, private_columns
from servers.private import read_private as read_private
from servers.renaming import rename_notes as rename_notes
from servers.results import store_failure as store_failure
from servers.results import store_success as store_success
from servers.status import auth_status as auth_status
from servers.targets import target_problems
from servers.usage import Usage
from umpteenth.accounts.models import User
from umpteenth.accounts.services import changed_meanwhile, record_audit
from umpteenth.core.ids import new_id
from umpteenth.core.text import clean


class InvalidServer(Exception):
    """The data cannot be stored. `errors` holds sentences by field as `servers.definition`."""

    def __init__(self, errors: Errors) -> None:
        super().__init__(next(iter(errors.values())))
        self.errors = errors


class OutdatedEdit(Exception):
    """Somebody else changed the server since the form was opened; `current` is what is stored."""

    def __init__(self, current: Server) -> None:
        super().__init__(changed_meanwhile("server", current.updated_by))
        self.current = current


class ServerGone(Exception):
    """The server was deleted meanwhile."""


class RenameUnconfirmed(Exception):
    """The new name changes what `notes` lists; nothing was stored (U37, U38)."""

    def __init__(self, server: Server, new_name: str, notes: list[Usage]) -> None:
        super().__init__(f"{server.name} is known by its name elsewhere; confirm the new one.")
        self.new_name = new_name
        self.notes = notes


def create_server(*, actor: User | None, data: ServerData) -> Server:
    """Raises `NotAllowed` or `InvalidServer`."""
    require_manager(actor)
    data = _tidy(data)
    _raise_if_any({**check(data), **_socket_problems(data), **client_problems(data, Private())})
    _raise_if_any(target_problems(data))
    server = Server(pk=new_id(), updated_by=actor)
    private = merged(data, Private())
    _fill(server, {**_plain_columns(data, server), **private_columns(private, server.pk)})
    try:
        with transaction.atomic():
            server.save(force_insert=True)
            health.wake(server)
            _audit(actor, "server.create", server)
    except IntegrityError:
        raise _name_taken(data.name) from None
    return server


def update_server(
    server: Server,
    *,
    actor: User | None,
    data: ServerData,
    version: int,
    renaming_confirmed: bool = True,
) -> Server:
    """Store an edit that was begun on `version`.

    Raises `NotAllowed`, `InvalidServer`, `ServerGone`, `OutdatedEdit` if the server has changed
    since, or `RenameUnconfirmed` if the person has to be asked about a new name first. What was
    found about another endpoint (tools, revision) is forgotten.
    """
    require_manager(actor)
    current = Server.objects.select_related("updated_by").filter(pk=server.pk).first()
    if current is None:
        raise ServerGone(f"The server {server.name} was deleted meanwhile.")
    if current.version != version:
        raise OutdatedEdit(current)
    data = _tidy(data)
    stored = read_private_or_empty(current)
    _raise_if_any({**check(data), **_socket_problems(data), **kept_problems(data, current, stored)})
    _raise_if_any(target_problems(data))
    if not renaming_confirmed and (notes := rename_notes(current, data.name)):
        raise RenameUnconfirmed(current, data.name, notes)
    private = merged(data, stored)
    plain = _plain_columns(data, current)
    changed = _changed_fields(current, plain, stored, private)
    columns = {**plain, **_consequences(changed)}
    if changed & set(_PRIVATE):
        columns |= private_columns(private, current.pk)
    return _store_edit(current, actor, columns, changed)


def current_data(server: Server) -> ServerData:
    """What is stored, as an edit that changes nothing; hidden values are kept unseen."""
    private = read_private_or_empty(server)

    def kept(pairs: Pairs) -> tuple[Entry, ...]:
        return tuple(Entry(name, None, kept=name) for name, _ in pairs)

    return ServerData(
        name=server.name,
        transport=server.transport,
        description=server.description,
        url=server.url,
        keep_query=True,
        headers=kept(private.headers),
        command=server.command,
        args=tuple(server.args),
        env=kept(private.env),
        socket_path=server.socket_path,
        # What an older version knew is dropped by the next edit.
        options={name: value for name, value in server.options.items() if name in BY_NAME},
        policy=Policy.from_json(server.policy),
    )


def stored_client(server: Server) -> OAuthClientData:
    """The operator's OAuth client as it is stored; its secret is kept unseen."""
    return OAuthClientData(server.oauth_kind, server.oauth_client_id, scopes=server.oauth_scopes)


def duplicate_server(server: Server, *, actor: User | None) -> Server:
    """A copy under a free name, switched off so that nothing doubles unasked."""
    require_manager(actor)
    private = read_private(server)
    copy = Server(
        pk=new_id(),
        name=_free_name(server.name),
        description=server.description,
        transport=server.transport,
        url=server.url,
        socket_path=server.socket_path,
        command=server.command,
        args=server.args,
        options=server.options,
        token_name=server.token_name,
        policy=server.policy,
        oauth_kind=server.oauth_kind,
        oauth_client_id=server.oauth_client_id,
        oauth_scopes=server.oauth_scopes,
        enabled=False,
        updated_by=actor,
    )
    _fill(copy, private_columns(private, copy.pk))
    try:
        with transaction.atomic():
            copy.save(force_insert=True)
            _audit(actor, "server.create", copy, copy_of=server.name)
    except IntegrityError:
        raise _name_taken(copy.name) from None
    return copy


def delete_server(server: Server, *, actor: User | None) -> None:
    """Delete it with its tools, checks, attachments and login."""
    require_manager(actor)
    with transaction.atomic():
        _lock_with_checks(server)
        _audit(actor, "server.delete", server)
        ending.forget_server(server)
        server.delete()


def _lock_with_checks(server: Server) -> None:
    """Nobody may add a tool or a check while Django deletes those that it has found. In the order
    of whoever stores what a check found: its row, then the server's."""
    under_way = Check.objects.filter(server=server.pk).exclude(status=Check.Status.DONE)
    for rows in (under_way, Server.objects.filter(pk=server.pk)):
        list(rows.select_for_update().order_by("pk").values_list("pk"))


def set_enabled(server: Server, *, actor: User | None, enabled: bool) -> bool:
    """Switch it on or off (P59); attachments stay. False if it was so already."""
    require_manager(actor)
    with transaction.atomic():
        changed = Server.objects.filter(pk=server.pk, enabled=not enabled).update(
            enabled=enabled, updated_at=timezone.now(), updated_by=actor
        )
        server.enabled = enabled
        if changed:
            health.wake(server)
            _audit(actor, "server.enable" if enabled else "server.disable", server)
    return bool(changed)


def _tidy(data: ServerData) -> ServerData:
    """Without the blanks that come along when people paste (E01)."""
    return replace(
        data,
        name=data.name.strip(),
        description=clean(data.description).strip(),
        url=data.url.strip(),
        socket_path=data.socket_path.strip(),
        command=data.command.strip(),
        headers=tuple(_tidy_entry(entry, strip_value=True) for entry in data.headers),
        env=tuple(_tidy_entry(entry, strip_value=False) for entry in data.env),
        oauth=data.oauth and operator_client.tidied(data.oauth),
    )


def _tidy_entry(entry: Entry, *, strip_value: bool) -> Entry:
    value = entry.value.strip() if strip_value and entry.value is not None else entry.value
    return Entry(entry.name.strip(), value, entry.kept)


def _socket_problems(data: ServerData) -> Errors:
    problem = sockets_problem() if data.transport == UNIX else ""
    return {"transport": problem} if problem else {}


def _plain_columns(data: ServerData, current: Server) -> dict[str, Any]:
    """The readable columns. Options and policy that nobody sent stay as `current` has them."""
    given = current.options if data.options is None else catalogue.typed(data.options)
    options = catalogue.without_defaults(given, data.transport)
    return {
        "name": data.name,
        "description": data.description,
        "transport": data.transport,
        "url": split_query(data.url)[0] if data.transport in OVER_HTTP else "",
        "socket_path": data.socket_path if data.transport == UNIX else "",
        "command": data.command if data.transport == STDIO else "",
        "args": list(data.args) if data.transport == STDIO else [],
        "options": options,
        "token_name": catalogue.read(options).token_name,
        "policy": current.policy if data.policy is None else tidied(data.policy).as_json(),
        **_client_columns(data, current),
    }


def _client_columns(data: ServerData, current: Server) -> dict[str, Any]:
    """Logins are for HTTP; another transport forgets the client as it forgets the address."""
    client = stored_client(current) if data.oauth is None else data.oauth
    if data.transport != HTTP:
        client = OAuthClientData()
    return {
        "oauth_kind": client.kind,
        "oauth_client_id": client.client_id,
        "oauth_scopes": client.scopes,
    }


def _changed_fields(
    current: Server, plain: dict[str, Any], stored: Private, private: Private
) -> set[str]:
    """Names of columns; options one by one as `options.<name>`."""
    changed = {name for name, value in plain.items() if getattr(current, name) != value}
    if "options" in changed:
        before, after = current.options, plain["options"]
        changed |= {
            f"options.{name}" for name in {*before, *after} if before.get(name) != after.get(name)
        }
    for name in _PRIVATE:
        if getattr(stored, name) != getattr(private, name):
            changed.add(name)
    return changed - {"options", "token_name"}


# What a test has found stays true when these change.
_UNTESTED_BY = {
    *("name", "description", "policy", "oauth_scopes", "client_secret"),
    *(f"options.{name}" for name in catalogue.NOT_TESTED),
}
_ENDPOINT = {"transport", "url", "socket_path", "command"}
# A login is for one server and one client (P53).
_LOGIN = {"transport", "url", "query", "oauth_kind", "oauth_client_id"}
# Parts of `Private`.
_PRIVATE = ("query", "headers", "env", "client_secret")


def _consequences(changed: set[str]) -> dict[str, Any]:
    """What an edit makes untrue about the server."""
    columns: dict[str, Any] = {}
    if changed - _UNTESTED_BY:
        columns |= {
            "connection_version": F("connection_version") + 1,
            "state": Server.State.UNTESTED,
            "last_error": "",
            "remembered": {},
            "found_how": "",
            "failures": 0,
        }
    if changed & _ENDPOINT:
        columns |= {
            "tested_at": None,
            "tool_count": 0,
            "protocol_version": "",
            "server_name": "",
            "server_version": "",
            "instructions": "",
        }
    if changed & {"transport", "url", "oauth_client_id"}:
        columns["oauth_client_issuer"] = ""
    if changed & {*_LOGIN, "client_secret", "oauth_scopes"}:
        columns |= {"oauth_failure": "", "oauth_failed_at": None}
    if changed & {"transport", "url", "query", "headers"}:
        # Another server, or one that answers otherwise: it has to be looked at again (P36).
        columns |= {
            "oauth_advertised": None,
            "oauth_found": {},
            "oauth_error": "",
            "oauth_wanted": "",
        }
    return columns


def _ends_login(current: Server, changed: set[str]) -> bool:
    """A client that logs in by itself does so anew with whatever else it is given."""
    if current.oauth_kind == MACHINE and changed & {"client_secret", "oauth_scopes"}:
        return True
    return bool(changed & _LOGIN)


def _store_edit(
    current: Server, actor: User | None, columns: dict[str, Any], changed: set[str]
) -> Server:
    if not changed:
        return current
    columns |= {
        "version": F("version") + 1,
        "updated_at": timezone.now(),
        "updated_by": actor,
    }
    mine = Server.objects.filter(pk=current.pk, version=current.version)
    try:
        with transaction.atomic():
            if not mine.update(**columns):
                raise OutdatedEdit(_reload(current.pk))
            if "tool_count" in columns:
                Tool.objects.filter(server_id=current.pk).delete()
            if "connection_version" in columns:
                health.wake(current)
            if "oauth_advertised" in columns:
                _look_again(current.pk, actor)
            ended = _ends_login(current, changed) and ending.end_logins(current)
            told = {"login": "ended"} if ended else {}
            _audit(actor, "server.update", current, changed=sorted(changed), **told)
    except IntegrityError:
        raise _name_taken(columns["name"]) from None
    return _reload(current.pk)


def _look_again(pk: UUID, actor: User | None) -> None:
    """P36: how people log in is looked for anew, which is part of a person's test."""
    server = _reload(pk)
    if server.transport == HTTP and not server.has_authorization:
        checks.make_check(server, actor=actor)


def _reload(pk: UUID) -> Server:
    server = Server.objects.select_related("updated_by").filter(pk=pk).first()
    if server is None:
        raise ServerGone("The server was deleted meanwhile.")
    return server


def _free_name(name: str) -> str:
    """`github-copy`, then `github-copy-2` and so on."""
    taken = {other.lower() for other in Server.objects.values_list("name", flat=True)}
    number = 1
    while True:
        suffix = "-copy" if number == 1 else f"-copy-{number}"
        candidate = name[: MAX_NAME - len(suffix)] + suffix
        if candidate.lower() not in taken:
            return candidate
        number += 1


def _fill(server: Server, columns: dict[str, Any]) -> None:
    for name, value in columns.items():
        setattr(server, name, value)


def _raise_if_any(errors: Errors) -> None:
    if errors:
        raise InvalidServer(errors)


def _name_taken(name: str) -> InvalidServer:
    return InvalidServer({"name": f"A server named {name} exists already; choose another name."})


def _audit(actor: User | None, action: str, server: Server, **details: Any) -> None:
    record_audit(
        actor=actor,
        action=action,
        kind="server",
        object_id=str(server.pk),
        object_name=server.name,
        details=details,
    )
