"""Bodies of answers: bounded, unpacked, and read whatever they say of themselves."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Callable

import pytest

from servers.limits import STRICT, Limits
from servers.mcp.types import ConnectionLost, ServerError, ServerUnavailable
from tests.fakes.http_calls import CALL, connected, json_reply, on_call, on_rpc, result_of_call
from tests.fakes.mcp_http import EVENTS, JSON, Reply
from tests.fakes.mcp_server import text

MIB = 1024 * 1024


def zeros(size: int, members: int = 1) -> bytes:
    return gzip.compress(b"0" * (size // members), 9) * members


def deflate(data: bytes) -> bytes:
    """Without the header that the coding is meant to have, as some servers send it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


BOMBS = {
    "gzip": ({"content-encoding": "gzip"}, zeros(200 * MIB)),
    "two members": ({"content-encoding": "gzip"}, zeros(200 * MIB, 2)),
    "many members": ({"content-encoding": "x-gzip"}, zeros(20 * MIB, 200)),
    "deflate": ({"content-encoding": "deflate"}, zlib.compress(b"0" * 200 * MIB, 9)),
    "raw deflate": ({"content-encoding": "Deflate"}, deflate(b"0" * 200 * MIB)),
    "plain": ({}, b"0" * (17 * MIB)),
    "event": ({"content-type": EVENTS}, b"data: " + b"0" * (17 * MIB)),
    "packed event": ({"content-type": EVENTS, "content-encoding": "gzip"}, zeros(200 * MIB)),
}


@pytest.mark.parametrize(("headers", "body"), BOMBS.values(), ids=BOMBS)
async def test_a_body_over_the_limit_fails_the_call_and_takes_no_memory(
    headers: dict[str, str], body: bytes
) -> None:
    """B23: counted after decompression."""
    reply = Reply(200, {"content-type": JSON, **headers}, body)
    async with connected(on_call(reply)) as (_, connection):
        tracemalloc.start()
        try:
            with pytest.raises(ServerError, match="answer is larger than 16 MiB"):
                await connection.call_tool("echo", {})
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (await connection.list_tools()).tools
    assert peak < 64 * MIB


