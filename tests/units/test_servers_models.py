"""Facts that servers and tools tell about themselves."""

from __future__ import annotations

import pytest
from django.db import connection

from servers.models import CallTicket, Tool


@pytest.mark.parametrize(
    ("hints", "read_only", "destructive"),
    [
        ({}, False, False),
        ({"read_only": True}, True, False),
        ({"read_only": True, "destructive": True}, True, False),
        ({"read_only": False}, False, True),
        ({"destructive": True}, False, True),
        ({"destructive": False}, False, False),
        ({"open_world": True}, False, True),
    ],
)
def test_badges_follow_the_hints(
    hints: dict[str, bool], read_only: bool, destructive: bool
) -> None:
    """P33, P73: without any annotation neither badge is shown."""
    tool = Tool(**hints)
    assert (tool.shows_read_only, tool.shows_destructive) == (read_only, destructive)


@pytest.mark.django_db
def test_a_ticket_is_written_to_one_index_of_its_server() -> None:
    """Each call writes one and removes it."""
    table = CallTicket._meta.db_table
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, table).values()
    indexes = [entry["columns"] for entry in found if entry["index"]]
    assert [columns for columns in indexes if columns[0] == "server_id"] == [["server_id", "id"]]
