"""MCP 2025-11-25, Transports: Streamable HTTP."""

from __future__ import annotations

import pytest

from tests.fakes.mcp_http import Reply, Request, event
from tests.fakes.mcp_server import text
from tests.spec import streamable
from tests.spec.support import Spec, events, http_wire


class TestSending(streamable.SendingOfStreamable):
    revision = "2025-11-25"


class TestListening(streamable.ListeningOfStreamable):
    revision = "2025-11-25"


class TestSessions(streamable.SessionsOfStreamable):
    revision = "2025-11-25"


class TestResuming(streamable.ResumingOfStreamable):
    revision = "2025-11-25"


class TestVersionHeader(streamable.VersionHeaderOfStreamable):
    revision = "2025-11-25"


class TestCompatibility(streamable.CompatibilityOfStreamable):
    revision = "2025-11-25"


class TestPolling(Spec):
    """Transports, Streamable HTTP, Sending Messages to the Server, 6: streams that the server
    closes to have them asked for again."""

    revision = "2025-11-25"

    async def test_the_wait_that_the_server_names_is_kept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An event with an id and no data primes the client; `retry` is respected."""
        waits: list[float] = []

        async def note(seconds: float) -> None:
            waits.append(seconds)

        monkeypatch.setattr("servers.mcp.http.pause", note)

        def requests(request: Request) -> Reply | None:
            if request.rpc == "tools/call":
                return events(b"id: primed\nretry: 2500\ndata: \n\n")
            if request.headers.get("last-event-id") == "primed":
                return events(b"id: polled\ndata:\n\n")
            if request.headers.get("last-event-id") == "polled":
                [call] = server.sent("tools/call")
                answer = {"jsonrpc": "2.0", "id": call["id"], "result": text("polled twice")}
                return events(event(answer))
            return None

        async with http_wire("events", self.revision, requests=requests) as (server, connection):
            result = await connection.call_tool("echo", {})
        assert result.text == "polled twice"
        assert waits == [2.5, 2.5]
        assert len(server.sent("tools/call")) == 1
        assert server.sent("notifications/cancelled") == []

    async def test_the_standing_stream_may_be_closed_and_comes_back_by_its_last_event(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Resumability, 2: however the stream was begun, resumption is by GET."""
        monkeypatch.setattr("servers.mcp.standing.FIRST_DELAY", 0)

        def requests(request: Request) -> Reply | None:
            first = request.method == "GET" and "last-event-id" not in request.headers
            return events(b"id: one\nretry: 0\ndata: \n\n") if first else None

        async with http_wire("json", self.revision, requests=requests) as (server, _):
            await server.until(lambda: len(server.of("GET")) == 2)
            assert server.of("GET")[1].headers["last-event-id"] == "one"
