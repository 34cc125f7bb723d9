"""A stand-in for the context engine: an MCP server over HTTP with its tools, codes and people.

It answers POST at `/rpc` and, alike, at `/mcp` (U83); every other method gets 405 (U99). A tenant's
key `ugctx_…` is its bearer token (U82). With `actors` each session belongs to the person whom its
`x-ugent-actor` header names at `initialize`, and calls of a session without one are refused (U65).
What it knows is small and fixed, so that tests can say what comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Self

from tests.fakes.mcp_http import JSON, FakeHttp, Reply, Request
from tests.fakes.mcp_server import READ_ONLY, Behaviour, Fake, Message, RpcFailure, object_schema

KEY = "ugctx_test-tenant"
ACTOR_HEADER = "x-ugent-actor"
TOOL_TIMED_OUT = -32005
AT_CAPACITY = -32006
ACTOR_REQUIRED = -32001
INVALID_PARAMS = -32602

TEXT = {"type": "string"}
MOST_BYTES = 50_000  # of one document_read (U95)


def _tool(name: str, description: str, *required: str, reads: bool = True, **more: Any) -> Message:
    schema = {**object_schema(**dict.fromkeys(required, TEXT), **more)}
    schema["required"] = list(required)
    tool: Message = {"name": name, "description": description, "inputSchema": schema}
    tool["annotations"] = READ_ONLY if reads else {"readOnlyHint": False, "destructiveHint": False}
    return tool


# U85-U89: always listed.
SEARCH_TOOLS = [
    _tool(
        "workspace_search",
        "Searches code and documents",
        "query",
        mode={"enum": ["snippet", "structure", "synthesis"]},
        codebase_id=TEXT,
    ),
    _tool("workspace_overview", "Lists the indexed codebases", codebase_id=TEXT),
    _tool("graph_search", "Finds code entities by name", "name", codebase_id=TEXT),
    _tool("graph_neighbors", "Callers, callees, imports of a node", "node_id"),
    _tool("database_query", "A question as safe SQL", "question"),
]
# U90-U93: listed where memory is switched on, callable for keys with its scope all the same.
MEMORY_TOOLS = [
    _tool("memory_recall", "Recalls facts", "query"),
    _tool("memory_store", "Keeps one fact", "text", reads=False),
    _tool("memory_forget", "Deletes by id or filter", reads=False, id=TEXT, kind=TEXT),
    _tool("memory_ingest", "Queues a transcript", "transcript", reads=False),
    _tool("memory_ingest_status", "Polls an ingestion", "job_id"),
]
# U94-U96: listed for tenants that have documents.
DOCUMENT_TOOLS = [
    _tool("document_fields", "The catalog's fields", "catalog"),
    _tool("document_versions", "Versions of documents", "key"),
    _tool("document_read", "The exact text of a version", "version"),
    _tool("document_compare", "Differences of two versions", "left", "right"),
]
HIT = {
    "path": "src/app.py",
    "lines": "1-2",
    "text": "def main() -> None: ...",
    "citation": "[[cite:code:src/app.py:1-2]]",
}


class ContextEngine(FakeHttp):
    """`busy` answers so many calls with AT_CAPACITY first; `retry_after_ms` goes with it."""

    def __init__(
        self,
        *,
        key: str = KEY,
        actors: bool = False,
        memory: bool = False,
        documents: bool = False,
        scopes: tuple[str, ...] = (),
        busy: int = 0,
        code: int = AT_CAPACITY,
        retry_after_ms: int | None = None,
    ) -> None:
        listed = SEARCH_TOOLS + (MEMORY_TOOLS if memory else [])
        listed = listed + (DOCUMENT_TOOLS if documents else [])
        super().__init__(
            Behaviour(tools=listed, server_info={"name": "context-engine", "version": "1"})
        )
        self.fake = _Engine(self.fake.behaviour, self)
        self.key = key
        self.actors = actors
        self.callable = {tool["name"] for tool in listed}
        if "memory:*" in scopes:
            self.callable |= {tool["name"] for tool in MEMORY_TOOLS}
        self.busy = busy
        self.code = code
        self.retry_after_ms = retry_after_ms
        self.people: dict[str, str] = {}  # session -> actor
        self.facts: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rpc"

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def _reply(self, request: Request) -> Reply:
        if request.path not in ("/rpc", "/mcp"):
            return Reply(404, {"content-type": JSON}, b'{"error":"not found"}')
        if request.method == "DELETE":
            self.known_sessions.discard(request.headers.get("mcp-session-id", ""))
            return Reply(204)
        if request.method != "POST":
            return Reply(405, {"allow": "POST", "content-type": "text/plain"})
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return Reply(401, {"content-type": JSON}, b'{"error":"invalid tenant key"}')
        reply = await self._reply_http(request)
        session = reply.headers.get("mcp-session-id")
        if session:
            self.people[session] = request.headers.get(ACTOR_HEADER, "")
        return reply


class _Engine(Fake):
    """The tools themselves; each request arrives with its headers."""

    def __init__(self, behaviour: Behaviour, engine: ContextEngine) -> None:
        super().__init__(behaviour)
        self._engine = engine

    async def _call(self, message: Message, params: Message, send: Any, headers: Any) -> Message:
        name, arguments = str(params["name"]), params.get("arguments", {})
        self.calls[name] = self.calls.get(name, 0) + 1
        engine = self._engine
        actor = engine.people.get(headers.get("mcp-session-id", ""), "")
        if engine.actors and not actor:
            raise RpcFailure(ACTOR_REQUIRED, "This tenant requires an actor.")
        if name not in engine.callable:
            raise RpcFailure(INVALID_PARAMS, f"Unknown tool: {name}")
        if engine.busy > 0:
            engine.busy -= 1
            after = engine.retry_after_ms
            data = {"retryable": True} | ({} if after is None else {"retry_after_ms": after})
            raise RpcFailure(engine.code, "The engine is at capacity.", data)
        answer: Callable[[Message, str], Message] = getattr(self, f"_do_{name}", _empty)
        return structured(answer(arguments, actor))

    def _do_workspace_search(self, arguments: Message, actor: str) -> Message:
        return {"query": arguments["query"], "actor": actor, "hits": [HIT]}

    def _do_workspace_overview(self, arguments: Message, actor: str) -> Message:
        return {"codebases": [{"id": "main", "nodes": 2, "edges": 1}]}

    def _do_graph_search(self, arguments: Message, actor: str) -> Message:
        return {"nodes": [{"node_id": "n1", "name": arguments["name"]}]}

    def _do_graph_neighbors(self, arguments: Message, actor: str) -> Message:
        return {"node_id": arguments["node_id"], "callers": ["n2"]}

    def _do_database_query(self, arguments: Message, actor: str) -> Message:
        return {"sql": "SELECT 1", "rows": [[1]]}

    def _do_memory_store(self, arguments: Message, actor: str) -> Message:
        identity = f"m{len(self._engine.facts) + 1}"
        self._engine.facts[identity] = arguments["text"]
        return {"id": identity}

    def _do_memory_recall(self, arguments: Message, actor: str) -> Message:
        return {"records": [{"id": key, "text": text} for key, text in self._engine.facts.items()]}

    def _do_memory_forget(self, arguments: Message, actor: str) -> Message:
        if not arguments:
            raise RpcFailure(INVALID_PARAMS, "An empty selector is refused.")
        return {"deleted": int(self._engine.facts.pop(arguments.get("id", ""), None) is not None)}

    def _do_document_read(self, arguments: Message, actor: str) -> Message:
        pin = f"[[cite:doc:{arguments['version']}:1]]"
        text = "The first paragraph."
        return {"paragraphs": [{"pin": pin, "text": text}], "limit_bytes": MOST_BYTES}

    def _do_document_compare(self, arguments: Message, actor: str) -> Message:
        pins = [f"[[cite:doc:{arguments[side]}:1]]" for side in ("left", "right")]
        return {"changes": [{"pins": pins, "flags": ["number"]}]}


def _empty(arguments: Message, actor: str) -> Message:
    return {"arguments": arguments}


def structured(value: Message) -> Message:
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
