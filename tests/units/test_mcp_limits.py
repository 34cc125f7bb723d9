"""How long a call may take, and how much of everything a server may send and be sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import pytest

from servers import options
from servers.limits import (
    KIB,
    MIB,
    STANDARD,
    STRICT,
    Limits,
    TimeLimit,
    call_limit,
    request_limit,
    start_limit,
)
from servers.mcp.client import Connection, connect
from servers.mcp.types import CallResult, InvalidArguments, ServerError
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import FakeHttp
from tests.fakes.mcp_server import TOOLS, Behaviour, object_schema


@pytest.mark.parametrize(
    ("tool", "seconds"),
    [
        ("echo", 120),
        ("deep_dive", 900),
        ("Web_Search_exa", 900),
        ("graph_neighbors", 900),
        ("codebase_overview", 900),
        ("deepwiki", 900),
        ("Research", 900),
        ("x_graph_search_y", 900),
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


def test_the_profiles_are_those_of_the_requirements() -> None:
    """A37-A43 as section 0 has them."""
    assert asdict(STRICT) == {
        "tools": 64,
        "tool_pages": 20,
        "definition_bytes": 8 * MIB,
        "message_bytes": 256 * KIB,
        "result_bytes": 128 * KIB,
        "schema_bytes": 16 * KIB,
        "argument_bytes": 64 * KIB,
        "depth": 32,
        "nodes": 10_000,
        "call_seconds": 30.0,
    }
    assert STANDARD.tools == 512
    assert STANDARD.tool_pages == 100
    assert STANDARD.definition_bytes == 8 * MIB
    assert STANDARD.message_bytes == STANDARD.result_bytes == 16 * MIB


@asynccontextmanager
async def connected(limits: Limits, **behaviour: Any) -> AsyncIterator[Connection]:
    async with (
        FakeHttp(Behaviour(**behaviour)) as server,
        connect(http_settings(server.url, limits=limits)) as connection,
    ):
        await connection.list_tools()
        yield connection


async def test_a_strict_server_keeps_what_fits_and_loses_what_does_not() -> None:
    """A39-A42: end to end, and the server is not failed for it."""
    large = {"name": "large", "inputSchema": {**object_schema(), "description": "x" * 20_000}}
    more = [{"name": f"more{n}", "inputSchema": object_schema()} for n in range(80)]
    async with connected(STRICT, tools=[large, *TOOLS, *more]) as connection:
        listed = await connection.list_tools()
        assert len(listed.tools) == 64
        assert listed.warnings == [
            "Tool “large” is left out: its input schema is larger than 16 KiB (max_schema_bytes).",
            "The server has more than 64 tools (max_tools); the rest is left out.",
        ]
        assert (await connection.call_tool("big", {"bytes": 127 * KIB})).ok
        result = await connection.call_tool("big", {"bytes": 129 * KIB})
        assert "larger than 128 KiB (max_result_bytes)" in result.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"a": "x" * 64 * KIB}, "larger than 64 KiB (max_argument_bytes)"),
        ({"a": [0] * 10_000}, "more than 10000 values (max_nodes)"),
        ({"a": json.loads("[" * 32 + "]" * 32)}, "deeper than 32 levels (max_depth)"),
    ],
)
async def test_arguments_over_a_limit_are_never_sent(arguments: Any, words: str) -> None:
    """A43: also of a tool without a schema that says more."""
    async with connected(STRICT) as connection:
        with pytest.raises(InvalidArguments) as caught:
            await connection.call_tool("echo", arguments)
        assert words in caught.value.message
        calls = json.loads((await connection.call_tool("calls", {})).text)
    assert "echo" not in calls


async def test_a_message_over_a_strict_limit_fails_its_call_alone() -> None:
    """A43: 256 KiB."""
    async with connected(STRICT) as connection:
        with pytest.raises(ServerError, match="larger than 256 KiB"):
            await connection.call_tool("big", {"bytes": 257 * KIB})
        assert (await connection.call_tool("echo", {})).ok


async def test_a_single_limit_stands_in_for_the_profiles_own() -> None:
    """Section 0 of the requirements: adjustable for each server."""
    limits = options.read({"limits_profile": "strict", "max_result_bytes": 2 * KIB}).limits

    async def call(connection: Connection, size: int) -> CallResult:
        return await connection.call_tool("big", {"bytes": size})

    async with connected(limits) as connection:
        assert (await call(connection, 1 * KIB)).ok
        assert "larger than 2 KiB" in (await call(connection, 3 * KIB)).error
    assert (limits.depth, limits.call_seconds) == (32, 30.0)
