"""Values of a server that nobody sees: kept through an edit, but never for another place (E07)."""

from __future__ import annotations

from urllib.parse import urlsplit

from secrets_vault.errors import SecretError
from servers.definition import STDIO, UNIX, Entry, Errors, ServerData, split_query
from servers.models import Server
from servers.private import Private, read_private

Place = tuple[str, str, "str | None"]


def read_private_or_empty(server: Server) -> Private:
    """The private part, or an empty one where no key opens it (E09).

    An edit that enters nothing anew then leaves the ciphertext as it is.
    """
    try:
        return read_private(server)
    except SecretError:
        return Private()


def kept_problems(data: ServerData, current: Server, stored: Private) -> Errors:
    """Whether values that are kept unseen are still there and still meant for this host."""
    errors: Errors = {}
    if data.transport == STDIO:
        _missing("env", data.env, dict(stored.env), errors)
        return errors
    _missing("headers", data.headers, dict(stored.headers), errors)
    address, query = split_query(data.url)
    if not current.url or _place(data.transport, data.socket_path, address) == _place(
        current.transport, current.socket_path, current.url
    ):
        return errors
    # Values nobody sees were given for one host; they never follow an address to another.
    if data.keep_query and not query and stored.query:
        errors["url"] = (
            "This leads to another host or socket. Add the query to the address again, "
            "or choose to forget the stored one."
        )
    for index, entry in enumerate(data.headers):
        if entry.value is None:
            errors.setdefault(
                f"headers.{index}.value",
                "The address leads to another host or socket now: enter this value again.",
            )
    return errors


def _missing(
    field: str, entries: tuple[Entry, ...], stored: dict[str, str], errors: Errors
) -> None:
    for index, entry in enumerate(entries):
        if entry.value is None and entry.kept not in stored:
            errors[f"{field}.{index}.value"] = "The stored value is gone; enter it again."


def _place(transport: str, socket_path: str, address: str) -> Place:
    """Where requests go: a socket, or scheme and host, since a value given for https must not
    go out in the clear either."""
    if transport == UNIX:
        return socket_path, "", None
    try:
        parts = urlsplit(address)
        return "", parts.scheme, parts.hostname
    except ValueError:
        return "", "", None


def merged(data: ServerData, stored: Private) -> Private:
    """The new private part: what was typed, and what was kept unseen."""
    if data.transport == STDIO:
        return Private(env=_merge_entries(data.env, dict(stored.env)))
    _, query = split_query(data.url)
    kept = stored.query if data.keep_query else ""
    return Private(query=query or kept, headers=_merge_entries(data.headers, dict(stored.headers)))


def _merge_entries(
    entries: tuple[Entry, ...], stored: dict[str, str]
) -> tuple[tuple[str, str], ...]:
    return tuple(
        (entry.name, stored[entry.kept] if entry.value is None else entry.value)
        for entry in entries
    )
