"""How the output of a stdio server is cut into messages, whatever else is written there."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.limits import KIB, STANDARD, STRICT
from servers.mcp.client import Connection, connect
from servers.mcp.stdio import MAX_REPORTED_NOISE, _lines, _TooLong
from servers.mcp.types import ServerError, ServerUnavailable
from tests.fakes.mcp_helpers import Recorder, shell_settings, stdio_settings
from tests.fakes.mcp_server import Behaviour
from tests.fakes.spawner import BareSpawner

# The fake numbers nobody's requests; an answer under each of these finds the one that waits.
IDENTITIES = range(1, 20)


@asynccontextmanager
async def connected(
    behaviour: Behaviour | None = None, **options: Any
) -> AsyncIterator[Connection]:
    settings = stdio_settings(behaviour, **options)
    async with connect(settings, spawn=BareSpawner()) as connection:
        yield connection


async def cut(chunks: list[bytes], most: int) -> list[bytes | _TooLong]:
    """What is read where each read finds one chunk."""
    return [line async for line in _lines(_Chunks(chunks), most)]


class _Chunks(asyncio.StreamReader):
    def __init__(self, chunks: list[bytes]) -> None:
        super().__init__()
        self._chunks = chunks

    async def read(self, n: int = -1) -> bytes:
        return self._chunks.pop(0) if self._chunks else b""


@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=6),
    st.lists(st.integers(1, 50), max_size=8),
    st.integers(5, 60),
)
def test_any_cut_of_the_stream_gives_the_same_lines(
    lines: list[bytes], cuts: list[int], most: int
) -> None:
    """C16: a chunk may end anywhere, also exactly on a line end."""
    data = b"".join(line + b"\n" for line in lines)
    chunks = []
    for size in cuts:
        chunks.append(data[:size])
        data = data[size:]
    found = asyncio.run(cut([chunk for chunk in [*chunks, data] if chunk], most))
    wanted = [line for line in lines if line.strip() or len(line) > most]
    assert len(found) == len(wanted)
    for line, want in zip(found, wanted, strict=True):
        if len(want) > most:
            assert isinstance(line, _TooLong)
            assert want.startswith(line.head[: len(want)])
            assert want.endswith(line.tail[-len(want) :])
        else:
            assert line == want


def test_a_last_line_without_an_end_counts() -> None:
    """C16."""
    assert asyncio.run(cut([b"a\nb", b"c"], 10)) == [b"a", b"bc"]


@pytest.mark.parametrize("size", [65_534, 65_535, 65_536, 65_537, 131_072])
async def test_lines_around_the_size_of_a_chunk_are_read(size: int) -> None:
    """C15, C16."""
    frame = '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":""}}'
    line = frame[:-3] + "x" * (size - len(frame) - 1) + frame[-3:] + "\n"
    assert len(line) == size
    async with connected() as connection:
        message = line.encode()
        assert (await connection.call_tool("bytes", {"hex": message.hex()})).ok
        assert (await connection.list_tools()).warnings == []


@pytest.mark.parametrize("cut_at", range(1, 4))
async def test_a_character_cut_in_two_is_put_together(cut_at: int) -> None:
    """C17."""
    text = '{"a":"🚀"}\n'.encode()
    at = text.index("🚀".encode()) + cut_at
    assert (await cut([text[:at], text[at:]], 100)) == [text.strip()]


@pytest.mark.parametrize(
    ("size", "limit", "words"),
    [
        (300 * KIB, STRICT, "larger than 256 KiB (max_message_bytes)"),
        (70 * KIB, replace(STANDARD, message_bytes=64 * KIB), "larger than 64 KiB (max_mess"),
        (50 * KIB, replace(STANDARD, message_bytes=40 * KIB), "larger than 40 KiB (max_mess"),
        (18 * 1024 * KIB, STANDARD, "larger than 16 MiB (max_message_bytes)"),
    ],
)
async def test_an_answer_over_the_servers_own_limit_fails_alone(
    size: int, limit: Any, words: str
) -> None:
    """C15, A43: whichever end of the message holds the identifier."""
    async with connected(Behaviour(tools=[]), limits=limit) as connection:
        other = asyncio.create_task(connection.call_tool("sleep", {"seconds": 0.3}))
        with pytest.raises(ServerError) as caught:
            await connection.call_tool("big", {"bytes": size})
        assert words in caught.value.message
        assert (await other).text == "slept"
        assert (await connection.call_tool("echo", {})).ok


class _Flood(asyncio.StreamReader):
    """A line of fifty MiB and a short one behind it, made as they are read."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks = chain(repeat(b"x" * 64 * KIB, 800), [b"\nnext\n"])

    async def read(self, n: int = -1) -> bytes:
        return next(self._chunks, b"")


