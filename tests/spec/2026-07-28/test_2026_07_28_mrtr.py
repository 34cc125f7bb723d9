"""MCP 2026-07-28: Multi Round-Trip Requests, and elicitation by them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from servers.mcp.types import Answer as Reaction
from servers.mcp.types import Question
from tests.fakes.mcp_server import Message, object_schema, text
from tests.spec.support import Script, Spec, wire

REVISION = "2026-07-28"
FORM = {**object_schema(name={"type": "string"}), "required": ["name"]}
STATE = ' eyJ"\u2028 ü\n==; null'


def elicitation(**params: Any) -> Message:
    given = {"mode": "form", "message": "Your GitHub name?", "requestedSchema": FORM, **params}
    return {"method": "elicitation/create", "params": given}


def required(**fields: Any) -> Message:
    return {"result": {"resultType": "input_required", **fields}}


def rounds(*results: Message) -> Script:
    """The answers to the calls of `form`, one after the other."""
    left = list(results)

    def script(message: Message) -> Message | None:
        return left.pop(0) if message.get("params", {}).get("name") == "form" else None

    return script


DONE: Message = {"result": {"resultType": "complete", **text("done")}}


async def octocat(question: Question) -> Reaction:
    return Reaction("accept", {"name": "octocat"})


class TestRounds(Spec):
    """Patterns, Multi Round-Trip Requests, Client Requirements."""

    revision = REVISION

    async def test_the_inputs_go_with_the_original_request(self, way: str) -> None:
        """1: the requested inputs are constructed before the retry, under the server's keys."""
        asked = required(inputRequests={"a": elicitation(), "b": elicitation()}, requestState="s")
        options: dict[str, Any] = {"script": rounds(asked, DONE), "ask": octocat}
        async with wire(way, REVISION, **options) as (server, connection):
            assert (await connection.call_tool("form", {"x": 1})).text == "done"
        first, second = (call["params"] for call in server.sent("tools/call"))
        answer = {"action": "accept", "content": {"name": "octocat"}}
        assert second["inputResponses"] == {"a": answer, "b": answer}
        for params in (first, second):
            assert (params["name"], params["arguments"]) == ("form", {"x": 1})
        assert "inputResponses" not in first
        assert "requestState" not in first

    async def test_the_state_goes_back_as_it_came(self, way: str) -> None:
        """2: the exact value, neither parsed nor modified."""
        script = rounds(required(requestState=STATE), DONE)
        async with wire(way, REVISION, script=script) as (server, connection):
            assert (await connection.call_tool("form", {})).ok
        _, second = (call["params"] for call in server.sent("tools/call"))
        assert second["requestState"] == STATE

    async def test_where_there_is_no_state_none_is_sent(self, way: str) -> None:
        """2: not included in the retry, also not one of an earlier round."""
        asked = required(inputRequests={"a": elicitation()})
        script = rounds(required(requestState="old"), asked, DONE)
        async with wire(way, REVISION, script=script, ask=octocat) as (server, connection):
            assert (await connection.call_tool("form", {})).ok
        states = [call["params"].get("requestState") for call in server.sent("tools/call")]
        assert states == [None, "old", None]

    async def test_a_retry_is_a_request_of_its_own(self, way: str) -> None:
        """3: with another id, and with all that each request carries."""
        script = rounds(required(requestState="s"), required(requestState="t"), DONE)
        async with wire(way, REVISION, script=script) as (server, connection):
            assert (await connection.call_tool("form", {})).ok
        calls = server.sent("tools/call")
        assert len({call["id"] for call in calls}) == 3
        versions = [
            call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] for call in calls
        ]
        assert versions == [REVISION] * 3

    async def test_other_requests_at_the_same_time_are_not_touched(self, way: str) -> None:
        """4: inputs and state belong to the retry of their own request."""
        thinking, go_on = asyncio.Event(), asyncio.Event()

        async def slow(question: Question) -> Reaction:
            thinking.set()
            await go_on.wait()
            return Reaction("accept", {"name": "octocat"})

        asked = required(inputRequests={"a": elicitation()}, requestState="s")
        async with wire(way, REVISION, script=rounds(asked, DONE), ask=slow) as (
            server,
            connection,
        ):
            call = asyncio.create_task(connection.call_tool("form", {}))
            await thinking.wait()
            assert (await connection.call_tool("echo", {})).ok
            go_on.set()
            assert (await call).ok
        [other] = [each for each in server.sent("tools/call") if each["params"]["name"] == "echo"]
        assert set(other["params"]) == {"name", "arguments", "_meta"}

    @pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
    async def test_an_input_that_was_not_declared_is_not_made_up(
        self, way: str, method: str
    ) -> None:
        """Server Requirements, 7: such a request ends the call, and is not retried."""
        script = rounds(required(inputRequests={"a": {"method": method}}), DONE)
        async with wire(way, REVISION, script=script) as (server, connection):
            result = await connection.call_tool("form", {})
        assert not result.ok
        assert method in result.error
        assert len(server.sent("tools/call")) == 1

    async def test_a_server_that_never_has_enough_is_left(
        self, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Server Requirements, 8: servers may ask repeatedly; the client bounds it."""
        monkeypatch.setattr("servers.mcp.calls.FIRST_PAUSE", 0)
        script = rounds(*[required(requestState="s")] * 20)
        async with wire(way, REVISION, script=script) as (server, connection):
            assert not (await connection.call_tool("form", {})).ok
        assert len(server.sent("tools/call")) == 11


class TestElicitation(Spec):
    """Client Features, Elicitation."""

    revision = REVISION

    async def answer(self, way: str, request: Message, ask: Any = None) -> Message:
        script = rounds(required(inputRequests={"a": request}), DONE)
        async with wire(way, REVISION, script=script, ask=ask) as (server, connection):
            assert (await connection.call_tool("form", {})).ok
        response: Message = server.sent("tools/call")[1]["params"]["inputResponses"]["a"]
        return response

    async def test_a_request_without_a_mode_is_a_form(self, way: str) -> None:
        """Elicitation Requests: `mode` is optional for forms."""
        request = elicitation()
        del request["params"]["mode"]
        found = await self.answer(way, request, octocat)
        assert found == {"action": "accept", "content": {"name": "octocat"}}

    @pytest.mark.parametrize("action", ["decline", "cancel"])
    async def test_a_person_may_decline_or_leave(self, way: str, action: Any) -> None:
        """Response Actions: no content."""

        async def person(question: Question) -> Reaction:
            return Reaction(action)

        assert await self.answer(way, elicitation(), person) == {"action": action}

    async def test_an_answer_that_does_not_match_the_schema_is_not_sent(self, way: str) -> None:
        """Form Mode Security: responses are validated against the provided schema."""

        async def person(question: Question) -> Reaction:
            return Reaction("accept", {"name": ["no", "text"]})

        assert await self.answer(way, elicitation(), person) == {"action": "decline"}

    async def test_an_address_is_declined_and_never_fetched(self, way: str) -> None:
        """Capabilities: this mode is not declared; Safe URL Handling: no pre-fetching."""
        request = elicitation(mode="url", url="http://127.0.0.1:1/pay", requestedSchema=None)
        assert await self.answer(way, request) == {"action": "decline"}
