"""MCP 2024-11-05: what it shares with every other revision."""

from __future__ import annotations

from tests.spec import common


class TestMessages(common.MessagesOfEach):
    revision = "2024-11-05"


class TestProgress(common.ProgressOfEach):
    revision = "2024-11-05"


class TestTools(common.ToolsOfEach):
    revision = "2024-11-05"


class TestPagination(common.PaginationOfEach):
    revision = "2024-11-05"


class TestStdio(common.StdioOfEach):
    revision = "2024-11-05"
