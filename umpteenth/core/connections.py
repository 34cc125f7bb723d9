"""Who holds a connection to the database, and for how long."""

from __future__ import annotations

from django.db import connection


def give_back() -> None:
    """Hand this thread's connection back before a wait: Postgres has a pool that all share.

    A file keeps its own, which costs nobody anything. Nothing happens inside a transaction.
    """
    if connection.vendor == "postgresql":
        connection.close_if_unusable_or_obsolete()
