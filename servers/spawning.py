"""Where stdio servers get their process from. A higher room registers how (jobs.sandbox)."""

from __future__ import annotations

from collections.abc import Callable

from servers.mcp.types import ServerUnavailable, Spawner

# network: whether the sandbox reaches the network; label: what logs call the process.
SpawnerFactory = Callable[[bool, str], Spawner]

_factories: list[SpawnerFactory] = []


def register_spawner(factory: SpawnerFactory) -> None:
    """Make this the way; the last one registered wins."""
    _factories[:] = [factory]


def get_spawner(*, network: bool = True, label: str = "") -> Spawner:
    """A spawner for one server's process. Raises `ServerUnavailable` with the remedy."""
    if not _factories:
        raise ServerUnavailable(
            "This process has no sandbox to start stdio servers in.",
            hint="Run: umpteenth doctor",
        )
    return _factories[0](network, label)
