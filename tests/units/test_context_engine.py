"""The context engine as a server like any other (U81-U99), through the engine of the product."""

from __future__ import annotations

import httpx2
import pytest

from servers.mcp.client import connect
from servers.mcp.types import LoginRequired, ServerUnavailable
from tests.fakes.context_engine import (
    ACTOR_HEADER,
    DOCUMENT_TOOLS,
    KEY,
    MEMORY_TOOLS,
    SEARCH_TOOLS,
    ContextEngine,
)
from tests.fakes.mcp_helpers import http_settings

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
