"""Keeps what a connection found out: the tools of the last success, the error of a failure.

Tests, health checks and the starts of runs all end here, each in one transaction that holds the
server's row, so that tools, state and the time of the next look never contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from django.db import transaction

from servers import pacing, toolcache
from servers.changes import Changes
from servers.mcp.types import LoginRequired, ServerError, ToolList
from servers.models import Check, Server
from servers.oauth.types import Looked
from umpteenth.core.clock import database_now
from umpteenth.core.http import shown_host
from umpteenth.core.masking import Masker
from umpteenth.core.text import clean, clean_json

MAX_ERROR = 4000
MAX_HOW = 300
MAX_INSTRUCTIONS = 20_000
MAX_TAIL = 8192  # characters of stderr kept for a failure
MAX_SENTENCE = 1000
MAX_SENTENCES = 100


class Found(Protocol):
    """What is kept of a `servers.mcp.client.Connection`."""

    @property
    def transport(self) -> str: ...
    @property
    def protocol_version(self) -> str: ...
    @property
    def server_name(self) -> str: ...
    @property
    def server_version(self) -> str: ...
    @property
    def instructions(self) -> str: ...
    @property
    def remembered(self) -> dict[str, Any]: ...
    @property
    def how(self) -> str: ...


@dataclass(frozen=True)
class _Before:
    """A server's row, locked, as it was before a result."""

    server: Server
    now: datetime


def store_success(
    server: Server,
    connection: Found,
    tools: ToolList,
    *,
    masker: Masker | None = None,
    rows: list[toolcache.Row] | None = None,
) -> Changes | None:
    """Keep what was found and the tools, all at once (P28); how the tools differ from before.

    None, and nothing is kept, if the server was edited since `server` was read: what was
    found belongs to settings that no longer exist. Whoever is in a transaction gives the `rows`,
    made before it: masking thousands of tools takes long, and a file lets nobody write meanwhile.
    """
    masker = masker or Masker({})
    rows = toolcache.rows_of(server.pk, tools, masker) if rows is None else rows
    with transaction.atomic():
        before = _lock(server.pk, server.connection_version)
        return _keep_success(before, connection, rows, masker) if before is not None else None


def _keep_success(
    before: _Before, connection: Found, rows: list[toolcache.Row], masker: Masker
) -> Changes:
    changes = toolcache.replace(before.server.pk, rows)
    _update(before, failures=0, **_found(connection, len(rows), masker), tested_at=before.now)
    # The first success has nothing to compare with.
    return changes if before.server.tested_at else Changes([], [], [])


def store_failure(server: Server, error: ServerError, *, masker: Masker | None = None) -> bool:
    """Note the failure and keep the tools. False if the server was edited meanwhile.

    A server that wants a login is in order; only a person can help it, so there is no back-off.
    """
    with transaction.atomic():
        before = _lock(server.pk, server.connection_version)
        if before is not None:
            _keep_failure(before, error, masker or Masker({}))
    return before is not None


def _keep_failure(before: _Before, error: ServerError, masker: Masker) -> None:
    login = isinstance(error, LoginRequired)
    _update(
        before,
        failures=0 if login else before.server.failures + 1,
        state=Server.State.LOGIN_REQUIRED if login else Server.State.FAILED,
        last_error=clean(masker.mask(error.message), MAX_ERROR),
        # A way in that has stopped working is looked for anew.
        **({} if login else {"remembered": {}}),
    )


def store_run_start(
    server_id: UUID,
    connection_version: int,
    connection: Found | None,
    outcome: ToolList | ServerError,
    masker: Masker,
    *,
    network: bool = True,
) -> Changes | None:
    """Keep what the start of a run found out about one of its servers.

    `connection_version` is that of the settings that were used, `network` whether the job has
    one: without it a stdio server's failure says nothing of the server, and is not kept. Nor is
    a server to blame that was not even tried (a secret that is not for this job): do not call
    this for it. Where the tools or the state changed, a check of kind `run` records it.

    Returns how the tools differ from before; None where nothing was kept, or it failed.
    """
    if isinstance(outcome, ServerError):
        _store_failed_start(server_id, connection_version, outcome, masker, network)
        return None
    assert connection is not None, "a list of tools comes from a connection"
    rows = toolcache.rows_of(server_id, outcome, masker)
    with transaction.atomic():
        before = _lock(server_id, connection_version)
        if before is None:
            return None
        changes = _keep_success(before, connection, rows, masker)
        if changes or before.server.state != Server.State.CONNECTED:
            _record_start(before, success_columns(connection, outcome, changes, masker))
    return changes


def _store_failed_start(
    server_id: UUID, connection_version: int, error: ServerError, masker: Masker, network: bool
) -> None:
    columns = failure_columns(error, masker)
    with transaction.atomic():
        before = _lock(server_id, connection_version)
        if before is None or not (network or before.server.transport != Server.Transport.STDIO):
            return
        _keep_failure(before, error, masker)
        # What a run finds is worth a line where it is news, not every minute.
        if before.server.state not in Server.TROUBLED:
            _record_start(before, columns)


