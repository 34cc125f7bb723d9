"""MCP over HTTP on a Unix socket."""

from __future__ import annotations

import errno
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servers.mcp import validation
from servers.mcp.client import connect
from servers.mcp.exchange import Door
from servers.mcp.types import CallTimedOut, ConnectionSettings, ServerError, ServerUnavailable
from tests.fakes.http_calls import connected, settings_for
from tests.fakes.mcp_http import FakeHttp, Reply, Request
from tests.fakes.mcp_server import Behaviour


def over(path: Path | str, uri: str = "http://localhost/mcp") -> ConnectionSettings:
    return ConnectionSettings(name="fake", transport="unix", url=uri, socket_path=str(path))


async def failure(settings: ConnectionSettings) -> ServerError:
    with pytest.raises(ServerUnavailable) as caught:
        async with connect(settings):
            pass
    return caught.value


@pytest.mark.parametrize("answer", ["json", "sse"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_on_a_socket_is_listed_and_called(
    short_dir: Path, answer: str, era: str
) -> None:
    """U7, U12."""
    options: dict[str, Any] = {
        "answer": answer,
        "behaviour": Behaviour(era=era),
        "sessions": era == "legacy",
    }
    async with connected(socket_path=str(short_dir / "s"), **options) as (server, connection):
        assert (await connection.list_tools()).tools
        assert json.loads((await connection.call_tool("echo", {"a": 1})).text) == {"a": 1}
        assert connection.transport == "http"
    assert {request.headers["host"] for request in server.requests} == {"localhost"}


async def test_an_old_server_on_a_socket_is_reached_over_sse(short_dir: Path) -> None:
    """U12, P5."""
    path = str(short_dir / "s")
    async with connected(transport="sse", socket_path=path) as (_, connection):
        assert (await connection.call_tool("echo", {})).ok
        assert connection.transport == "sse"


async def test_headers_and_the_standing_stream_go_over_the_socket_too(short_dir: Path) -> None:
    """U12, U23."""
    settings = {"headers": (("Authorization", "Bearer k"),)}
    path = str(short_dir / "s")
    async with connected(socket_path=path, settings=settings, standing=True) as (server, _):
        await server.until(server.gets)
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer k"}


async def test_a_proxy_of_the_environment_is_left_aside(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with connected(socket_path=str(short_dir / "s")) as (_, connection):
        assert (await connection.call_tool("echo", {})).ok


async def test_the_host_that_the_address_names_is_never_asked(short_dir: Path) -> None:
    """U12: whatever the address says, the socket is what is used."""
    async with FakeHttp(socket_path=str(short_dir / "s")) as server:
        settings = replace(settings_for(server), url="http://example.invalid:1234/mcp?key=K")
        async with connect(settings) as connection:
            assert (await connection.call_tool("echo", {})).ok
    assert server.requests[0].headers["host"] == "example.invalid:1234"
    assert server.requests[0].path == "/mcp?key=K"


async def test_limits_of_time_count_over_a_socket(short_dir: Path) -> None:
    """F06."""
    async with connected(socket_path=str(short_dir / "s")) as (_, connection):
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2)


async def test_a_socket_that_is_not_there_is_named(short_dir: Path) -> None:
    """P27."""
    error = await failure(over(short_dir / "none"))
    assert error.message == f"There is no socket at {short_dir / 'none'}."
    assert "server runs" in error.hint


async def test_a_socket_that_nobody_listens_at_is_named(short_dir: Path) -> None:
    """P27: what a server leaves behind that was killed."""
    path = short_dir / "dead"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    error = await failure(over(path))
    assert error.message == f"Nobody listens at the socket {path}."


async def test_a_file_that_is_no_socket_is_one_where_nobody_listens(short_dir: Path) -> None:
    path = short_dir / "file"
    path.write_text("hello")
    assert "Nobody listens" in (await failure(over(path))).message


async def test_a_path_through_a_file_leads_to_no_socket(short_dir: Path) -> None:
    path = short_dir / "file"
    path.write_text("hello")
    assert "There is no socket" in (await failure(over(path / "s"))).message


async def test_a_socket_that_may_not_be_opened_is_named() -> None:
    """Root may open everything, so the error is made."""
    settings = over("/run/x.sock")
    door = Door(settings)
    denied = door._explain(PermissionError(errno.EACCES, "Permission denied"), settings.url)
    assert denied.message == "Umpteenth may not open the socket /run/x.sock: permission denied."
    other = door._explain(OSError(errno.EIO, "Input/output error"), settings.url)
    assert "Input/output error" in other.message
    await door.client.aclose()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "The socket's path must be absolute."),
        ("run/x.sock", "The socket's path must be absolute."),
        ("~/x.sock", "The socket's path must be absolute."),
        ("@abstract", "The socket's path must be absolute."),
        ("/run/\0x", "cannot contain NUL"),
        ("/" + "x" * 107, "longer than the 107 bytes"),
        ("/" + "ü" * 54, "longer than the 107 bytes"),
    ],
)
async def test_paths_that_cannot_be_a_socket_are_refused(path: str, message: str) -> None:
    """U11, U12: before anything is opened."""
    assert message in (await failure(over(path))).message


@pytest.mark.parametrize("uri", ["", "localhost/mcp", "unix:///run/x", "http:///mcp"])
async def test_the_address_over_the_socket_is_one_of_http(uri: str) -> None:
    """U12."""
    assert (await failure(over("/run/x.sock", uri))).message.startswith("The URL ")


async def test_a_system_without_unix_sockets_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """U12."""

    class Elsewhere:
        """A socket module without them."""

    monkeypatch.setattr(validation, "socket", Elsewhere)
    assert (await failure(over("/run/x"))).message == "This system has no Unix sockets."


async def test_redirects_to_another_origin_are_refused_on_a_socket_too(short_dir: Path) -> None:
    """B12."""

    def script(request: Request) -> Reply | None:
        return Reply(307, {"location": "http://elsewhere.example/mcp"})

    async with FakeHttp(script=script, socket_path=str(short_dir / "s")) as server:
        error = await failure(settings_for(server))
    assert "another origin" in error.message
