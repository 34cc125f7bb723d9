"""MCP 2025-11-25: what it shares with every other revision."""

from __future__ import annotations

import pytest

from tests.fakes.mcp_server import Behaviour, Message
from tests.spec import common
from tests.spec.support import Spec, wire


class TestMessages(common.MessagesOfEach):
    revision = "2025-11-25"


class TestProgress(common.ProgressOfEach):
    revision = "2025-11-25"


class TestTools(common.StructuredToolsOfEach):
    revision = "2025-11-25"


class TestPagination(common.PaginationOfEach):
    revision = "2025-11-25"


class TestStdio(common.StdioOfEach):
    revision = "2025-11-25"


class TestSchemas(common.SchemasOfEach):
    revision = "2025-11-25"


TASKS: Message = {"tasks": {"requests": {"tools": {"call": {}}}}, "tools": {}}


class TestTasks(Spec):
    """Utilities, Tasks, Tool-Level Negotiation; this client never creates any."""

    revision = "2025-11-25"

    @pytest.mark.parametrize("support", ["required", "optional", "forbidden"])
    async def test_a_tool_that_runs_only_as_a_task_is_left_out(
        self, way: str, support: str
    ) -> None:
        """2: it must not be called in any other way; the others are called normally."""
        tools = [common.tool("echo", execution={"taskSupport": support}), common.tool("count")]
        behaviour = Behaviour(tools=tools, capabilities=TASKS)
        async with wire(way, self.revision, behaviour=behaviour) as (server, connection):
            listed = await connection.list_tools()
            for each in listed.tools:
                assert (await connection.call_tool(each.name, {})).ok
        kept = [each.name for each in listed.tools]
        assert kept == (["count"] if support == "required" else ["echo", "count"])
        assert [("echo" in warning) for warning in listed.warnings] == [True] * (2 - len(kept))
        assert all("task" not in call["params"] for call in server.sent("tools/call"))

    @pytest.mark.parametrize("declared", [{"tools": {}}, {"tools": {}, "tasks": {"requests": []}}])
    async def test_without_the_capability_the_mark_means_nothing(
        self, way: str, declared: Message
    ) -> None:
        """1: tools are called normally, whatever they say."""
        tools = [common.tool("echo", execution={"taskSupport": "required"})]
        behaviour = Behaviour(tools=tools, capabilities=declared)
        async with wire(way, self.revision, behaviour=behaviour) as (server, connection):
            assert [each.name for each in (await connection.list_tools()).tools] == ["echo"]
            assert (await connection.call_tool("echo", {})).ok
        assert "task" not in server.params("tools/call")