async def test_a_line_of_fifty_mib_takes_no_more_memory_than_its_limit() -> None:
    """C15: nobody knows how long it will be while it comes."""
    tracemalloc.start()
    try:
        long, short = [line async for line in _lines(_Flood(), 256 * KIB)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(long, _TooLong)
    assert short == b"next"
    assert peak < 2 * 1024 * KIB


async def test_a_limit_above_the_common_one_lets_more_through() -> None:
    """C15."""
    limits = replace(STANDARD, message_bytes=20 * 1024 * KIB, result_bytes=20 * 1024 * KIB)
    async with connected(limits=limits) as connection:
        result = await connection.call_tool("big", {"bytes": 17 * 1024 * KIB})
    assert len(result.text) == 17 * 1024 * KIB


ANSWER = b'{"jsonrpc":"2.0","id":%d,"result":{"content":%s}}'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 10_000, "it is nested too deeply"),
        (b'[{"type":"text"', "Expecting"),
        (b"[" + b"1" * 5000 + b"]", "Exceeds the limit"),
        (b"nonsense", "Expecting value"),
    ],
)
async def test_an_answer_that_cannot_be_read_fails_its_call_at_once(
    content: bytes, words: str
) -> None:
    """I17: skipped, it would leave the caller waiting for its whole limit."""
    answers = b"".join(ANSWER % (identity, content) + b"\n" for identity in IDENTITIES)
    async with connected() as connection:
        with pytest.raises(ServerError, match="The server's answer cannot be read: ") as caught:
            await connection.call_tool("bytes", {"hex": answers.hex()}, timeout=60)
        assert words in caught.value.message
        assert (await connection.call_tool("echo", {})).ok


async def test_a_broken_line_that_nobody_waits_for_is_noise() -> None:
    """C01."""
    broken = ANSWER % (9999, b"nonsense") + b"\n"
    async with connected() as connection:
        assert (await connection.call_tool("bytes", {"hex": broken.hex()})).text == "written"
        assert "1 line to standard output" in (await connection.list_tools()).warnings[0]


@pytest.mark.parametrize("before", ["Loading... ", "\x1b[?25h", "\ufeff", "50%\r100%\r"])
async def test_words_without_a_line_end_spoil_no_message(before: str) -> None:
    """C01: a progress bar, or a byte order mark, on the same line."""
    answer = ANSWER % (0, b'[{"type":"text","text":"found"}]')
    answers = b"".join(
        before.encode() + answer.replace(b'"id":0', b'"id":%d' % identity) + b"\n"
        for identity in IDENTITIES
    )
    async with connected() as connection:
        result = await connection.call_tool("bytes", {"hex": answers.hex()})
        assert result.text == "found"


async def test_a_flood_of_noise_is_counted_and_not_kept() -> None:
    """C01: a server in debug mode."""
    observer = Recorder()
    async with connect(stdio_settings(), spawn=BareSpawner(), observer=observer) as connection:
        noise = (b"debug " + b"x" * 600 + b"\n") * 2000
        assert (await connection.call_tool("bytes", {"hex": noise.hex()})).ok
        warning = (await connection.list_tools()).warnings[0]
    assert "2000 lines to standard output" in warning
    assert len(warning) < 1000
    assert max(map(len, observer.lines)) <= 500
    assert len(observer.lines) == MAX_REPORTED_NOISE


