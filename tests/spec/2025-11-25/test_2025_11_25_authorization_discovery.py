"""MCP 2025-11-25, Authorization: how a login is found."""

from __future__ import annotations

from tests.spec import authorization_discovery as discovery


class TestResources(discovery.ResourcesOfNewer):
    revision = "2025-11-25"


class TestPlaces(discovery.PlacesOfNewest):
    revision = "2025-11-25"
