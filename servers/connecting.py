"""From a stored server to what the engine connects with, and what must be masked from then on."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote_plus, urlsplit

from secrets_vault import services as vault
from secrets_vault.references import find_names, reference, text_between
from servers.access import sockets_problem
from servers.definition import is_header_value, query_pieces
from servers.mcp.types import ConnectionSettings, ServerUnavailable
from servers.models import Server
from servers.oauth import credentials as logins
from servers.options import HTTP, OVER_HTTP, ServerOptions, read
from servers.private import Private, read_private
from umpteenth.core.masking import known_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servers.mcp.types import TransportKind

logger = logging.getLogger(__name__)

_SOCKETS_HINT = "Use HTTP, or ask whoever runs this site to allow private targets."
# What of ASCII stands as it is in an actor's name: all that is visible, and the blank.
_ACTOR_SAFE = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"
_SCHEMES = ("bearer", "basic", "token", "apikey")
_SCHEME = re.compile(rf"(?:{'|'.join(_SCHEMES)})\s+(\S+)$", re.IGNORECASE)


def connection_settings(
    server: Server, *, job_name: str | None = None, actor: str = "", testing: bool = False
) -> tuple[ConnectionSettings, dict[str, str]]:
    """Settings with every reference resolved, and the values to mask by what they are called.

    `actor` is who started the run, for servers that want to know (`per_actor`, U61-U65). A test
    (`testing`) goes to the server also where its login is over, to see what it says.

    All or nothing: raises the vault's `SecretError` if one reference does not resolve for this
    server, host and job or the server's own values do not open, `LoginRequired` if the login is
    over (P71), and `ServerUnavailable` if it or a resolved value cannot be used or sockets are
    switched off. `token_ref` alone may fail: it is logged, left out, and named by
    `settings.warnings` (U27).
    """
    if server.transport == Server.Transport.UNIX and (problem := sockets_problem()):
        raise ServerUnavailable(problem, hint=_SOCKETS_HINT)
    private = read_private(server)
    options = read(server.options)
    over_http = server.transport in OVER_HTTP
    # What listens on a socket need not be the host that the address over it names.
    host = urlsplit(server.url).hostname if server.transport == HTTP else None
    target = vault.Target(host=host, server=server.name, job=job_name)
    resolved = vault.resolve(dict(_references(private)), target=target)
    values = resolved.values
    token, warning = _token(server.name, private, options, target) if over_http else (None, "")
    mask = {**resolved.secrets, **dict(_literals(server.name, private))}
    if token is not None:
        mask[options.token_name] = token
    # Whatever else authenticates the requests wins over a login (P49).
    has_own = server.transport != HTTP or private.has_authorization or token is not None
    login = None if has_own else logins.login_for(server, testing=testing)
    if login is not None:
        mask |= login.secrets
    known_values().learn(mask)
    headers = _headers(private, values, token)
    if over_http and options.per_actor and actor:
        headers = _with_actor(headers, options.actor_header, actor)
    settings = ConnectionSettings(
        name=server.name,
        transport=cast("TransportKind", server.transport),
        url=_full_url(server.url, private.query, values),
        socket_path=server.socket_path,
        headers=tuple(headers),
        command=server.command,
        args=tuple(str(argument) for argument in server.args),
        env={name: values[f"env {index}"] for index, (name, _) in enumerate(private.env)},
        remembered=server.remembered,
        warnings=(warning,) if warning else (),
        credentials=login.credentials if login is not None else None,
        looks_for_login=not has_own and (login is None or login.is_missing),
        **_engine_options(options),
    )
    return settings, mask


def _headers(
    private: Private, values: Mapping[str, str], token: str | None
) -> list[tuple[str, str]]:
    headers = [
        (name, _sendable(f"header {name}", values[f"header {index}"]))
        for index, (name, _) in enumerate(private.headers)
    ]
    if token is not None:
        headers.append(("Authorization", f"Bearer {_sendable('bearer token', token)}"))
    return headers


def _engine_options(options: ServerOptions) -> dict[str, Any]:
    return {
        "start_timeout": options.start_timeout_secs,
        "connect_timeout": options.connect_timeout_secs,
        "request_timeout": options.request_timeout_secs,
        "tool_timeout": options.tool_timeout_secs,
        "limits": options.limits,
        "retry": options.retry,
        "max_inflight": options.max_inflight_calls,
        "allow_stateless": options.allow_stateless,
        "reinit_on_expired_session": options.reinit_on_expired_session,
        "strict_initialized_ack": options.initialized_ack_mode == "strict",
    }


def _token(
    server: str, private: Private, options: ServerOptions, target: vault.Target
) -> tuple[str | None, str]:
    """The bearer token that `token_ref` names, or why there is none (U24-U27).

    A header `Authorization` wins over it; the secret is then not even opened.
    """
    if not options.token_name or private.has_authorization:
        return None, ""
    text = reference(options.token_name)
    try:
        return vault.resolve({"token": text}, target=target).values["token"], ""
    except vault.SecretError as error:
        logger.warning("MCP server %s: token_ref is left out. %s", server, error)
        return None, f"token_ref {options.token_ref} is left out, no token is sent: {error}"


def _with_actor(headers: list[tuple[str, str]], header: str, actor: str) -> list[tuple[str, str]]:
    """One header of that name, and it names the actor (U62)."""
    others = [pair for pair in headers if pair[0].lower() != header.lower()]
    return [*others, (header, actor_value(actor))]


def actor_value(actor: str) -> str:
    """An actor as a header can hold it; different actors stay different.

    Visible ASCII stays as it is; everything else and the percent sign are written as the
    percent-encoded bytes of UTF-8 (RFC 3986, section 2.1), blanks inside excepted.
    """
    encoded = quote(actor.encode("utf-8", "surrogatepass"), safe=_ACTOR_SAFE)
    return re.sub(r"^ +| +$", lambda blanks: "%20" * len(blanks[0]), encoded)


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
        label = f"header {name} of {server}"
        if find_names(value):
            yield from _literals_beside(label, value)
        else:
            yield from _header_literals(label, value)
    for name, value in private.env:
        label = f"variable {name} of {server}"
        if find_names(value):
            yield from _literals_beside(label, value)
        else:
            yield label, value
    for name, _, value in query_pieces(private.query):
        if value and not find_names(unquote_plus(value)):
            yield f"query {unquote_plus(name)} of {server}", unquote_plus(value)


def _literals_beside(label: str, value: str) -> Iterator[tuple[str, str]]:
    """What was typed around references, but for the word of a scheme."""
    for number, piece in enumerate(text_between(value), 1):
        literal = piece.strip(" \t;,:")
        if literal and literal.lower() not in _SCHEMES:
            yield f"part {number} of {label}", literal


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


def _sendable(what: str, value: str) -> str:
    """E01: an HTTP library refuses a line break with an error that quotes the secret."""
    value = value.strip()
    if not is_header_value(value):
        raise ServerUnavailable(
            f"The value of the {what} contains a line break or another character that "
            "a header cannot hold.",
            hint="Enter the secret's value again, on one line.",
        )
    return value