def _record_start(before: _Before, columns: dict[str, Any]) -> None:
    check = Check.objects.create(
        server=before.server,
        connection_version=before.server.connection_version,
        kind=Check.Kind.RUN,
        status=Check.Status.DONE,
        started_at=before.now,
        finished_at=before.now,
        **columns,
    )
    Check.objects.filter(pk=check.pk).update(created_at=before.now)


def store_looked(server: Server, looked: Looked, *, masker: Masker | None = None) -> bool:
    """Keep what the search for a login found (P47-P51). False if the server was edited meanwhile.

    A search that failed says why, and leaves what an earlier one has found.
    """
    masker = masker or Masker({})
    columns: dict[str, Any]
    if looked.failure is not None:
        columns = {"oauth_error": clean(masker.mask(looked.failure.in_full), MAX_ERROR)}
        if looked.failure.advertised:
            columns["oauth_advertised"] = True
    else:
        found = looked.advertised.as_json() if looked.advertised else {}
        columns = {
            "oauth_advertised": looked.advertised is not None,
            "oauth_found": clean_json(masker.mask_json(found)),
            "oauth_error": "",
        }
    mine = Server.objects.filter(pk=server.pk, connection_version=server.connection_version)
    return bool(mine.update(**columns))


def with_looked(error: ServerError, looked: Looked | None) -> ServerError:
    """A refusal with what is to be done now that somebody has looked for a login."""
    if looked is None or not isinstance(error, LoginRequired):
        return error
    if looked.failure is not None:
        return LoginRequired(f"{error.message}\n{looked.failure.in_full}", looked.failure.hint)
    provider = looked.advertised.provider if looked.advertised else None
    if provider is None or not provider.metadata_url:  # no more than a guess
        return error
    host = shown_host(provider.authorization_endpoint or provider.token_endpoint)
    return LoginRequired(error.message, f"Log in at {host}.") if host else error


def success_columns(
    connection: Found, tools: ToolList, changes: Changes | None, masker: Masker
) -> dict[str, Any]:
    """What a check keeps of a success."""
    hidden = toolcache.left_out(tools, masker)
    told = [f"Tool “{name}” is left out: its name holds a secret." for name in hidden]
    return {
        "outcome": Check.Outcome.CONNECTED,
        "tool_count": len(tools.tools) - len(hidden),
        "transport": connection.transport,
        "protocol_version": clean(connection.protocol_version or "", 20),
        "found_how": clean(masker.mask(connection.how), MAX_HOW),
        "changes": changes.as_json() if changes else {},
        "warnings": sentences([*tools.warnings, *told], masker),
    }


def failure_columns(error: ServerError, masker: Masker) -> dict[str, Any]:
    """What a check keeps of a failure."""
    login = isinstance(error, LoginRequired)
    return {
        "outcome": Check.Outcome.LOGIN_REQUIRED if login else Check.Outcome.FAILED,
        "error": clean(masker.mask(error.message), MAX_ERROR),
        "hint": clean(masker.mask(error.hint), MAX_SENTENCE),
        "stderr_tail": clean(masker.mask(error.stderr_tail)[-MAX_TAIL:]),
        "exit_code": error.exit_code,
    }


def sentences(texts: list[str], masker: Masker) -> list[str]:
    return [clean(masker.mask(text), MAX_SENTENCE) for text in texts[:MAX_SENTENCES]]


def _lock(server_id: UUID, connection_version: int) -> _Before | None:
    """The row until the transaction ends; None if it was edited or deleted."""
    fields = ("transport", "enabled", "failures", "tested_at", "state", "connection_version")
    locked = Server.objects.select_for_update(no_key=True).only(*fields)
    server = locked.filter(pk=server_id, connection_version=connection_version).first()
    return _Before(server, database_now()) if server is not None else None


def _update(before: _Before, *, failures: int, **columns: Any) -> None:
    server = before.server
    looks = server.enabled and pacing.is_on()
    wait = pacing.delay(server.transport, failures)
    Server.objects.filter(pk=server.pk).update(
        checked_at=before.now,
        failures=failures,
        next_check_at=before.now + wait if looks else None,
        **columns,
    )


def _found(connection: Found, tool_count: int, masker: Masker) -> dict[str, Any]:
    return {
        "state": Server.State.CONNECTED,
        "tool_count": tool_count,
        "last_error": "",
        "protocol_version": clean(connection.protocol_version or "", 20),
        "server_name": clean(masker.mask(connection.server_name or ""), 200),
        "server_version": clean(masker.mask(connection.server_version or ""), 100),
        "instructions": clean(masker.mask(connection.instructions or ""), MAX_INSTRUCTIONS),
        "remembered": clean_json(dict(connection.remembered)),
        "found_how": clean(masker.mask(connection.how), MAX_HOW),
    }
