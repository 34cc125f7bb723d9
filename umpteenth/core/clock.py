"""One clock for what several machines compare: the database's.

Heartbeats, leases and due times are written by one machine and judged by another, whose own
clock may be minutes off. Where the database is a file there is one machine and one clock.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection
from django.utils import timezone

# Less than this may be the time that the question took, and would make times tremble.
TOLERANCE = timedelta(seconds=1)

_ahead = timedelta()  # how far the database's clock was before ours when it was last asked


def database_now() -> datetime:
    """The database's time, asked for: for whatever another machine will compare."""
    global _ahead
    if connection.vendor != "postgresql":
        return timezone.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    ahead = moment - timezone.now()
    _ahead = ahead if abs(ahead) >= TOLERANCE else timedelta()
    return moment


def ahead() -> timedelta:
    """How far the database's clock was before this machine's when it was last asked."""
    return _ahead


def now() -> datetime:
    """The same time without a question, by what the last one found: for what is only shown."""
    return timezone.now() + _ahead
