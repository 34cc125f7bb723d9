"""Tools are called by the names that their servers gave them, whatever these are made of."""

from __future__ import annotations

import base64

import pytest

from servers.mcp.client import connect
from tests.fakes.mcp_helpers import WAYS, http_settings, reached
from tests.fakes.mcp_http import FakeHttp, Request
from tests.fakes.mcp_server import Behaviour, object_schema

NAMES = ["catalog.get", "a/b", "New Tool", "überprüfen", "工具", "n" * 65, "n" * 129]


def tools_of(*names: str) -> Behaviour:
    return Behaviour(tools=[{"name": name, "inputSchema": object_schema()} for name in names])


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_bears_the_raw_name(way: str) -> None:
    """D04, D05: two names that look alike to a model are two tools to the server."""
    names = [*NAMES, "get.user", "get_user"]
    async with reached(way, tools_of(*names)) as connection:
        assert [tool.name for tool in (await connection.list_tools()).tools] == names
        for name in names:
            # The fake knows none of them and repeats the name that it was called by.
            assert (await connection.call_tool(name, {})).error == f"Unknown tool: {name} (-32602)"


def named_in_header(request: Request) -> str:
    """SEP-2243: what no header can hold is written in base64."""
    value = request.headers["mcp-name"]
    if value.startswith("=?base64?") and value.endswith("?="):
        return base64.b64decode(value[9:-2]).decode()
    return value


async def test_a_header_that_repeats_the_name_repeats_it_exactly() -> None:
    """D04 and 2026-07-28, "Standard request headers": servers compare it with the body."""
    names = [*NAMES, " blanks ", "=?base64?QQ==?="]
    behaviour = tools_of(*names)
    behaviour.era = "modern"
    async with (
        FakeHttp(behaviour, sessions=False) as server,
        connect(http_settings(server.url)) as connection,
    ):
        for name in names:
            await connection.call_tool(name, {})
    calls = [request for request in server.requests if request.rpc == "tools/call"]
    assert [named_in_header(request) for request in calls] == names
