"""The engine against servers that nobody here wrote, pinned under `tests/servers`."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servers.mcp.client import connect
from servers.mcp.types import ConnectionSettings, LoginRequired, ServerUnavailable
from tests.fakes.spawner import BareSpawner

SERVERS = Path(__file__).parents[1] / "servers"
NODE_MODULES = SERVERS / "node_modules" / "@modelcontextprotocol"


@dataclass(frozen=True)
class Case:
    command: str
    args: tuple[str, ...]
    version: str
    server_name: str
    tools: set[str]
    call: tuple[str, dict[str, Any], str]


def node(name: str, *args: str) -> tuple[str, tuple[str, ...]]:
    return "node", (str(NODE_MODULES / f"server-{name}" / "dist" / "index.js"), *args)


def python(name: str, *args: str) -> tuple[str, tuple[str, ...]]:
    return str(SERVERS / ".venvs" / name / "bin" / name), args


CASES = {
    "everything": Case(
        *node("everything"),
        "2025-11-25",
        "mcp-servers/everything",
        {"echo", "get-sum"},
        ("echo", {"message": "hi"}, "Echo: hi"),
    ),
    "filesystem": Case(
        *node("filesystem", "{tmp}"),
        "2025-11-25",
        "secure-filesystem-server",
        {"read_text_file", "write_file"},
        ("list_directory", {"path": "{tmp}"}, "[FILE] letter.txt"),
    ),
    "memory": Case(
        *node("memory"),
        "2025-11-25",
        "memory-server",
        {"read_graph", "create_entities"},
        ("read_graph", {}, '"entities": []'),
    ),
    "time": Case(
        *python("mcp-server-time"),
        "2026-07-28",
        "mcp-time",
        {"get_current_time", "convert_time"},
        ("get_current_time", {"timezone": "Europe/Berlin"}, '"timezone": "Europe/Berlin"'),
    ),
    "git": Case(
        *python("mcp-server-git"),
        "2026-07-28",
        "mcp-git",
        {"git_log", "git_status"},
        ("git_log", {"repo_path": "{tmp}"}, "first words"),
    ),
    "fetch": Case(
        *python("mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"),
        "2026-07-28",
        "mcp-fetch",
        {"fetch"},
        ("fetch", {"url": "http://127.0.0.1:{port}/"}, "a plain letter"),
    ),
}


def filled(value: Any, places: dict[str, str]) -> Any:
    if isinstance(value, str):
        for name, place in places.items():
            value = value.replace(f"{{{name}}}", place)
        return value
    if isinstance(value, dict):
        return {key: filled(item, places) for key, item in value.items()}
    return value


@asynccontextmanager
async def letter_server() -> AsyncIterator[str]:
    """A page for the fetch server; yields the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"a plain letter"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield str(server.sockets[0].getsockname()[1])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "letter.txt").write_text("dear reader")
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "Ann"), ("EMAIL", "ann@example.org"))
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **identity}
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first words"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, env=environment)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
async def test_a_server_of_others_is_connected_listed_and_called(
    name: str, directory: Path
) -> None:
    """P70, U22, and the remembered way is as good as the first."""
    case, spawn = CASES[name], BareSpawner()
    async with letter_server() as port:
        places = {"tmp": str(directory), "port": port}
        remembered: dict[str, Any] = {}
        for _ in range(2):
            settings = ConnectionSettings(
                name=name,
                transport="stdio",
                command=case.command,
                args=tuple(filled(argument, places) for argument in case.args),
                env={"HOME": str(directory), "NO_PROXY": "127.0.0.1"},
                remembered=remembered,
            )
            async with connect(settings, spawn=spawn) as connection:
                assert connection.protocol_version == case.version
                assert connection.server_name == case.server_name
                listed = await connection.list_tools()
                assert case.tools <= {tool.name for tool in listed.tools}
                # `server-everything` holds a tool that runs only as a task.
                assert [each for each in listed.warnings if "as a task" not in each] == []
                tool, arguments, expected = case.call
                result = await connection.call_tool(tool, filled(arguments, places))
                assert expected in result.text
                assert result.ok
                remembered = connection.remembered
    assert spawn.alive() == []


@asynccontextmanager
async def everything_over(kind: str) -> AsyncIterator[str]:
    """`server-everything` listening; yields its address."""
    with_port = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = with_port.sockets[0].getsockname()[1]
    with_port.close()
    await with_port.wait_closed()
    command, (script,) = node("everything")
    process = await asyncio.create_subprocess_exec(
        command,
        script,
        kind,
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await wait_for_port(port)
        yield f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}"
    finally:
        process.kill()
        await process.wait()


async def wait_for_port(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


@pytest.mark.parametrize(("kind", "transport"), [("streamableHttp", "http"), ("sse", "sse")])
async def test_a_server_over_http_is_found_whichever_transport_it_speaks(
    kind: str, transport: str
) -> None:
    """P5, and section 0, "Transports"."""
    async with everything_over(kind) as url:
        settings = ConnectionSettings(name="everything", transport="http", url=url)
        async with connect(settings) as connection:
            assert connection.transport == transport
            assert len((await connection.list_tools()).tools) >= 13
            assert (await connection.call_tool("echo", {"message": "hi"})).text == "Echo: hi"
            seen: list[float] = []

            async def on_progress(done: float, total: float | None, message: str | None) -> None:
                seen.append(done)

            arguments = {"duration": 1, "steps": 4}
            tool = "trigger-long-running-operation"
            assert (await connection.call_tool(tool, arguments, on_progress=on_progress)).ok
            assert seen == [1, 2, 3, 4]
            picture = await connection.call_tool("get-tiny-image", {})
            assert "[image: image/png, " in picture.text


async def test_a_wrong_path_is_no_login_and_no_crash() -> None:
    async with everything_over("streamableHttp") as url:
        settings = ConnectionSettings(name="x", transport="http", url=url.replace("/mcp", "/nope"))
        with pytest.raises(ServerUnavailable, match="404 Not Found") as caught:
            async with connect(settings):
                pass
    assert not isinstance(caught.value, LoginRequired)


async def test_many_servers_connect_at_once_and_nothing_is_left() -> None:
    """F01, C09."""
    spawn = BareSpawner()
    before = len(os.listdir("/proc/self/fd"))

    async def use(number: int) -> bool:
        command, args = node("everything")
        settings = ConnectionSettings(
            name=str(number), transport="stdio", command=command, args=args
        )
        async with connect(settings, spawn=spawn) as connection:
            return (await connection.call_tool("echo", {"message": "hi"})).ok

    assert all(await asyncio.gather(*(use(number) for number in range(4))))
    assert spawn.alive() == []
    assert len(os.listdir("/proc/self/fd")) <= before + 2
