"""MCP 2026-07-28, Authorization: how a login is found."""

from __future__ import annotations

from tests.spec import authorization_discovery as discovery


class TestResources(discovery.ResourcesOfNewer):
    revision = "2026-07-28"


class TestPlaces(discovery.PlacesOfNewest):
    revision = "2026-07-28"


class TestRules(discovery.RulesOfNewest):
    revision = "2026-07-28"
