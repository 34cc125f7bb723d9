"""Facts that servers and tools tell about themselves."""

from __future__ import annotations

import pytest

from servers.models import Tool


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
