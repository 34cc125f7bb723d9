"""MCP 2024-11-05, Transports: HTTP with SSE."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from servers.mcp.client import Connection
from servers.mcp.types import ServerUnavailable
from tests.fakes.mcp_http import Reply, Request
from tests.spec.support import HttpServer, connecting, events, served, wire

REVISION = "2024-11-05"


@asynccontextmanager
async def sse(**options: Any) -> AsyncIterator[tuple[HttpServer, Connection]]:
    async with wire("sse", REVISION, **options) as (server, connection):
        assert isinstance(server, HttpServer)
        yield server, connection


async def test_the_event_stream_is_opened_first_and_once() -> None:
    """HTTP with SSE: the client connects to the SSE endpoint and receives messages there."""
    async with sse() as (server, connection):
        await connection.list_tools()
        await connection.call_tool("echo", {})
    first = server.heard[0]
    assert (first.method, first.path) == ("GET", "/sse")
    assert first.headers["accept"] == "text/event-stream"
    assert len(server.of("GET")) == 1


async def test_all_messages_go_to_the_address_that_the_server_names() -> None:
    """HTTP with SSE: all subsequent messages are POST requests to the `endpoint`."""
    async with sse() as (server, connection):
        await connection.call_tool("echo", {})
        await server.answer_to("p", "ping")
    posts = server.heard[1:]
    assert {(post.method, post.path) for post in posts} == {("POST", "/messages?session=1")}
    assert {post.headers["content-type"] for post in posts} == {"application/json"}
    assert [post.message.get("method", "") for post in posts] == [
        "initialize",
        "notifications/initialized",
        "tools/call",
        "",
    ]


@pytest.mark.parametrize("endpoint", ["{origin}/messages?session=1", "messages?session=1"])
async def test_the_address_may_be_whole_or_relative(endpoint: str) -> None:
    """HTTP with SSE: a URI."""

    def requests(request: Request) -> Reply | None:
        if request.method != "GET":
            return None
        assert isinstance(server, HttpServer)
        stream = server.http._standing_stream()
        return Reply(200, {"content-type": "text/event-stream"}, renamed(stream))

    async def renamed(stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        named = endpoint.format(origin=settings.url.removesuffix("/sse")).encode()
        async for chunk in stream:
            yield chunk.replace(b"/messages?session=1", named)

    async with (
        served("sse", REVISION, requests=requests) as (server, settings),
        connecting(server, settings) as connection,
    ):
        assert (await connection.call_tool("echo", {})).ok


async def test_a_stream_that_names_no_address_is_no_server() -> None:
    """HTTP with SSE: the server sends an `endpoint` event when a client connects."""

    def requests(request: Request) -> Reply | None:
        return events(b"event: message\ndata: {}\n\n") if request.method == "GET" else None

    with pytest.raises(ServerUnavailable, match="before it named an address"):
        async with sse(requests=requests):
            pass


async def test_there_are_no_sessions_and_no_delete() -> None:
    """HTTP with SSE: closing the stream ends the connection."""
    async with sse() as (server, connection):
        await connection.call_tool("echo", {})
    assert server.of("DELETE") == []
    assert all("mcp-session-id" not in heard.headers for heard in server.heard)