@pytest.mark.parametrize(
    ("script", "words", "hint"),
    [
        (
            "echo 'BRAVE_API_KEY is required'; exit 1",
            "exit code 1.",
            "nothing to standard error. The server wrote 1 line to standard output that is no "
            "message: “BRAVE_API_KEY is required”",
        ),
        (
            "echo 'Usage: x'; echo why >&2; exit 2",
            "exit code 2: why",
            "1 line to standard output that is no message: “Usage: x”",
        ),
        (
            "echo 'Listening on http://localhost:3000'; sleep 600",
            "start_timeout_secs",
            "“Listening on http://localhost:3000”",
        ),
    ],
)
async def test_what_a_server_says_in_place_of_the_protocol_is_shown(
    script: str, words: str, hint: str
) -> None:
    """C01, C06, C10: many complain on standard output, or were started in another mode."""
    settings = shell_settings(script, start_timeout=1.0)
    with pytest.raises(ServerUnavailable) as caught:
        async with connect(settings, spawn=BareSpawner()):
            pass
    assert words in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "end",
    [
        "exit 0",
        "exit 3",
        "kill -9 $$",
        "exec 1>&-; sleep 600",
        "sleep 600 & exit 1",
        "sleep 600 >&- & sleep 600 >&- & exec 1>&-; wait",
    ],
)
async def test_every_end_of_a_server_leaves_no_process(end: str) -> None:
    """C06, C09: exit, signal, closed output, and children that live on."""
    spawn = BareSpawner()
    with pytest.raises(ServerError, match="The server"):
        async with connect(shell_settings(f"read line; {end}"), spawn=spawn):
            pass
    assert spawn.alive() == []


@pytest.mark.parametrize("tool", ["hang", "fork", "block"])
async def test_a_stop_in_mid_call_leaves_no_process(tool: str) -> None:
    """C24: also where the server is deaf, or has children that ignore the end of its input."""
    spawn, observer = BareSpawner(), Recorder()
    under_way = asyncio.Event()

    async def run() -> None:
        async with connect(stdio_settings(), spawn=spawn, observer=observer) as connection:
            await connection.call_tool("fork", {})
            under_way.set()
            await connection.call_tool(tool, {"seconds": 600})
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await under_way.wait()
    if tool == "block":
        await observer.news.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert spawn.alive() == []


@pytest.mark.parametrize("result", ['\\"yes\\"', "[]", "5", "true"])
async def test_a_handshake_with_strange_answers_is_an_error_and_no_wait(result: str) -> None:
    """C01, C06: the server answers everything, each time with the next number."""
    answer = f'{{\\"jsonrpc\\":\\"2.0\\",\\"id\\":$i,\\"result\\":{result}}}'
    script = f'i=1; while read line; do echo "{answer}"; i=$((i+1)); done'
    spawn = BareSpawner()
    with pytest.raises(ServerError):
        async with connect(shell_settings(script, start_timeout=60.0), spawn=spawn):
            pass
    assert spawn.alive() == []


@pytest.mark.parametrize("remembered", [{}, {"mode": "handshake"}])
async def test_a_program_that_sends_back_what_it_is_sent_is_no_server(
    remembered: dict[str, str],
) -> None:
    """`cat` and the like: our own request would else be answered, and the answer come back too."""
    settings = shell_settings("cat", remembered=remembered)
    with pytest.raises(ServerUnavailable, match="sends back what it is sent") as caught:
        async with connect(settings, spawn=BareSpawner()):
            pass
    assert "Method not found" not in str(caught.value)
    assert "Check the command" in caught.value.hint


async def test_a_request_of_the_server_may_bear_the_number_of_ours() -> None:
    """JSON-RPC: each side numbers its own; only our own method is an echo."""
    found = '{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x"}}'
    script = f"""
        read line; id=${{line#*'"id":'}}; id=${{id%%,*}}
        echo '{{"jsonrpc":"2.0","id":'$id',"method":"ping"}}'
        echo '{{"jsonrpc":"2.0","id":'$id',"result":{found}}}'
        cat > /dev/null
    """
    settings = shell_settings(script, remembered={"mode": "handshake"})
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert connection.protocol_version == "2025-11-25"
