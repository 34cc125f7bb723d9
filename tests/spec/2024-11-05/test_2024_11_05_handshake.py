"""MCP 2024-11-05: lifecycle, cancellation, ping, and what servers ask of clients."""

from __future__ import annotations

from tests.spec import handshake


class TestLifecycle(handshake.LifecycleOfHandshakes):
    revision = "2024-11-05"


class TestCancellation(handshake.CancellationOfHandshakes):
    revision = "2024-11-05"


class TestPing(handshake.PingOfHandshakes):
    revision = "2024-11-05"


class TestRequests(handshake.RequestsOfHandshakes):
    revision = "2024-11-05"


class TestListChanges(handshake.ListChangesOfHandshakes):
    revision = "2024-11-05"
