"""What the revisions with a handshake want of clients: 2024-11-05 to 2025-11-25."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from servers.mcp.types import Answer as Reaction
from servers.mcp.types import CallTimedOut, Question, ServerUnavailable
from tests.fakes.mcp_server import Message, object_schema
from tests.spec.support import (
    Script,
    Server,
    Spec,
    StdioServer,
    Watcher,
    connecting,
    error,
    never,
    on,
    served,
    wire,
)

NEWEST = "2025-11-25"
INITIALIZED: Message = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def initialized(version: Any) -> Message:
    """An answer to `initialize`."""
    info = {"name": "fake", "version": "1"}
    told = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    return {"result": told}


def refusing_all_but(revision: str) -> Script:
    refusal = error(-32602, "Unsupported protocol version", {"supported": [revision]})

    def script(message: Message) -> Message | None:
        asked = message.get("params", {}).get("protocolVersion", revision)
        return None if asked == revision else refusal

    return script


class LifecycleOfHandshakes(Spec):
    """Lifecycle (U19)."""

    async def test_a_connection_begins_with_initialize_and_initialized(self, way: str) -> None:
        """Initialization: the request first, the notification behind its answer."""
        async with wire(way, self.revision) as (server, connection):
            await connection.list_tools()
        assert server.methods() == ["initialize", "notifications/initialized", "tools/list"]
        assert server.messages[1] == INITIALIZED

    async def test_the_client_says_who_it_is_and_what_it_can(self, way: str) -> None:
        """Initialization: version, capabilities and implementation; Version Negotiation: the
        latest that the client supports."""
        async with wire(way, self.revision) as (server, _):
            params = server.params("initialize")
        assert set(params) == {"protocolVersion", "capabilities", "clientInfo"}
        assert params["protocolVersion"] == NEWEST
        assert params["clientInfo"]["name"] == "umpteenth"
        assert isinstance(params["clientInfo"]["version"], str)

    async def test_nothing_is_declared_that_is_not_offered(self, way: str) -> None:
        """Capability Negotiation: neither roots nor sampling nor tasks."""
        async with wire(way, self.revision) as (server, _):
            assert set(server.params("initialize")["capabilities"]) <= {"elicitation"}

    async def test_nothing_is_sent_before_initialize_is_answered(self, way: str) -> None:
        """Initialization: no other requests before the server has responded."""
        release = asyncio.Event()

        async def held(message: Message) -> None:
            if message["method"] == "initialize":
                await release.wait()

        async with served(way, self.revision, script=held) as (server, settings):

            async def use() -> None:
                async with connecting(server, settings) as connection:
                    await connection.list_tools()

            task = asyncio.create_task(use())
            await server.until(server.methods)
            for _ in range(50):
                await asyncio.sleep(0)
            assert server.methods() == ["initialize"]
            release.set()
            await task

    async def test_the_revision_of_the_server_is_spoken(self, way: str) -> None:
        """Version Negotiation: the server counters with one that it supports."""
        async with wire(way, self.revision) as (_, connection):
            assert connection.protocol_version == self.revision
            assert (connection.server_name, connection.server_version) == ("fake", "1.2.3")

    async def test_a_revision_that_is_not_known_ends_the_connection(self, way: str) -> None:
        """Version Negotiation: the client disconnects."""
        script = on("initialize", initialized("2031-01-01"))
        async with served(way, self.revision, script=script) as (server, settings):
            with pytest.raises(ServerUnavailable, match="2031-01-01"):
                async with connecting(server, settings):
                    pass
        assert "notifications/initialized" not in server.methods()
        assert not isinstance(server, StdioServer) or server.end == ["stdin closed"]

    async def test_a_refused_revision_is_followed_by_one_that_the_server_names(
        self, way: str
    ) -> None:
        """Error Handling: protocol version mismatch."""
        script = refusing_all_but(self.revision)
        async with wire(way, self.revision, script=script) as (server, connection):
            assert connection.protocol_version == self.revision
        asked = [each["params"]["protocolVersion"] for each in server.sent("initialize")]
        assert asked == list(dict.fromkeys([NEWEST, self.revision]))
        assert server.methods()[-1] == "notifications/initialized"

    async def test_an_error_in_the_handshake_is_told_in_the_servers_words(self, way: str) -> None:
        """Error Handling."""
        script = on("initialize", error(-32603, "The database is down"))
        async with served(way, self.revision, script=script) as (server, settings):
            with pytest.raises(ServerUnavailable, match="The database is down"):
                async with connecting(server, settings):
                    pass

    async def test_the_probe_of_newer_revisions_comes_before_the_handshake(self) -> None:
        """2026-07-28, Versioning, Backward Compatibility: any error of an unknown kind leads to
        the handshake."""
        script = on("server/discover", error(-32602, "Not initialized"))
        options: dict[str, Any] = {"script": script, "remembered": {}}
        async with wire("stdio", self.revision, **options) as (server, connection):
            assert connection.protocol_version == self.revision
        assert server.methods() == ["server/discover", "initialize", "notifications/initialized"]


class CancellationOfHandshakes(Spec):
    """Utilities, Cancellation; Lifecycle, Timeouts."""

    async def test_a_call_over_its_limit_is_cancelled(self, way: str) -> None:
        """Timeouts: the sender issues a cancellation and stops waiting. Behavior Requirements: of
        a request of its own that is in progress."""
        async with wire(way, self.revision) as (server, connection):
            with pytest.raises(CallTimedOut):
                await connection.call_tool("hang", {}, timeout=0.1)
            await server.until(lambda: server.sent("notifications/cancelled"))
        [call] = server.sent("tools/call")
        [cancelled] = server.sent("notifications/cancelled")
        assert cancelled["params"]["requestId"] == call["id"]
        assert isinstance(cancelled["params"]["reason"], str)
        assert "id" not in cancelled

    async def test_a_caller_that_leaves_cancels_its_call(self, way: str) -> None:
        """Cancellation Flow."""
        async with wire(way, self.revision) as (server, connection):
            call = asyncio.create_task(connection.call_tool("hang", {}))
            await server.until(lambda: server.sent("tools/call"))
            call.cancel()
            await server.until(lambda: server.sent("notifications/cancelled"))
        [sent] = server.sent("tools/call")
        assert server.params("notifications/cancelled")["requestId"] == sent["id"]

    async def test_initialize_is_never_cancelled(self, way: str) -> None:
        """Behavior Requirements."""
        options: dict[str, Any] = (
            {"start_timeout": 0.1} if way == "stdio" else {"request_timeout": 0.1}
        )
        script = on("initialize", never())
        async with served(way, self.revision, script=script, **options) as (server, settings):
            with pytest.raises(ServerUnavailable):
                async with connecting(server, settings):
                    pass
            assert server.methods() == ["initialize"]

    async def test_what_was_answered_is_not_cancelled(self, way: str) -> None:
        """Behavior Requirements: only what is believed to be in progress."""
        async with wire(way, self.revision) as (server, connection):
            await connection.list_tools()
            await connection.call_tool("echo", {})
        assert server.sent("notifications/cancelled") == []

    async def test_an_answer_behind_the_cancellation_is_ignored(self, way: str) -> None:
        """Timing Considerations: late answers are handled gracefully."""
        async with wire(way, self.revision) as (server, connection):
            with pytest.raises(CallTimedOut):
                await connection.call_tool("late", {}, timeout=0.1)
            await server.until(lambda: server.sent("notifications/cancelled"))
            await connection.call_tool("release", {})
            result = await connection.call_tool("echo", {"a": 1})
        assert result.structured == {"a": 1}

    @pytest.mark.parametrize("params", [{"requestId": 999}, {"requestId": None}, {"other": 1}, {}])
    async def test_a_cancellation_of_nothing_is_ignored(self, way: str, params: Message) -> None:
        """Error Handling: unknown and malformed ones."""
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        async with wire(way, self.revision) as (server, connection):
            await server.say(cancelled)
            assert await server.answer_to("after", "ping") == {"result": {}}
            assert (await connection.call_tool("echo", {})).ok

    async def test_progress_renews_a_limit_and_the_deadline_stays(self) -> None:
        """Timeouts: a maximum is enforced regardless of progress."""
        async with wire("stdio", self.revision) as (server, connection):
            deadline = asyncio.get_running_loop().time() + 0.3
            arguments = {"steps": 100, "interval": 0.05}
            with pytest.raises(CallTimedOut):
                await connection.call_tool("progress", arguments, timeout=0.2, deadline=deadline)
            await server.until(lambda: server.sent("notifications/cancelled"))


class PingOfHandshakes(Spec):
    """Utilities, Ping."""

    @pytest.mark.parametrize("identity", ["123", 0, 7])
    async def test_a_ping_is_answered_with_an_empty_result(self, way: str, identity: Any) -> None:
        """Behavior Requirements."""
        async with wire(way, self.revision) as (server, _):
            assert await server.answer_to(identity, "ping") == {"result": {}}

    async def test_a_ping_is_answered_while_a_call_is_under_way(self, way: str) -> None:
        """Behavior Requirements: promptly."""
        async with wire(way, self.revision) as (server, connection):
            call = asyncio.create_task(connection.call_tool("late", {}))
            await server.until(lambda: server.sent("tools/call"))
            assert await server.answer_to("p", "ping") == {"result": {}}
            await connection.call_tool("release", {})
            assert (await call).ok


class RequestsOfHandshakes(Spec):
    """Overview, Messages; Client Features."""

    @pytest.mark.parametrize("method", ["roots/list", "sampling/createMessage", "made/up"])
    async def test_a_request_for_what_is_not_offered_is_refused(
        self, way: str, method: str
    ) -> None:
        """Roots, Error Handling: -32601; the response has the request's identifier."""
        async with wire(way, self.revision) as (server, connection):
            answer = await server.answer_to("q1", method, {})
            assert (await connection.call_tool("echo", {})).ok
        assert set(answer) == {"error"}
        assert answer["error"]["code"] == -32601
        assert isinstance(answer["error"]["message"], str)

    async def test_notifications_are_not_answered(self, way: str) -> None:
        """Notifications: the receiver sends no response, known or not."""
        async with wire(way, self.revision) as (server, _):
            for method in ("notifications/message", "made/up"):
                await server.say({"jsonrpc": "2.0", "method": method, "params": {}})
            assert await server.answer_to("after", "ping") == {"result": {}}
        assert len(server.answers()) == 1


