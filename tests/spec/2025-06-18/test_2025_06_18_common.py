"""MCP 2025-06-18: what it shares with every other revision."""

from __future__ import annotations

from tests.spec import common


class TestMessages(common.MessagesOfEach):
    revision = "2025-06-18"


class TestProgress(common.ProgressOfEach):
    revision = "2025-06-18"


class TestTools(common.StructuredToolsOfEach):
    revision = "2025-06-18"


class TestPagination(common.PaginationOfEach):
    revision = "2025-06-18"


class TestStdio(common.StdioOfEach):
    revision = "2025-06-18"
