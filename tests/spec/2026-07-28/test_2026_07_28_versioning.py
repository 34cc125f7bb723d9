"""MCP 2026-07-28: Versioning and Compatibility, Discovery, and the fields of each request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from servers.mcp.types import ServerError, ServerUnavailable
from tests.fakes.mcp_http import JSON, Reply, Request
from tests.fakes.mcp_server import Behaviour, Message, text
from tests.spec.support import (
    HttpServer,
    Script,
    Spec,
    connecting,
    error,
    events,
    never,
    on,
    served,
    wire,
)

REVISION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
UNSUPPORTED = -32022


def rejecting(answer: Message, times: int = 1) -> Script:
    """The first requests for discovery get this error; over HTTP they would with status 400."""
    left = [answer] * times

    def script(message: Message) -> Message | None:
        return left.pop() if message["method"] == "server/discover" and left else None

    return script


def refusing(answer: Message, times: int = 1) -> Any:
    """The same as HTTP servers put it: with 400 Bad Request."""
    left = [answer] * times

    def requests(request: Request) -> Reply | None:
        if request.rpc != "server/discover" or not left:
            return None
        body = {"jsonrpc": "2.0", "id": request.message["id"], **left.pop()}
        return Reply(400, {"content-type": JSON}, json.dumps(body).encode())

    return requests


def rejection(way: str, answer: Message, times: int = 1) -> dict[str, Any]:
    if way == "stdio":
        return {"script": rejecting(answer, times)}
    return {"requests": refusing(answer, times)}


def supporting(*versions: str) -> Message:
    return error(UNSUPPORTED, "Unsupported protocol version", {"supported": list(versions)})


class TestNegotiation(Spec):
    """Versioning, Protocol Version Negotiation; Server, Discovery (U19)."""

    revision = REVISION

    async def test_discovery_comes_first_and_no_handshake_follows(self, way: str) -> None:
        """There is no negotiation handshake; clients may call `server/discover` first."""
        async with wire(way, REVISION) as (server, connection):
            await connection.list_tools()
            assert connection.protocol_version == REVISION
        assert server.methods() == ["server/discover", "tools/list"]

    async def test_each_request_says_what_it_speaks(self, way: str) -> None:
        """Overview, _meta: version and capabilities are required, clientInfo should be there."""
        async with wire(way, REVISION) as (server, connection):
            await connection.list_tools()
            await connection.call_tool("echo", {})
        assert len(server.messages) == 3
        for message in server.messages:
            meta = message["params"]["_meta"]
            assert meta[PREFIX + "protocolVersion"] == REVISION
            assert meta[PREFIX + "clientCapabilities"] == {"elicitation": {"form": {}}}
            assert meta[PREFIX + "clientInfo"]["name"] == "umpteenth"
            assert isinstance(meta[PREFIX + "clientInfo"]["version"], str)

    async def test_a_supported_revision_is_chosen_from_a_refusal(self, way: str) -> None:
        """The client selects a mutually supported version from `supported` and retries."""
        refusal = supporting("2031-01-01", REVISION, "2025-11-25")
        async with wire(way, REVISION, **rejection(way, refusal)) as (server, connection):
            assert connection.protocol_version == REVISION
        assert server.methods() == ["server/discover"] * 2
        assert len({message["id"] for message in server.messages}) == 2

    async def test_without_a_common_revision_the_refusal_is_shown(self, way: str) -> None:
        """An error is surfaced if no compatible version exists; no handshake is tried."""
        refusal = supporting("2031-01-01")
        async with served(way, REVISION, **rejection(way, refusal, 9)) as (server, settings):
            with pytest.raises(ServerError, match="Unsupported protocol version"):
                async with connecting(server, settings):
                    pass
        assert server.methods() == ["server/discover"]

    async def test_what_the_server_says_of_itself_is_taken_over(self, way: str) -> None:
        """Overview, per-response fields: serverInfo in the result's `_meta`."""
        behaviour = Behaviour(instructions="Be kind.", server_info={"name": "n", "version": "7"})
        async with wire(way, REVISION, behaviour=behaviour) as (_, connection):
            assert (connection.server_name, connection.server_version) == ("n", "7")
            assert connection.instructions == "Be kind."

    async def test_what_the_server_says_of_itself_may_be_missing(self, way: str) -> None:
        """Overview: serverInfo is optional, and nothing depends on it."""
        result = {"supportedVersions": [REVISION], "capabilities": {"tools": {}}}
        script = on("server/discover", {"result": {"resultType": "complete", **result}})
        async with wire(way, REVISION, script=script) as (_, connection):
            assert connection.server_name == ""
            assert (await connection.call_tool("echo", {})).ok


