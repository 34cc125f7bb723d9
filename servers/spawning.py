"""Where stdio servers get their process from. A higher room registers how (jobs.sandbox)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from servers.mcp.types import ConnectionSettings, ServerUnavailable, Spawner

# (server's id, what its sandbox gets, who is told what it could not reach). The id, because a name
# may be given to another server later, which must not find what the first one left in its home.
# What it gets is whatever the room above understands, None what a test does.
Tell = Callable[[str], None]
SpawnerFactory = Callable[[UUID, object, Tell | None], Spawner]

_factories: list[SpawnerFactory] = []


def register_spawner(factory: SpawnerFactory) -> None:
    """Make this the way; the last one registered wins."""
    _factories[:] = [factory]


def get_spawner(
    *,
    settings: ConnectionSettings,
    server_id: UUID,
    terms: object = None,
    tell: Tell | None = None,
) -> Spawner | None:
    """A spawner for the server's process; None where its transport starts none.

    `tell` gets sentences about the network of a test; runs have a timeline for that.
    Raises `ServerUnavailable` with the remedy.
    """
    if settings.transport != "stdio":
        return None
    if not _factories:
        raise ServerUnavailable(
            "This process has no sandbox to start stdio servers in.",
            hint="Run: umpteenth doctor",
        )
    return _factories[0](server_id, terms, tell)
