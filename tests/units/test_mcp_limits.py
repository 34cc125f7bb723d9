"""How long a call may take."""

from __future__ import annotations

import pytest

from servers.limits import TimeLimit, call_limit, request_limit, start_limit


@pytest.mark.parametrize(
    ("tool", "seconds"),
    [
        ("echo", 120),
        ("deep_dive", 900),
        ("Web_Search_exa", 900),
        ("graph_neighbors", 900),
        ("codebase_overview", 900),
        ("analyze_image", 300),
        ("video_summary", 300),
        ("visualize", 300),
    ],
)
def test_slow_tools_are_known_by_their_names(tool: str, seconds: float) -> None:
    """U45-U47."""
    assert call_limit(tool).seconds == seconds


def test_a_set_limit_replaces_the_slow_classes() -> None:
    """U44, U48."""
    assert call_limit("graph_neighbors", tool_timeout=30) == TimeLimit(30, "tool_timeout_secs")
    assert call_limit("echo", tool_timeout=0).seconds is None


def test_a_set_request_limit_cuts_and_one_that_nobody_set_does_not() -> None:
    """U42 as section 0 has it."""
    assert call_limit("research", request_timeout=None).seconds == 900
    cut = call_limit("research", request_timeout=60)
    assert cut == TimeLimit(60, "request_timeout_secs")
    assert call_limit("echo", tool_timeout=30, request_timeout=60).seconds == 30
    assert call_limit("echo", tool_timeout=0, request_timeout=60).seconds == 60
    assert call_limit("echo", request_timeout=0).seconds == 120


def test_requests_and_starts_have_limits_that_zero_lifts() -> None:
    """U40, U43, C10."""
    assert request_limit(None).seconds == 60
    assert request_limit(5).seconds == 5
    assert request_limit(0).seconds is None
    assert start_limit(120) == TimeLimit(120, "start_timeout_secs")
    assert start_limit(0).seconds is None
