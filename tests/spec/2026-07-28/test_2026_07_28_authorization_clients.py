"""MCP 2026-07-28, Authorization: what it wants of clients at an authorization server."""

from __future__ import annotations

from tests.spec import authorization_clients as clients


class TestCodes(clients.CodesOfEach):
    revision = "2026-07-28"


class TestRegistration(clients.RegistrationOfEach):
    revision = "2026-07-28"


class TestGrants(clients.GrantsOfEach):
    revision = "2026-07-28"


class TestResource(clients.ResourceOfEach):
    revision = "2026-07-28"


class TestOrder(clients.OrderOfEach):
    revision = "2026-07-28"


class TestIssuers(clients.IssuersOfEach):
    revision = "2026-07-28"


class TestApplicationTypes(clients.ApplicationTypesOfEach):
    revision = "2026-07-28"
