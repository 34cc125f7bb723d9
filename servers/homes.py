"""The homes of stdio servers, where what they cache and keep lies. The room above keeps them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from django.db import transaction

from servers.access import require_manager
from servers.models import Server
from umpteenth.accounts.models import User
from umpteenth.accounts.services import record_audit
from umpteenth.core.connections import give_back
from umpteenth.core.text import clean

logger = logging.getLogger(__name__)

SIZE_KEPT = 30.0  # seconds that a size is good for


class CannotClear(Exception):
    """The system refused; nothing was deleted."""


class Homes(Protocol):
    """All of this machine, each of at most `limit` bytes."""

    @property
    def limit(self) -> int: ...

    def size(self, server_id: UUID) -> int:
        """Bytes on the disk, which may take minutes to count."""

    def clear(self, server_id: UUID) -> None:
        """Put its content out of the way, at once. Raises `OSError`."""

    def remove_cleared(self) -> int:
        """Delete what was put out of the way; a worker does it every two minutes."""


class Sizes:
    """Of the homes, counted one after the other however many ask."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._known: dict[UUID, tuple[float, int]] = {}

    def get(self, homes: Homes, server_id: UUID) -> int | None:
        """None while something is being counted for somebody else: ask again."""
        known = self._known.get(server_id)
        if known and time.monotonic() < known[0]:
            return known[1]
        if not self._counting.acquire(blocking=False):
            return None
        try:
            give_back()
            try:
                size = homes.size(server_id)
            except OSError:  # out of processes or descriptors; the next one who asks may know
                logger.exception("the home of server %s could not be counted", server_id)
                return None
            self._known[server_id] = (time.monotonic() + SIZE_KEPT, size)
            return size
        finally:
            self._counting.release()

    def forget(self, server_id: UUID) -> None:
        self._known.pop(server_id, None)


_keepers: list[Callable[[], Homes]] = []
_sizes = Sizes()


def register_homes(keeper: Callable[[], Homes]) -> None:
    """Make this what keeps them; the last one registered wins."""
    _keepers[:] = [keeper]


def homes_for(server: Server) -> Homes | None:
    """None where the server has no process, and so no home."""
    if server.transport != Server.Transport.STDIO or not _keepers:
        return None
    return _keepers[0]()


def home_size(server: Server) -> int | None:
    """Bytes on this machine; None while nobody knows. Takes minutes at worst."""
    homes = homes_for(server)
    return _sizes.get(homes, server.pk) if homes else None


def clear_home(server: Server, *, actor: User | None) -> int | None:
    """Take from the server what it keeps on this machine; how many bytes, if that is known.

    Processes of it lose their home; the next start fetches packages again. A worker deletes what
    is out of the way then. Raises `NotAllowed` and `CannotClear`.
    """
    require_manager(actor)
    homes = homes_for(server)
    if homes is None:
        return 0
    size = home_size(server)
    try:
        with transaction.atomic():
            record_audit(
                actor=actor,
                action="server.clear_home",
                kind="server",
                object_id=str(server.pk),
                object_name=server.name,
                details={"bytes": size},
            )
            homes.clear(server.pk)
    except OSError as error:
        logger.exception("the home of %s could not be cleared", server.name)
        reason = clean(error.strerror or type(error).__name__, 200)
        raise CannotClear(f"The home of {server.name} could not be cleared: {reason}.") from error
    _sizes.forget(server.pk)
    return size
