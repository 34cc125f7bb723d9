"""Who holds a connection to the database, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from django.db import connection

T = TypeVar("T")

# Runs a function in a thread that may ask the database, and may wait there.
Database = Callable[[Callable[[], Any]], Awaitable[Any]]


def give_back() -> None:
    """Hand this thread's connection back before a wait: Postgres has a pool that all share.

    A file keeps its own, which costs nobody anything. Nothing happens inside a transaction.
    """
    if connection.vendor == "postgresql" and not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()


def closing(work: Callable[[], T]) -> T:
    """For a thread that lends itself once: its connection goes with it."""
    try:
        return work()
    finally:
        connection.close()
