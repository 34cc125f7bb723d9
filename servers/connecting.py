"""From a stored server to what the engine connects with, and what must be masked from then on."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_plus, urlsplit

from secrets_vault import services as vault
from secrets_vault.references import find_names
from servers.definition import query_pieces
from servers.mcp.types import ConnectionSettings, ServerUnavailable
from servers.models import Server
from servers.private import Private, read_private
from umpteenth.core.masking import known_values

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEME = re.compile(r"(?:bearer|basic|token|apikey)\s+(\S+)$", re.IGNORECASE)


def connection_settings(
    server: Server, *, job_name: str | None = None
) -> tuple[ConnectionSettings, dict[str, str]]:
    """Settings with every reference resolved, and the values to mask by what they are called.

    All or nothing: raises the vault's `SecretError` if one reference does not resolve for this
    server, host and job or the server's own values do not open, and `ServerUnavailable` if a
    resolved value cannot be sent.
    """
    private = read_private(server)
    is_http = server.transport == Server.Transport.HTTP
    host = urlsplit(server.url).hostname if is_http else None
    target = vault.Target(host=host, server=server.name, job=job_name)
    resolved = vault.resolve(dict(_references(private)), target=target)
    values = resolved.values
    mask = {**resolved.secrets, **dict(_literals(server.name, private))}
    _remember(mask)
    settings = ConnectionSettings(
        name=server.name,
        transport="http" if is_http else "stdio",
        url=_full_url(server.url, private.query, values),
        headers=tuple(
            (name, _sendable(name, values[f"header {index}"]))
            for index, (name, _) in enumerate(private.headers)
        ),
        command=server.command,
        args=tuple(str(argument) for argument in server.args),
        env={name: values[f"env {index}"] for index, (name, _) in enumerate(private.env)},
        remembered=server.remembered,
    )
    return settings, mask


def _references(private: Private) -> Iterator[tuple[str, str]]:
    for index, (_, value) in enumerate(private.headers):
        yield f"header {index}", value
    for index, (_, value) in enumerate(private.env):
        yield f"env {index}", value
    for index, (_, _, value) in enumerate(query_pieces(private.query)):
        yield f"query {index}", unquote_plus(value)


def _literals(server: str, private: Private) -> Iterator[tuple[str, str]]:
    """Values typed in place are as secret as named ones; the token of a scheme counts alone."""
    for name, value in private.headers:
        if not find_names(value):
            yield from _header_literals(f"header {name} of {server}", value)
    for name, value in private.env:
        if not find_names(value):
            yield f"variable {name} of {server}", value
    for name, _, value in query_pieces(private.query):
        if value and not find_names(unquote_plus(value)):
            yield f"query {unquote_plus(name)} of {server}", unquote_plus(value)


def _header_literals(label: str, value: str) -> Iterator[tuple[str, str]]:
    match = _SCHEME.match(value)
    if match is None:
        yield label, value
        return
    yield label, match[1]
    if value[:5].lower() == "basic":
        try:
            pair = base64.b64decode(match[1], validate=True).decode()
        except ValueError:
            return
        yield f"password in {label}", pair.partition(":")[2]


def _full_url(address: str, query: str, values: Mapping[str, str]) -> str:
    """Pieces with a reference are encoded anew; all others go out as they were typed."""
    if not query:
        return address
    pieces = []
    for index, (name, sign, value) in enumerate(query_pieces(query)):
        if find_names(unquote_plus(value)):
            value = quote(values[f"query {index}"], safe="")
        pieces.append(f"{name}{sign}{value}")
    return f"{address}?{'&'.join(pieces)}"


def _sendable(name: str, value: str) -> str:
    """E01: an HTTP library refuses a line break with an error that quotes the secret."""
    value = value.strip()
    if not value.isascii() or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        raise ServerUnavailable(
            f"The value of the header {name} contains a line break or another character that "
            "a header cannot hold.",
            hint="Enter the secret's value again, on one line.",
        )
    return value


def _remember(mask: Mapping[str, str]) -> None:
    known = known_values()
    for name, value in mask.items():
        known.add(name, value)
