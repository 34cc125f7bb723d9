"""Values of a server that nobody sees: kept through an edit, but never for another place (E07)."""

from __future__ import annotations

from urllib.parse import urlsplit

from secrets_vault.errors import SecretError
from servers.definition import (
    HTTP,
    MACHINE,
    STDIO,
    UNIX,
    Entry,
    Errors,
    OAuthClientData,
    ServerData,
    split_query,
)
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
    errors |= client_problems(data, stored)
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
    if data.transport == HTTP and keeps_client_secret(data, current) and stored.client_secret:
        # The server at the address names the provider that the secret is sent to.
        errors.setdefault(
            "oauth.client_secret",
            "The address leads to another host now: enter the client secret again.",
        )
    return errors


def client_problems(data: ServerData, stored: Private) -> Errors:
    """A client that logs in by itself proves that it is the one; a secret is all that it has."""
    if data.transport != HTTP or data.oauth is None or data.oauth.kind != MACHINE:
        return {}
    if data.oauth.secret or (data.oauth.secret is None and stored.client_secret):
        return {}
    return {"oauth.client_secret": "A client that logs in by itself needs its client secret."}


def keeps_client_secret(data: ServerData, current: Server) -> bool:
    """Whether the edit leaves the secret of the OAuth client as it is."""
    if data.oauth is None:
        return bool(current.oauth_client_id)
    return data.oauth.secret is None and bool(data.oauth.client_id)


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
    return Private(
        query=query or kept,
        headers=_merge_entries(data.headers, dict(stored.headers)),
        client_secret=_client_secret(data.oauth, stored) if data.transport == HTTP else "",
    )


def _client_secret(oauth: OAuthClientData | None, stored: Private) -> str:
    """It goes with the client that it belongs to."""
    if oauth is None:
        return stored.client_secret
    if not oauth.client_id:
        return ""
    return stored.client_secret if oauth.secret is None else oauth.secret


def _merge_entries(
    entries: tuple[Entry, ...], stored: dict[str, str]
) -> tuple[tuple[str, str], ...]:
    return tuple(
        (entry.name, stored[entry.kept] if entry.value is None else entry.value)
        for entry in entries
    )
