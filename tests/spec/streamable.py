"""Streamable HTTP as it was from 2025-03-26 to 2025-11-25."""

from __future__ import annotations

import asyncio
import json

import pytest

from servers.mcp.types import ConnectionLost, ServerUnavailable
from tests.fakes.mcp_http import Reply, Request, event
from tests.fakes.mcp_server import Message, text
from tests.spec.support import Spec, connecting, error, events, http_wire, on, served

SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"


class SendingOfStreamable(Spec):
    """Transports, Streamable HTTP, Sending Messages to the Server."""

    async def test_each_message_is_a_post_of_its_own(self, http_way: str) -> None:
        """1 and 3: a new POST to the one endpoint, with a single message for a body."""
        async with http_wire(http_way, self.revision) as (server, connection):
            await connection.list_tools()
            await asyncio.gather(*(connection.call_tool("echo", {}) for _ in range(3)))
            await server.answer_to("p", "ping")
        posts = server.of("POST")
        assert len(posts) == 7
        assert {post.path for post in server.heard} == {"/mcp"}
        assert all(isinstance(post.message, dict) and post.message for post in posts)

    async def test_each_post_accepts_json_and_events(self, http_way: str) -> None:
        """2: requests, notifications and responses alike."""
        async with http_wire(http_way, self.revision) as (server, connection):
            await connection.call_tool("echo", {})
            await server.answer_to("p", "ping")
        for post in server.of("POST"):
            accepted = {part.strip() for part in post.headers["accept"].split(",")}
            assert accepted >= {"application/json", "text/event-stream"}
            assert post.headers["content-type"] == "application/json"

    async def test_answers_may_be_json_or_events(self, http_way: str) -> None:
        """5 (2025-03-26: 5): both cases are supported."""
        async with http_wire(http_way, self.revision) as (_, connection):
            assert (await connection.list_tools()).tools
            assert (await connection.call_tool("echo", {"a": 1})).structured == {"a": 1}

    async def test_a_server_may_speak_on_a_stream_before_its_answer(self) -> None:
        """6: requests and notifications come before the response."""
        async with http_wire("events", self.revision) as (_, connection):
            result = await connection.call_tool("ask", {"method": "ping"})
        assert json.loads(result.text) == {}

    async def test_a_refused_notification_ends_the_handshake_with_a_sentence(
        self, http_way: str
    ) -> None:
        """4: an HTTP error status where the server cannot accept the input."""

        def requests(request: Request) -> Reply | None:
            refused = request.rpc == "notifications/initialized"
            return Reply(400, {"content-type": "text/plain"}, b"not now") if refused else None

        async with served(http_way, self.revision, requests=requests) as (server, settings):
            with pytest.raises(ServerUnavailable, match="400 Bad Request: not now"):
                async with connecting(server, settings):
                    pass

    async def test_a_lost_stream_is_no_cancellation(self) -> None:
        """6: disconnection is not interpreted as such, and nothing that may have run is sent
        again."""
        script = on("tools/call", events(b": working\n\n", cut=True))
        async with http_wire("events", self.revision, script=script) as (server, connection):
            with pytest.raises(ConnectionLost, match="may have happened"):
                await connection.call_tool("echo", {})
            await server.answer_to("after", "ping")
        assert len(server.sent("tools/call")) == 1
        assert server.sent("notifications/cancelled") == []


