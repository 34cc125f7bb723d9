"""MCP 2025-03-26, Authorization: how a login is found."""

from __future__ import annotations

from tests.spec import authorization_discovery as discovery


class TestServers(discovery.ServersOfOldest):
    revision = "2025-03-26"
