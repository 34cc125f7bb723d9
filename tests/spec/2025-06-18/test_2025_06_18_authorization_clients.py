"""MCP 2025-06-18, Authorization: what it wants of clients at an authorization server."""

from __future__ import annotations

from tests.spec import authorization_clients as clients


class TestCodes(clients.CodesOfEach):
    revision = "2025-06-18"


class TestRegistration(clients.RegistrationOfEach):
    revision = "2025-06-18"


class TestGrants(clients.GrantsOfEach):
    revision = "2025-06-18"


class TestResource(clients.ResourceOfEach):
    revision = "2025-06-18"
