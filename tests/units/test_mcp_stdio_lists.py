"""Lists of stdio servers that are long, badly written, or drowned in words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from servers.limits import STRICT
from servers.mcp.client import connect
from servers.mcp.types import ConnectionSettings, ServerError
from tests.fakes.mcp_helpers import stdio_settings
from tests.fakes.mcp_server import Behaviour, object_schema
from tests.fakes.spawner import BareSpawner

KIB = 1024
MIB = 1024 * KIB

# Answers `initialize`, and everything else with the bytes of a file; %d is the request's id.
SERVER = """
import json, sys
answer = open(sys.argv[1], "rb").read()
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        out = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
    else:
        out = answer.replace(b"%d", str(message["id"]).encode())
    sys.stdout.buffer.write(out + b"\\n")
    sys.stdout.buffer.flush()
"""


def answering(directory: Path, tools: bytes, **options: Any) -> ConnectionSettings:
    """A server whose list holds these tools."""
    place = directory / "answer"
    place.write_bytes(b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[' + tools + b"]}}")
    return ConnectionSettings(
        name="fake",
        transport="stdio",
        command=sys.executable,
        args=("-I", "-S", "-c", SERVER, str(place)),
        remembered={"transport": "stdio", "mode": "handshake"},
        **options,
    )


def many(size: int) -> bytes:
    """As many tools as take up so many bytes, all on one line."""
    tools: list[bytes] = []
    while sum(map(len, tools)) + len(tools) < size:
        tool = {"name": f"t{len(tools)}", "description": "d" * 900, "inputSchema": object_schema()}
        tools.append(json.dumps(tool).encode())
    return b",".join(tools)


async def test_a_list_of_132_kib_on_one_line_is_read(tmp_path: Path) -> None:
    """C15: more than twice what a pipe, or a reader of lines, holds by itself."""
    tools = many(132 * KIB)
    async with connect(answering(tmp_path, tools), spawn=BareSpawner()) as connection:
        listed = await connection.list_tools()
    assert len(listed.tools) == tools.count(b'"name"') > 128
    assert listed.warnings == []


@pytest.mark.parametrize(
    ("size", "options", "shown"),
    [(300 * KIB, {"limits": STRICT}, "256 KiB"), (17 * MIB, {}, "16 MiB")],
)
async def test_a_list_over_the_limit_of_a_message_says_so_and_the_server_lives_on(
    size: int, options: dict[str, Any], shown: str, tmp_path: Path
) -> None:
    """C15, A43: the error names limit and option."""
    tools = b'{"name":"a","description":"' + b"x" * size + b'"}'
    async with connect(answering(tmp_path, tools, **options), spawn=BareSpawner()) as connection:
        for _ in range(2):
            with pytest.raises(ServerError, match=f"larger than {shown} .max_message_bytes"):
                await connection.list_tools()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"caf\xe9", "caf\ufffd"),
        (b"\xb1\xb2", "\ufffd\ufffd"),
        (b"a\\ud800b", "a\ufffdb"),
        (b"a\\u0000b", "ab"),
        ("größe 🚀".encode(), "größe 🚀"),
    ],
)
async def test_bad_bytes_in_a_description_cost_no_tool(
    written: bytes, read: str, tmp_path: Path
) -> None:
    """C17: replaced, and the list counts."""
    tools = b'{"name":"a","description":"' + written + b'"},{"name":"b"}'
    async with connect(answering(tmp_path, tools), spawn=BareSpawner()) as connection:
        listed = await connection.list_tools()
    assert [(tool.name, tool.description) for tool in listed.tools] == [("a", read), ("b", "")]
    assert listed.warnings == []


@pytest.mark.parametrize("size", [256 * KIB, 10 * MIB])
async def test_a_flood_on_standard_error_before_the_first_answer_blocks_nothing(size: int) -> None:
    """C03: drained from the start on, without a single line end."""
    behaviour = Behaviour(stderr="first ", stderr_bytes=size)
    async with connect(stdio_settings(behaviour), spawn=BareSpawner()) as connection:
        assert (await connection.list_tools()).tools
        assert 0 < len(connection.stderr_tail) <= 8 * KIB
        assert set(connection.stderr_tail) == {"e"}
