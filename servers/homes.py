"""The homes of stdio servers, where what they cache and keep lies. The room above keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from servers.access import require_manager
from servers.models import Server
from umpteenth.accounts.models import User
from umpteenth.accounts.services import record_audit


class Homes(Protocol):
    """All of this machine, each of at most `limit` bytes."""

    @property
    def limit(self) -> int: ...

    def size(self, server_id: UUID) -> int: ...

    def clear(self, server_id: UUID) -> None: ...


_keepers: list[Callable[[], Homes]] = []


def register_homes(keeper: Callable[[], Homes]) -> None:
    """Make this what keeps them; the last one registered wins."""
    _keepers[:] = [keeper]


def homes_for(server: Server) -> Homes | None:
    """None where the server has no process, and so no home."""
    if server.transport != Server.Transport.STDIO or not _keepers:
        return None
    return _keepers[0]()


def clear_home(server: Server, *, actor: User | None) -> int:
    """Delete what the server keeps on this machine; how many bytes that were.

    Processes of it lose their home; the next start fetches packages again. Raises `NotAllowed`.
    """
    require_manager(actor)
    homes = homes_for(server)
    if homes is None:
        return 0
    size = homes.size(server.pk)
    homes.clear(server.pk)
    record_audit(
        actor=actor,
        action="server.clear_home",
        kind="server",
        object_id=str(server.pk),
        object_name=server.name,
        details={"bytes": size},
    )
    return size
