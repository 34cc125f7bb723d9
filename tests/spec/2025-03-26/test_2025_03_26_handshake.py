"""MCP 2025-03-26: lifecycle, cancellation, ping, and what servers ask of clients."""

from __future__ import annotations

from tests.spec import handshake


class TestLifecycle(handshake.LifecycleOfHandshakes):
    revision = "2025-03-26"


class TestCancellation(handshake.CancellationOfHandshakes):
    revision = "2025-03-26"


class TestPing(handshake.PingOfHandshakes):
    revision = "2025-03-26"


class TestRequests(handshake.RequestsOfHandshakes):
    revision = "2025-03-26"


class TestListChanges(handshake.ListChangesOfHandshakes):
    revision = "2025-03-26"
