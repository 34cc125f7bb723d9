"""MCP 2026-07-28: what it shares with every other revision."""

from __future__ import annotations

from tests.spec import common


class TestMessages(common.MessagesOfEach):
    revision = "2026-07-28"


class TestProgress(common.ProgressOfEach):
    revision = "2026-07-28"


class TestTools(common.StructuredToolsOfEach):
    revision = "2026-07-28"


class TestPagination(common.PaginationOfEach):
    revision = "2026-07-28"


class TestStdio(common.StdioOfEach):
    revision = "2026-07-28"


class TestSchemas(common.SchemasOfEach):
    revision = "2026-07-28"
