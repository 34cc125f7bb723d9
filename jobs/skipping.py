"""Servers that a run as root goes without although its job has them (P26).

Root inside of a run's sandbox could read what is handed to a process by its environment. A stdio
server has a sandbox of its own here, but not with every adapter, and a job is to mean the same
with each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from uuid import UUID

from secrets_vault.errors import SecretError
from servers.models import Server
from servers.private import read_private

ROOT_SKIPS = (
    "it has environment variables, which a run as root could read; use the server over HTTP, or "
    "switch Run as root off in the job and install what needs it by an environment"
)


def skipped_as_root(server: Server) -> bool:
    """Raises `SecretError` where what is stored for the server cannot be read."""
    return server.transport == Server.Transport.STDIO and bool(read_private(server).env)


def skipped_among(servers: Iterable[Server]) -> set[UUID]:
    """Those of these servers that a run as root goes without, for pages."""
    found = set()
    for server in servers:
        # What cannot be read cannot be started at all, and says so by itself.
        with contextlib.suppress(SecretError):
            if skipped_as_root(server):
                found.add(server.pk)
    return found