@pytest.mark.parametrize("line", [b"data: 0123456789\n", b"data:\n", b":\n", b": x\n\n"])
async def test_lines_without_end_are_one_event(line: bytes) -> None:
    """B23."""
    reply = Reply(
        200,
        {"content-type": EVENTS, "content-encoding": "gzip"},
        gzip.compress(line * (MIB // len(line))),
    )
    async with connected(on_call(reply), settings={"limits": STRICT}) as (_, connection):
        with pytest.raises(ServerError, match="larger than 256 KiB"):
            await connection.call_tool("echo", {})


async def test_a_bomb_of_empty_events_is_let_go_off_without_taking_memory() -> None:
    """B23: each of them is within the limit."""
    body = gzip.compress(b"\n" * (50 * MIB)) + gzip.compress(b"data: " + packed_result() + b"\n\n")
    reply = Reply(200, {"content-type": EVENTS, "content-encoding": "gzip"}, body)
    async with connected(on_call(reply)) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "packed"


async def test_a_body_that_announces_its_size_is_not_even_read() -> None:
    """B23."""
    reply = Reply(200, {"content-type": JSON, "content-length": str(17 * MIB)}, b"0")
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(ServerError, match="larger than 16 MiB"):
            await connection.call_tool("echo", {}, timeout=10)


@pytest.mark.parametrize(
    ("limits", "shown"),
    [(STRICT, "256 KiB"), (Limits(message_bytes=100_000), "97.7 KiB")],
)
@pytest.mark.parametrize("answer", ["json", "sse"])
async def test_the_limit_of_the_server_counts_and_the_error_names_it(
    limits: Limits, shown: str, answer: str
) -> None:
    """A41: 256 KiB a message in the strict profile."""
    async with connected(answer=answer, settings={"limits": limits}) as (_, connection):
        with pytest.raises(ServerError, match=f"larger than {shown}") as caught:
            await connection.call_tool("big", {"bytes": 262_200})
        assert "max_message_bytes" in caught.value.hint
        assert (await connection.call_tool("big", {"bytes": 50_000})).ok


@pytest.mark.parametrize("headers", [{"content-encoding": "gzip"}, {}], ids=["compressed", "plain"])
async def test_the_body_of_a_refusal_is_read_no_further_than_its_beginning(
    headers: dict[str, str],
) -> None:
    """B23."""
    body = zeros(200 * MIB) if headers else b"0" * (2 * MIB)
    reply = Reply(500, {"content-type": "text/plain", **headers}, body)
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(ServerUnavailable, match="500 Internal Server Error: 0000") as caught:
            await connection.call_tool("echo", {})
    assert len(caught.value.message) < 1000


def packed_result() -> bytes:
    return json.dumps(result_of_call("packed")).encode()


def halves(data: bytes) -> bytes:
    """Two gzip members with zeros behind, as tape tools leave them."""
    middle = len(data) // 2
    return gzip.compress(data[:middle]) + gzip.compress(data[middle:]) + bytes(512)


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("gzip, identity", gzip.compress),
        ("gzip", halves),
        ("deflate", zlib.compress),
        ("deflate", deflate),
        ("identity", bytes),
    ],
)
@pytest.mark.parametrize("in_bytes", [False, True])
async def test_a_compressed_answer_is_read(
    coding: str, pack: Callable[[bytes], bytes], in_bytes: bool
) -> None:
    """B23: also one of two members, and in pieces of any size."""
    body = pack(packed_result())

    async def dribble() -> AsyncGenerator[bytes, None]:
        for position in range(len(body)):
            yield body[position : position + 1]

    headers = {"content-type": JSON, "content-encoding": coding}
    async with connected(on_call(Reply(200, headers, dribble() if in_bytes else body))) as (
        _,
        connection,
    ):
        assert (await connection.call_tool("echo", {})).text == "packed"


async def test_compressed_events_are_read_as_they_come() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    told = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        params = {"progressToken": CALL, "progress": 1}
        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        first = packer.compress(b"data: " + json.dumps(progress).encode() + b"\n\n")
        yield first + packer.flush(zlib.Z_SYNC_FLUSH)
        await told.wait()
        yield packer.compress(b"data: " + packed_result() + b"\n\n") + packer.flush()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.set()

    reply = Reply(200, {"content-type": EVENTS, "content-encoding": "gzip"}, chunks())
    async with connected(on_call(reply)) as (_, connection):
        called = await connection.call_tool("echo", {}, on_progress=on_progress)
    assert called.text == "packed"


async def test_only_what_can_be_unpacked_in_bounds_is_offered() -> None:
    """B23: whatever a person writes into the headers."""
    settings = {"headers": (("Accept-Encoding", "br, zstd"),)}
    async with connected(settings=settings) as (server, _):
        pass
    assert {request.headers["accept-encoding"] for request in server.requests} == {"gzip, deflate"}


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "lzma"])
async def test_a_compression_that_was_not_offered_is_named(coding: str) -> None:
    """B23: brotli, Zstandard, and packing twice."""
    reply = Reply(200, {"content-type": JSON, "content-encoding": coding}, b"\x0b\x02\x80")
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(ServerUnavailable, match=f"compressed with {coding}, which"):
            await connection.call_tool("echo", {})


@pytest.mark.parametrize(
    "body", [gzip.compress(packed_result())[:-9], b"no gzip at all", b"\x1f"], ids=len
)
async def test_a_broken_compressed_answer_is_a_broken_body(body: bytes) -> None:
    """U59."""
    reply = Reply(200, {"content-type": JSON, "content-encoding": "gzip"}, body)
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(
            ConnectionLost, match=r"^response body failed: \S.*\. The call may have"
        ):
            await connection.call_tool("echo", {})