class ListeningOfStreamable(Spec):
    """Transports, Streamable HTTP, Listening for Messages from the Server (B04)."""

    async def test_a_stream_is_opened_for_what_the_server_says_on_its_own(
        self, http_way: str
    ) -> None:
        """1 and 2: a GET that accepts events, once the handshake is through."""
        async with http_wire(http_way, self.revision) as (server, _):
            await server.until(lambda: server.of("GET"))
            [get] = server.of("GET")
        assert get.path == "/mcp"
        assert get.headers["accept"] == "text/event-stream"
        before = [heard.message.get("method") for heard in server.heard if heard.message]
        assert before[:2] == ["initialize", "notifications/initialized"]

    @pytest.mark.parametrize("status", [405, 404, 501])
    async def test_a_server_without_that_stream_is_healthy(
        self, http_way: str, status: int
    ) -> None:
        """3: 405, and what other servers answer in its place."""

        def requests(request: Request) -> Reply | None:
            return Reply(status) if request.method == "GET" else None

        async with http_wire(http_way, self.revision, requests=requests) as (server, connection):
            await server.until(lambda: server.of("GET"))
            assert (await connection.call_tool("echo", {})).ok
        assert len(server.of("GET")) == 1

    async def test_that_stream_is_not_waited_for(self, http_way: str) -> None:
        """4: the client may use it or not; nothing depends on it."""
        async with http_wire(http_way, self.revision) as (server, connection):
            await server.until(lambda: server.of("GET"))
            assert (await connection.call_tool("echo", {})).ok
        assert server.of("GET")


class SessionsOfStreamable(Spec):
    """Transports, Streamable HTTP, Session Management (U16, U17; B01)."""

    async def test_the_session_goes_with_every_request_behind_its_beginning(
        self, http_way: str
    ) -> None:
        """2: on all subsequent HTTP requests, of any method."""
        async with http_wire(http_way, self.revision) as (server, connection):
            await server.until(lambda: server.of("GET"))
            await connection.call_tool("echo", {})
            await server.answer_to("p", "ping")
        first, *others = server.heard
        assert SESSION not in first.headers
        assert {heard.method for heard in others} == {"POST", "GET", "DELETE"}
        assert {heard.headers.get(SESSION) for heard in others} == {"s1"}

    async def test_without_a_session_nothing_is_made_up(self, http_way: str) -> None:
        """1: sessions are the server's choice."""
        http = {"sessions": False}
        async with http_wire(http_way, self.revision, http=http) as (server, connection):
            await connection.call_tool("echo", {})
        assert all(SESSION not in heard.headers for heard in server.heard)
        assert server.of("DELETE") == []

    async def test_a_forgotten_session_is_replaced_by_a_new_one(self, http_way: str) -> None:
        """4: on 404 a new `initialize` without a session, then the request once more."""
        async with http_wire(http_way, self.revision) as (server, connection):
            server.http.known_sessions.clear()
            result = await connection.call_tool("echo", {"a": 1})
        assert result.structured == {"a": 1}
        again = server.sent("initialize")
        assert len(again) == 2
        starts = [each for each in server.heard if each.message.get("method") == "initialize"]
        assert all(SESSION not in start.headers for start in starts)
        calls = [each for each in server.heard if each.message.get("method") == "tools/call"]
        sessions = [call.headers[SESSION] for call in calls]
        assert len(sessions) == len(set(sessions)) == 2

    async def test_the_end_of_a_connection_ends_the_session(self, http_way: str) -> None:
        """5: DELETE with the session's id, as the last request."""
        async with http_wire(http_way, self.revision) as (server, _):
            assert server.of("DELETE") == []
        last = server.heard[-1]
        assert (last.method, last.path, last.headers[SESSION]) == ("DELETE", "/mcp", "s1")

    async def test_a_server_may_keep_its_sessions(self, http_way: str) -> None:
        """5: 405 to the DELETE."""

        def requests(request: Request) -> Reply | None:
            return Reply(405) if request.method == "DELETE" else None

        async with http_wire(http_way, self.revision, requests=requests) as (server, connection):
            assert (await connection.call_tool("echo", {})).ok
        assert len(server.of("DELETE")) == 1