class TestCompatibility(Spec):
    """Versioning, Backward Compatibility with Initialization-Based Versions."""

    revision = REVISION

    @pytest.mark.parametrize("code", [-32020, -32021])
    async def test_a_modern_error_identifies_a_modern_server(self, way: str, code: int) -> None:
        """A recognized modern error: neither a handshake nor the transport of 2024-11-05."""
        given = rejection(way, error(code, "Not like this"), 9)
        async with served(way, REVISION, **given) as (server, settings):
            with pytest.raises(ServerError, match="Not like this"):
                async with connecting(server, settings):
                    pass
        assert server.methods() == ["server/discover"]
        assert {heard.method for heard in server.heard} <= {"", "POST"}

    @pytest.mark.parametrize("code", [-32601, -32602, -32600, -32603, -32000, -32004, -32099, 1])
    async def test_any_other_error_leads_to_the_handshake(self, way: str, code: int) -> None:
        """stdio, Backward Compatibility: the fallback is not keyed to one code."""
        given = rejection(way, error(code))
        async with wire(way, "2025-06-18", remembered={}, **given) as (server, connection):
            assert connection.protocol_version == "2025-06-18"
        methods = server.methods()
        assert methods == ["server/discover", "initialize", "notifications/initialized"]

    async def test_a_refusal_that_names_only_older_revisions_leads_to_the_handshake(
        self, way: str
    ) -> None:
        """Protocol Version Negotiation: a mutually supported version is one with a handshake."""
        given = rejection(way, supporting("2025-06-18"))
        async with wire(way, "2025-06-18", remembered={}, **given) as (_, connection):
            assert connection.protocol_version == "2025-06-18"

    async def test_silence_leads_to_the_handshake(
        self, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """stdio, Backward Compatibility: no response within a reasonable time."""
        monkeypatch.setattr("servers.mcp.handshake.PROBE_PATIENCE", 0.05)
        script = on("server/discover", never())
        async with wire(way, "2025-06-18", remembered={}, script=script) as (server, connection):
            assert connection.protocol_version == "2025-06-18"
        assert server.methods()[:2] == ["server/discover", "initialize"]

    @pytest.mark.parametrize("first", ["server/discover", "initialize"])
    async def test_of_two_answers_at_once_only_one_counts(
        self, way: str, first: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compatibility Matrix: a dual-era server that starts slowly answers probe and handshake;
        from then on all requests are of one era, and without what the other one left."""
        monkeypatch.setattr("servers.mcp.handshake.PROBE_PATIENCE", 0.01)
        gates = {"server/discover": asyncio.Event(), "initialize": asyncio.Event()}

        async def script(message: Message) -> None:
            if message["method"] in gates:
                await gates[message["method"]].wait()

        behaviour = Behaviour(era="both")
        options: dict[str, Any] = {"script": script, "behaviour": behaviour, "remembered": {}}
        async with served(way, "2025-11-25", **options) as (server, settings):

            async def use() -> str:
                async with connecting(server, settings) as connection:
                    await connection.list_tools()
                    await connection.call_tool("echo", {})
                    return connection.mode

            task = asyncio.create_task(use())
            await server.until(lambda: len(server.methods()) == 2)
            second = "initialize" if first == "server/discover" else "server/discover"
            gates[first].set()
            gates[second].set()
            mode = await task
        used = [heard for heard in server.heard if heard.message.get("method", "")[:6] == "tools/"]
        metas = [heard.message.get("params", {}).get("_meta", {}) for heard in used]
        assert [PREFIX + "protocolVersion" in meta for meta in metas] == [mode == "discover"] * 2
        if isinstance(server, HttpServer):
            versions = {heard.headers["mcp-protocol-version"] for heard in used}
            assert versions == {REVISION if mode == "discover" else "2025-11-25"}
            assert ["mcp-session-id" in heard.headers for heard in used] == [mode != "discover"] * 2

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (400, b""),
            (400, b"Bad Request: Server not initialized"),
            (400, b'{"error": "session required"}'),
            (400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No session"}}'),
            (404, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Unknown"}}'),
        ],
    )
    async def test_the_body_of_a_refusal_decides(
        self, http_way: str, status: int, body: bytes
    ) -> None:
        """Streamable HTTP, Backward Compatibility: empty or not recognized, so `initialize`."""

        def requests(request: Request) -> Reply | None:
            refused = request.rpc == "server/discover"
            return Reply(status, {"content-type": JSON}, body) if refused else None

        options: dict[str, Any] = {"remembered": {}, "requests": requests}
        async with wire(http_way, "2025-11-25", **options) as (server, connection):
            assert (connection.transport, connection.protocol_version) == ("http", "2025-11-25")
        assert server.methods()[:2] == ["server/discover", "initialize"]

    async def test_the_era_is_remembered_and_looked_for_anew_if_it_fails(self, way: str) -> None:
        """The result is cached, may be persisted, and is probed again if it does not hold."""
        async with wire(way, REVISION, remembered={"mode": "handshake"}) as (server, connection):
            remembered = connection.remembered
        assert server.methods()[-1] == "server/discover"
        assert remembered["mode"] == "discover"
        async with wire(way, REVISION, remembered=remembered) as (server, _):
            pass
        assert server.methods() == ["server/discover"]
        async with wire(way, "2025-11-25", remembered=remembered) as (_, connection):
            assert connection.remembered["mode"] == "handshake"


class TestResults(Spec):
    """Overview, Responses, ResultType."""

    revision = REVISION

    @pytest.mark.parametrize("kind", [{}, {"resultType": "complete"}])
    async def test_a_result_without_a_type_is_complete(self, way: str, kind: Message) -> None:
        """For compatibility with servers of earlier revisions."""
        script = on("tools/call", {"result": {**text("done"), **kind}})
        async with wire(way, REVISION, script=script) as (_, connection):
            result = await connection.call_tool("echo", {})
        assert (result.ok, result.text) == (True, "done")

    @pytest.mark.parametrize("kind", ["task", "", 5, ["complete"], {"complete": 1}])
    async def test_a_result_of_an_unknown_type_is_invalid(self, way: str, kind: Any) -> None:
        """Any value unrecognized by the client."""
        script = on("tools/call", {"result": {**text("done"), "resultType": kind}})
        async with wire(way, REVISION, script=script) as (_, connection):
            with pytest.raises(ServerUnavailable, match="unknown type"):
                await connection.call_tool("echo", {})


class TestRequestsOfServers(Spec):
    """Streamable HTTP, Sending Messages, 4; stdio, Sending Messages."""

    revision = REVISION

    @pytest.mark.parametrize("method", ["ping", "elicitation/create", "roots/list", "made/up"])
    async def test_no_request_of_a_server_is_answered_over_stdio(self, method: str) -> None:
        """The client never writes responses, because servers do not initiate requests."""
        async with wire("stdio", REVISION) as (server, connection):
            await server.say({"jsonrpc": "2.0", "id": "q1", "method": method, "params": {}})
            assert (await connection.call_tool("echo", {})).ok
            assert (await connection.call_tool("echo", {})).ok
        assert server.answers() == []

    @pytest.mark.parametrize("method", ["ping", "elicitation/create", "roots/list", "made/up"])
    async def test_no_request_of_a_server_is_answered_over_http(self, method: str) -> None:
        """The client does not send JSON-RPC responses."""
        question = {"jsonrpc": "2.0", "id": "q1", "method": method, "params": {}}

        def requests(request: Request) -> Reply | None:
            if request.rpc != "tools/call":
                return None
            answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": text("done")}
            return events(*(b"data: %s\n\n" % json.dumps(m).encode() for m in (question, answer)))

        async with wire("events", REVISION, requests=requests) as (server, connection):
            assert isinstance(server, HttpServer)
            assert (await connection.call_tool("echo", {})).ok
            assert (await connection.call_tool("echo", {})).ok
        assert server.answers() == []
