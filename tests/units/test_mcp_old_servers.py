"""Servers of older revisions, however they are reached and however they say no to newer ones."""

from __future__ import annotations

import pytest

from tests.fakes.mcp_helpers import reached
from tests.fakes.mcp_server import HANDSHAKE_VERSIONS, TOOLS, Behaviour

LEGACY_WAYS = ("stdio", "json", "events", "sse")


@pytest.mark.parametrize("way", LEGACY_WAYS)
@pytest.mark.parametrize("refuses", [False, True], ids=["counters", "refuses"])
@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
async def test_each_revision_is_reached_in_each_way(way: str, refuses: bool, version: str) -> None:
    """U19, P5: a server that knows only an older revision ends up connected on it."""
    behaviour = Behaviour(versions=[version], refuse_unknown_version=refuses)
    async with reached(way, behaviour) as connection:
        assert (connection.mode, connection.protocol_version) == ("handshake", version)
        assert len((await connection.list_tools()).tools) == len(TOOLS)
        assert (await connection.call_tool("echo", {"a": 1})).structured == {"a": 1}


@pytest.mark.parametrize("way", LEGACY_WAYS)
@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
async def test_a_server_that_rejects_every_named_revision_is_asked_without_one(
    way: str, version: str
) -> None:
    """U20."""
    behaviour = Behaviour(only_unversioned=True, versions=[version])
    async with reached(way, behaviour) as connection:
        assert connection.protocol_version == version
        assert (await connection.call_tool("echo", {"a": 1})).ok
    async with reached(way, behaviour, remembered=connection.remembered) as again:
        assert again.protocol_version == version
