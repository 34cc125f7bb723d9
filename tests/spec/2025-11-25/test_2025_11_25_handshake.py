"""MCP 2025-11-25: lifecycle, cancellation, ping, and what servers ask of clients."""

from __future__ import annotations

import pytest

from tests.fakes.mcp_server import Message, object_schema
from tests.spec import handshake
from tests.spec.support import Spec, wire


class TestLifecycle(handshake.LifecycleOfHandshakes):
    revision = "2025-11-25"


class TestCancellation(handshake.CancellationOfHandshakes):
    revision = "2025-11-25"


class TestPing(handshake.PingOfHandshakes):
    revision = "2025-11-25"


class TestRequests(handshake.RequestsOfHandshakes):
    revision = "2025-11-25"


class TestListChanges(handshake.ListChangesOfHandshakes):
    revision = "2025-11-25"


class TestElicitation(handshake.ElicitationOfHandshakes):
    revision = "2025-11-25"
    declared = {"form": {}}


class TestElicitationModes(Spec):
    """Client Features, Elicitation."""

    revision = "2025-11-25"

    async def test_a_mode_that_was_not_declared_is_refused(self, way: str) -> None:
        """Error Handling: -32602; Safe URL Handling: the address is not fetched."""
        params = {"mode": "url", "message": "Pay", "url": "https://h/pay", "elicitationId": "1"}
        async with wire(way, self.revision) as (server, _):
            answer = await server.answer_to("e1", "elicitation/create", params)
        assert answer["error"]["code"] == -32602

    @pytest.mark.parametrize("mode", [{}, {"mode": "form"}])
    async def test_without_a_mode_it_is_a_form(self, way: str, mode: Message) -> None:
        """Form Mode: `mode` may be left out."""
        form = object_schema(name={"type": "string", "default": "octocat"})
        params = {**mode, "message": "Your name?", "requestedSchema": form}
        async with wire(way, self.revision) as (server, _):
            answer = await server.answer_to("e1", "elicitation/create", params)
        assert answer == {"result": {"action": "accept", "content": {"name": "octocat"}}}

    @pytest.mark.parametrize(
        "field",
        [
            {"type": "string", "default": "a@example.com", "format": "email"},
            {"type": "number", "default": 1.5, "minimum": 0},
            {"type": "integer", "default": 30},
            {"type": "boolean", "default": False},
            {"type": "string", "enum": ["a", "b"], "default": "b"},
            {"type": "string", "oneOf": [{"const": "a", "title": "A"}], "default": "a"},
            {
                "type": "array",
                "items": {"type": "string", "enum": ["a", "b"]},
                "maxItems": 2,
                "default": ["a", "b"],
            },
            {
                "type": "array",
                "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]},
                "default": ["b"],
            },
        ],
    )
    async def test_defaults_of_every_kind_of_field_are_used(self, field: Message) -> None:
        """Requested Schema: all kinds of primitive types, with optional defaults (SEP-1034)."""
        form = {**object_schema(f=field), "required": ["f"]}
        async with wire("stdio", self.revision) as (server, _):
            params = {"message": "Which?", "requestedSchema": form}
            answer = await server.answer_to("e1", "elicitation/create", params)
        assert answer == {"result": {"action": "accept", "content": {"f": field["default"]}}}
