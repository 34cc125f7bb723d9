"""MCP 2025-03-26: what it shares with every other revision."""

from __future__ import annotations

from tests.spec import common


class TestMessages(common.MessagesOfEach):
    revision = "2025-03-26"


class TestProgress(common.ProgressOfEach):
    revision = "2025-03-26"


class TestTools(common.ToolsOfEach):
    revision = "2025-03-26"


class TestPagination(common.PaginationOfEach):
    revision = "2025-03-26"


class TestStdio(common.StdioOfEach):
    revision = "2025-03-26"
