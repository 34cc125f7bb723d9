"""MCP 2025-03-26: Streamable HTTP, and batches, which only this revision has."""

from __future__ import annotations

import json

from tests.fakes.mcp_http import JSON, Reply, Request, event
from tests.fakes.mcp_server import Message, text
from tests.spec import streamable
from tests.spec.support import Spec, events, http_wire, wire


class TestSending(streamable.SendingOfStreamable):
    revision = "2025-03-26"


class TestListening(streamable.ListeningOfStreamable):
    revision = "2025-03-26"


class TestSessions(streamable.SessionsOfStreamable):
    revision = "2025-03-26"


class TestResuming(streamable.ResumingOfStreamable):
    revision = "2025-03-26"


class TestCompatibility(streamable.CompatibilityOfStreamable):
    revision = "2025-03-26"


def batch_with(request: Message) -> list[Message]:
    """A notification and the answer to a request."""
    news = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}}
    return [news, {"jsonrpc": "2.0", "id": request["id"], "result": text("batched")}]


class TestBatches(Spec):
    """Overview, Batching; Transports, Sending Messages to the Server, 6."""

    revision = "2025-03-26"

    async def test_a_batch_of_requests_is_answered_one_by_one(self, way: str) -> None:
        """Overview, Batching: receiving batches is supported."""
        async with wire(way, self.revision) as (server, _):
            await server.say(
                [{"jsonrpc": "2.0", "id": identity, "method": "ping"} for identity in ("a", "b")]
            )
            await server.until(lambda: len(server.answers()) == 2)
        answers = sorted(server.answers(), key=lambda answer: str(answer["id"]))
        assert answers == [{"jsonrpc": "2.0", "id": each, "result": {}} for each in ("a", "b")]

    async def test_an_answer_may_come_in_a_batch(self, http_way: str) -> None:
        """Transports, 6: responses may be batched."""

        def requests(request: Request) -> Reply | None:
            if request.rpc != "tools/call":
                return None
            batch = batch_with(request.message)
            if http_way == "events":
                return events(event(batch))
            return Reply(200, {"content-type": JSON}, json.dumps(batch).encode())

        async with http_wire(http_way, self.revision, requests=requests) as (_, connection):
            assert (await connection.call_tool("echo", {})).text == "batched"

    async def test_nothing_is_sent_in_batches(self, way: str) -> None:
        """Overview, Batching: sending them is optional."""
        async with wire(way, self.revision) as (server, connection):
            await connection.call_tool("echo", {})
        assert all(isinstance(message, dict) for message in server.messages)