class ListChangesOfHandshakes(Spec):
    """Server Features, Tools, List Changed Notification."""

    async def test_tools_are_listed_again_once_a_change_is_announced(self, way: str) -> None:
        """Message Flow: `tools/list` follows the notification before the next use."""
        observer = Watcher()
        async with wire(way, self.revision, observer=observer) as (server, connection):
            await connection.tools()
            await connection.tools()
            assert len(server.sent("tools/list")) == 1
            await server.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            await observer.until_noticed()
            await connection.call_tool("echo", {})
        assert server.methods()[-2:] == ["tools/list", "tools/call"]


class ElicitationOfHandshakes(Spec):
    """Client Features, Elicitation (2025-06-18 and 2025-11-25)."""

    declared: Message
    form = {**object_schema(name={"type": "string"}), "required": ["name"]}

    async def ask(self, server: Server, params: Message) -> Message:
        return await server.answer_to("e1", "elicitation/create", params)

    async def test_the_capability_is_declared(self, way: str) -> None:
        """Capabilities: in the shape of the revision that is asked for."""
        script = refusing_all_but(self.revision)
        async with wire(way, self.revision, script=script) as (server, _):
            sent = server.sent("initialize")
        assert [set(each["params"]["capabilities"]) for each in sent] == [{"elicitation"}] * len(
            sent
        )
        assert sent[-1]["params"]["capabilities"] == {"elicitation": self.declared}

    async def test_an_answer_of_a_person_goes_to_the_server(self, way: str) -> None:
        """Response Actions, Accept: content that matches the requested schema."""
        asked: list[Question] = []

        async def person(question: Question) -> Reaction:
            asked.append(question)
            return Reaction("accept", {"name": "octocat"})

        params = {"message": "Your GitHub name?", "requestedSchema": self.form}
        async with wire(way, self.revision, ask=person) as (server, _):
            answer = await self.ask(server, params)
        assert answer == {"result": {"action": "accept", "content": {"name": "octocat"}}}
        assert (asked[0].message, asked[0].schema) == ("Your GitHub name?", self.form)

    @pytest.mark.parametrize("action", ["decline", "cancel"])
    async def test_a_person_may_decline_or_leave(self, way: str, action: Any) -> None:
        """Response Actions: no content."""

        async def person(question: Question) -> Reaction:
            return Reaction(action)

        params = {"message": "Your name?", "requestedSchema": self.form}
        async with wire(way, self.revision, ask=person) as (server, _):
            assert await self.ask(server, params) == {"result": {"action": action}}

    async def test_an_answer_that_does_not_match_the_schema_is_not_sent(self, way: str) -> None:
        """Security Considerations: content is validated against the provided schema."""

        async def person(question: Question) -> Reaction:
            return Reaction("accept", {"name": 5})

        params = {"message": "Your name?", "requestedSchema": self.form}
        async with wire(way, self.revision, ask=person) as (server, _):
            assert await self.ask(server, params) == {"result": {"action": "decline"}}

    async def test_where_nobody_is_there_the_request_is_declined(self, way: str) -> None:
        """User Interaction Model: nothing is given that nobody agreed to."""
        params = {"message": "Your name?", "requestedSchema": self.form}
        async with wire(way, self.revision) as (server, connection):
            assert await self.ask(server, params) == {"result": {"action": "decline"}}
            assert (await connection.call_tool("echo", {})).ok
