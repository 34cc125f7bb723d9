"""The lines of calls as rows of the database (`servers.inflight`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from servers.inflight import LEASE, Turn
from servers.models import CallTicket


class DatabaseStore:
    """The line as rows. Their numbers are given under a lock, so that no older one shows up
    later; expired ones are as good as gone.

    `turn` is on the way of every call and says its SQL itself: that takes a third of the time.
    """

    def turn(
        self,
        server_id: UUID,
        holder: str,
        *,
        limit: int,
        take: int = 0,
        leave: Sequence[int] = (),
        waiting: Sequence[int] = (),
    ) -> Turn:
        if not take:  # a look and a departure need no lock
            self._delete(leave)
            return self._look(server_id, limit, [], waiting)
        with transaction.atomic():
            _lock(server_id)
            self._delete(leave)
            taken = _insert(server_id, holder, take)
            return self._look(server_id, limit, taken, waiting)

    def keep_only(self, server_id: UUID, holder: str, ids: Collection[int]) -> None:
        mine = CallTicket.objects.filter(server_id=server_id, holder=holder)
        mine.exclude(pk__in=ids).delete()

    def renew(self, holder: str) -> None:
        _live().filter(holder=holder).update(expires_at=_now() + LEASE)

    def drop(self, holder: str) -> None:
        CallTicket.objects.filter(holder=holder).delete()

    def sweep(self) -> int:
        expired = CallTicket.objects.filter(expires_at__lte=_now())
        # A look first: a write would lock a file for nothing.
        return expired.delete()[0] if expired.exists() else 0

    def _delete(self, ids: Sequence[int]) -> None:
        if ids:
            marks = ", ".join(["%s"] * len(ids))
            with connection.cursor() as cursor:
                cursor.execute(f"DELETE FROM {_TABLE} WHERE id IN ({marks})", list(ids))

    def _look(self, server_id: UUID, limit: int, taken: list[int], waiting: Sequence[int]) -> Turn:
        if not (taken or waiting):
            return Turn()
        oldest = frozenset(_oldest(server_id, limit))
        alive = frozenset(taken)
        if waiting:
            alive |= frozenset(_live().filter(pk__in=waiting).values_list("pk", flat=True))
        return Turn(taken, oldest & alive, frozenset(waiting) - alive)


_TABLE: Final = CallTicket._meta.db_table


def _insert(server_id: UUID, holder: str, number: int) -> list[int]:
    """New tickets, in order."""
    moment, given = _moment(LEASE)
    row = [_uuid(server_id), holder, *given]
    rows = ", ".join([f"(%s, %s, {moment})"] * number)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {_TABLE} (server_id, holder, expires_at) VALUES {rows} RETURNING id",
            row * number,
        )
        return sorted(number for (number,) in cursor.fetchall())


def _oldest(server_id: UUID, limit: int) -> list[int]:
    """The tickets that hold the server's slots."""
    moment, given = _moment(timedelta())
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id FROM {_TABLE} WHERE server_id = %s AND expires_at > {moment}"
            " ORDER BY id LIMIT %s",
            [_uuid(server_id), *given, limit],
        )
        return [number for (number,) in cursor.fetchall()]


def _moment(after: timedelta) -> tuple[str, list[Any]]:
    """The database's time and some more, as SQL and its parameters."""
    if connection.vendor == "postgresql":
        return "STATEMENT_TIMESTAMP() + %s", [after]
    return "%s", [connection.ops.adapt_datetimefield_value(timezone.now() + after)]


def _uuid(value: UUID) -> Any:
    return CallTicket._meta.get_field("server").get_db_prep_value(value, connection, prepared=False)


def _live() -> QuerySet[CallTicket]:
    return CallTicket.objects.filter(expires_at__gt=_now())


def _now() -> Any:
    """The database's clock, without a question of its own."""
    return Now() if connection.vendor == "postgresql" else timezone.now()


def _lock(server_id: UUID) -> None:
    """One at a time for this server until the transaction ends. Not the server's row: whoever
    rewrites its tools would hold up its calls. A file has one writer anyway."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [server_id.int % 2**63])