class ResumingOfStreamable(Spec):
    """Transports, Streamable HTTP, Resumability and Redelivery."""

    async def test_a_broken_stream_is_resumed_behind_the_last_event(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """2: a GET with `Last-Event-ID`; the request is not sent again."""
        monkeypatch.setattr("servers.mcp.http.pause", at_once)

        def requests(request: Request) -> Reply | None:
            if request.rpc == "tools/call":
                return events(event(progress_to(request), identity="e7"), cut=True)
            if "last-event-id" in request.headers:
                [call] = server.sent("tools/call")
                answer = {"jsonrpc": "2.0", "id": call["id"], "result": text("resumed")}
                return events(event(answer, identity="e8"))
            return None

        async with http_wire("events", self.revision, requests=requests) as (server, connection):
            result = await connection.call_tool("echo", {})
        assert result.text == "resumed"
        [resumption] = [get for get in server.of("GET") if "last-event-id" in get.headers]
        assert resumption.headers["last-event-id"] == "e7"
        assert resumption.headers["accept"] == "text/event-stream"
        assert resumption.headers[SESSION] == "s1"
        assert len(server.sent("tools/call")) == 1


async def at_once(seconds: float) -> None:
    """In place of a pause."""


def progress_to(request: Request) -> Message:
    token = request.message["params"]["_meta"]["progressToken"]
    params = {"progressToken": token, "progress": 1}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


class VersionHeaderOfStreamable(Spec):
    """Transports, Streamable HTTP, Protocol Version Header (from 2025-06-18 on)."""

    async def test_the_agreed_revision_goes_with_every_request(self, http_way: str) -> None:
        """On all subsequent requests: the one negotiated during initialization."""
        async with http_wire(http_way, self.revision) as (server, connection):
            await server.until(lambda: server.of("GET"))
            await connection.call_tool("echo", {})
            await server.answer_to("p", "ping")
        first, *others = server.heard
        assert VERSION not in first.headers
        assert {heard.method for heard in others} == {"POST", "GET", "DELETE"}
        assert {heard.headers.get(VERSION) for heard in others} == {self.revision}

    async def test_a_server_that_refuses_the_header_is_quoted(self, http_way: str) -> None:
        """400 for an invalid or unsupported version."""

        def requests(request: Request) -> Reply | None:
            body = json.dumps({"jsonrpc": "2.0", "id": None, **error(-32000, "Bad version")})
            refused = request.rpc == "tools/list"
            kind = {"content-type": "application/json"}
            return Reply(400, kind, body.encode()) if refused else None

        async with http_wire(http_way, self.revision, requests=requests) as (_, connection):
            with pytest.raises(Exception, match="Bad version"):
                await connection.list_tools()


class CompatibilityOfStreamable(Spec):
    """Transports, Streamable HTTP, Backwards Compatibility."""

    @pytest.mark.parametrize("status", [400, 404, 405])
    async def test_an_older_server_is_found_by_its_event_stream(self, status: int) -> None:
        """Clients, 2: where the POST fails so, a GET that expects an `endpoint` event."""

        def requests(request: Request) -> Reply | None:
            post = request.method == "POST" and request.path == "/sse"
            return Reply(status) if post else None

        http = {"transport": "sse"}
        async with http_wire("json", "2024-11-05", requests=requests, http=http) as (
            server,
            connection,
        ):
            assert connection.transport == "sse"
            assert (await connection.call_tool("echo", {})).ok
        start = server.heard.index(server.of("GET")[0])
        assert server.heard[0].message["method"] == "initialize"
        assert "text/event-stream" in server.heard[0].headers["accept"]
        assert {heard.path for heard in server.heard[: start + 1]} == {"/sse"}
        assert {heard.path for heard in server.heard[start + 1 :]} == {"/messages?session=1"}
        assert len(server.of("GET")) == 1

    async def test_a_server_that_answers_is_taken_for_a_newer_one(self, http_way: str) -> None:
        """Clients, 2: where the POST succeeds."""
        async with http_wire(http_way, self.revision) as (server, connection):
            assert connection.transport == "http"
        assert server.heard[0].method == "POST"