@pytest.mark.parametrize("abort", [True, False])
async def test_a_document_that_breaks_off_is_a_broken_body(abort: bool) -> None:
    """U59, B15."""

    async def body() -> AsyncGenerator[bytes, None]:
        yield b'{"jsonrpc":'

    reply = Reply(200, {"content-type": JSON}, body(), abort=abort, cut=not abort)
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(ConnectionLost, match=r"^response body failed: \S"):
            await connection.call_tool("echo", {})


async def test_a_large_result_arrives_whole() -> None:
    """B23, I17: ten million characters are within the limit."""
    async with connected() as (_, connection):
        assert len((await connection.call_tool("big", {"bytes": 10_000_000})).text) == 10_000_000


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        ("application/json", "utf-8"),
        ("Application/JSON; charset=utf-8", "utf-8"),
        ('application/json; charset="UTF-8"', "utf-8"),
        ("application/json;charset=ISO-8859-1", "utf-8"),
        ("application/json;charset=ISO-8859-1", "latin-1"),
        ("application/json; charset=windows-1252", "cp1252"),
        ("application/json; charset=utf-16", "utf-16"),
        ("application/json; charset=utf-16le", "utf-16-le"),
        ("application/json", "utf-16"),
        ("application/json", "utf-32"),
        ("application/json", "utf-8-sig"),
        ("application/json; charset=klingon", "utf-8"),
        ("application/json; charset=rot13", "utf-8"),
        ("application/json; charset=", "utf-8"),
        ("application/problem+json", "utf-8"),
        ("", "utf-8"),
    ],
)
async def test_a_document_is_read_in_any_charset(kind: str, encoding: str) -> None:
    """UTF-8 whatever is named (RFC 8259), and else what is named."""
    body = json.dumps(result_of_call("ä"), ensure_ascii=False).encode(encoding)
    headers = {"content-type": kind} if kind else {}
    async with connected(on_call(Reply(200, headers, body))) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "ä"


@pytest.mark.parametrize("charset", ["", "; charset=ascii", "; charset=utf-16"])
async def test_bytes_that_fit_no_charset_are_replaced(charset: str) -> None:
    """C17."""
    body = json.dumps(result_of_call("a?b")).encode().replace(b"?", b"\xff")
    reply = Reply(200, {"content-type": JSON + charset}, body)
    async with connected(on_call(reply)) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "a\ufffdb"


@pytest.mark.parametrize("kind", ["text/plain", "text/html; charset=utf-8", "application/x-rpc"])
async def test_an_answer_counts_for_what_it_is_whatever_it_calls_itself(kind: str) -> None:
    body = json.dumps(result_of_call("mislabelled")).encode()
    async with connected(on_call(Reply(200, {"content-type": kind}, body))) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "mislabelled"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(200, {"content-type": JSON}, b"<oops>"), "cannot be read as JSON"),
        (Reply(200, {"content-type": JSON}, b"[" * 100_000), "nested too deeply"),
        (Reply(200, {"content-type": JSON}, b" "), "with an empty body"),
        (json_reply({"jsonrpc": "2.0", "id": 99, "result": {}}), "id of another request"),
        (json_reply([]), "no JSON-RPC answer"),
        (json_reply({"a": 1}), "no JSON-RPC answer"),
        (Reply(200, {"content-type": "text/plain"}, b'{"a": 1}'), "answers with text/plain"),
        (Reply(204), "with an empty body"),
    ],
)
async def test_an_answer_that_is_none_says_what_it_is(reply: Reply, words: str) -> None:
    """P27."""
    async with connected(on_call(reply)) as (_, connection):
        with pytest.raises(ServerUnavailable, match=words):
            await connection.call_tool("echo", {})


async def test_answers_may_come_in_a_batch_and_with_numbers_as_text() -> None:
    """2025-03-26: batches."""
    notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
    batch = [notice, {"jsonrpc": "2.0", "id": str(CALL), "result": text("batched")}]
    async with connected(on_rpc("tools/call", json_reply(batch))) as (_, connection):
        assert (await connection.call_tool("echo", {})).text == "batched"
