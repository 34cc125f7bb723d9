"""MCP 2025-11-25, Authorization: what it wants of clients at an authorization server."""

from __future__ import annotations

from tests.spec import authorization_clients as clients


class TestCodes(clients.CodesOfEach):
    revision = "2025-11-25"


class TestRegistration(clients.RegistrationOfEach):
    revision = "2025-11-25"


class TestGrants(clients.GrantsOfEach):
    revision = "2025-11-25"


class TestResource(clients.ResourceOfEach):
    revision = "2025-11-25"


class TestOrder(clients.OrderOfEach):
    revision = "2025-11-25"
