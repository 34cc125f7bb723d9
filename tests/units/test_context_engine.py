"""The context engine as a server like any other (U81-U99), through the engine of the product."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from django.core import serializers

from secrets_vault.services import set_secret
from servers.connecting import connection_settings
from servers.limits import RetryPolicy
from servers.mcp.client import connect
from servers.mcp.types import (
    ConnectionSettings,
    InvalidArguments,
    LoginRequired,
    ServerUnavailable,
)
from servers.models import Server
from tests.fakes.context_engine import (
    ACTOR_HEADER,
    AT_CAPACITY,
    DOCUMENT_TOOLS,
    KEY,
    MEMORY_TOOLS,
    SEARCH_TOOLS,
    TOOL_TIMED_OUT,
    ContextEngine,
)
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import running
from tests.fakes.server_rows import http_server

BEARER = (("Authorization", f"Bearer {KEY}"),)


def names(tools: list[dict[str, object]]) -> list[object]:
    return [tool["name"] for tool in tools]


@pytest.mark.parametrize("path", ["/rpc", "/mcp"])
async def test_both_addresses_behave_alike(path: str) -> None:
    """U81, U83, U84, U85."""
    async with ContextEngine() as engine:
        url = engine.url.replace("/rpc", path)
        async with connect(http_settings(url, headers=BEARER)) as connection:
            assert [tool.name for tool in (await connection.list_tools()).tools] == names(
                SEARCH_TOOLS
            )
            result = await connection.call_tool("workspace_search", {"query": "main"})
    assert result.ok
    assert result.structured["hits"][0]["citation"] == "[[cite:code:src/app.py:1-2]]"


async def test_its_refusal_of_get_is_no_fault() -> None:
    """U99, B04: it knows POST alone."""
    async with ContextEngine() as engine:
        async with httpx2.AsyncClient() as client:
            assert (await client.get(engine.url)).status_code == 405
        async with connect(http_settings(engine.url, headers=BEARER)) as connection:
            assert (await connection.call_tool("graph_search", {"name": "main"})).ok
    assert engine.connections < 10


@pytest.mark.parametrize(
    ("headers", "kind"),
    [((), LoginRequired), ((("Authorization", "Bearer wrong"),), ServerUnavailable)],
)
async def test_a_tenant_key_is_needed(
    headers: tuple[tuple[str, str], ...], kind: type[Exception]
) -> None:
    """U82; its own words reach the person."""
    async with ContextEngine() as engine:
        with pytest.raises(kind, match="invalid tenant key"):
            async with connect(http_settings(engine.url, headers=headers)):
                pass


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, SEARCH_TOOLS),
        ({"memory": True}, SEARCH_TOOLS + MEMORY_TOOLS),
        ({"documents": True}, SEARCH_TOOLS + DOCUMENT_TOOLS),
    ],
)
async def test_only_what_is_switched_on_is_listed(
    switches: dict[str, bool], expected: list[dict[str, object]]
) -> None:
    """U86-U98."""
    async with (
        ContextEngine(**switches) as engine,  # type: ignore[arg-type]
        connect(http_settings(engine.url, headers=BEARER)) as connection,
    ):
        assert [tool.name for tool in (await connection.list_tools()).tools] == names(expected)


async def test_a_scope_lets_unlisted_memory_be_called() -> None:
    """U90-U92, U97: what is stored is recalled and forgotten; an empty selector is refused."""
    async with (
        ContextEngine(scopes=("memory:*",)) as engine,
        connect(http_settings(engine.url, headers=BEARER)) as connection,
    ):
        stored = await connection.call_tool("memory_store", {"text": "the sky is blue"})
        found = await connection.call_tool("memory_recall", {"query": "sky"})
        refused = await connection.call_tool("memory_forget", {})
        gone = await connection.call_tool("memory_forget", {"id": stored.structured["id"]})
    assert found.structured["records"] == [{"id": "m1", "text": "the sky is blue"}]
    assert "empty selector" in refused.error
    assert gone.structured == {"deleted": 1}


@pytest.mark.parametrize(
    ("tool", "arguments", "found"),
    [
        ("workspace_search", {"query": "main"}, "hits"),  # U85
        ("workspace_overview", {}, "codebases"),  # U86
        ("graph_search", {"name": "main"}, "nodes"),  # U87
        ("graph_neighbors", {"node_id": "n1"}, "callers"),  # U88
        ("database_query", {"question": "how many?"}, "sql"),  # U89
        ("memory_store", {"text": "a fact"}, "id"),  # U91
        ("memory_recall", {"query": "fact"}, "records"),  # U90
        ("memory_forget", {"id": "m1"}, "deleted"),  # U92
        ("memory_ingest", {"transcript": "..."}, "arguments"),  # U93
        ("memory_ingest_status", {"job_id": "j1"}, "arguments"),
        ("document_fields", {"catalog": "c"}, "arguments"),  # U94
        ("document_versions", {"key": "k"}, "arguments"),
        ("document_read", {"version": "v1"}, "paragraphs"),  # U95
        ("document_compare", {"left": "v1", "right": "v2"}, "changes"),  # U96
    ],
)
async def test_each_of_its_tools_is_listed_checked_and_called(
    tool: str, arguments: dict[str, object], found: str
) -> None:
    """U85-U96, U98: fourteen in all; what it wants to know is checked before anything is sent."""
    async with (
        ContextEngine(memory=True, documents=True) as engine,
        connect(http_settings(engine.url, headers=BEARER)) as connection,
    ):
        assert len((await connection.list_tools()).tools) == 14
        result = await connection.call_tool(tool, arguments)
        if arguments and tool != "memory_forget":
            with pytest.raises(InvalidArguments, match=next(iter(arguments))):
                await connection.call_tool(tool, {})
    assert result.ok
    assert found in result.structured


@pytest.mark.parametrize(
    ("tool", "code", "calls"),
    [
        ("graph_search", AT_CAPACITY, 3),
        ("graph_search", TOOL_TIMED_OUT, 3),
        ("memory_store", AT_CAPACITY, 1),
        ("memory_store", TOOL_TIMED_OUT, 1),
    ],
)
async def test_its_searches_are_repeated_when_it_is_overloaded_and_nothing_else(
    tool: str, code: int, calls: int
) -> None:
    """U50, U51: searches and the graph are read-only; what is stored is stored once."""
    retry = RetryPolicy(attempts=3, base_ms=1, max_ms=2)
    async with (
        ContextEngine(memory=True, busy=2, code=code) as engine,
        connect(http_settings(engine.url, headers=BEARER, retry=retry)) as connection,
    ):
        await connection.list_tools()
        result = await connection.call_tool(tool, {"name": "main", "text": "a fact"})
    assert (result.ok, result.attempts) == (calls == 3, calls)
    assert engine.fake.calls[tool] == calls


async def test_two_people_have_two_sessions() -> None:
    """U61, U62: the header that opened a session says whose it is."""
    async with ContextEngine(actors=True) as engine:
        for person in ("ada", "grace"):
            headers = (*BEARER, (ACTOR_HEADER, person))
            async with connect(http_settings(engine.url, headers=headers)) as connection:
                result = await connection.call_tool("workspace_search", {"query": "x"})
                assert result.structured["actor"] == person
    assert sorted(engine.people.values()) == ["ada", "grace"]


async def test_an_engine_that_wants_an_actor_refuses_calls_without_one() -> None:
    """U64, U65."""
    async with (
        ContextEngine(actors=True) as engine,
        connect(http_settings(engine.url, headers=BEARER)) as connection,
    ):
        result = await connection.call_tool("workspace_search", {"query": "x"})
    assert not result.ok
    assert "requires an actor" in result.error


def entry(engine: ContextEngine, **options: object) -> Server:
    """The reference entry, U84."""
    set_secret(actor=None, name="context_engine_token", value=KEY)
    given = {"token_ref": "@context_engine_token", "max_inflight_calls": 4, **options}
    return http_server("ugent-context", url=engine.url, options=given)


async def searched(settings: ConnectionSettings) -> Any:
    async with connect(settings) as connection:
        return await connection.call_tool("workspace_search", {"query": "x"})


@pytest.mark.django_db
def test_the_reference_entry_is_all_that_it_takes() -> None:
    """U82, U84, U24, U25: no literal token is stored, one is sent with every request."""
    with running(ContextEngine()) as engine:
        assert isinstance(engine, ContextEngine)
        server = entry(engine)
        settings, mask = connection_settings(server)
        assert asyncio.run(searched(settings)).ok
    assert (settings.max_inflight, server.enabled) == (4, True)
    assert {request.headers["authorization"] for request in engine.requests} == {f"Bearer {KEY}"}
    assert KEY.startswith("ugctx_")
    assert KEY not in serializers.serialize("json", [server])
    assert mask["context_engine_token"] == KEY


@pytest.mark.django_db
def test_an_engine_that_wants_actors_gets_one_session_for_each() -> None:
    """U61-U65: the option is what avoids the refusal of every call."""
    with running(ContextEngine(actors=True)) as engine:
        assert isinstance(engine, ContextEngine)
        server = entry(engine, per_actor=True)
        for person in ("ada", "grace"):
            found = asyncio.run(searched(connection_settings(server, actor=person)[0]))
            assert found.structured["actor"] == person
        refused = asyncio.run(searched(connection_settings(server)[0]))
        assert "requires an actor" in refused.error
    assert sorted(engine.people.values()) == ["", "ada", "grace"]
