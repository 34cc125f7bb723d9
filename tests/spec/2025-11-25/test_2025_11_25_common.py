"""MCP 2025-11-25: what it shares with every other revision."""

from __future__ import annotations

from tests.spec import common


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
