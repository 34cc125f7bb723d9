"""Unpacking and reading bodies, whatever bytes come."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Callable
from encodings import aliases
from itertools import pairwise

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.mcp.bodies import PIECE, charset_of, decoded, drain, read_body, text_of
from servers.mcp.types import ServerError

Pack = Callable[[bytes], bytes]


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def stored(data: bytes) -> bytes:
    return gzip.compress(data, 0)


def response(coding: str, chunks: list[bytes]) -> httpx2.Response:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    headers = {"content-encoding": coding, "content-type": "application/json"}
    return httpx2.Response(200, headers=headers, content=stream())


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[a:b] for a, b in pairwise(bounds)]


async def pieces(coding: str, chunks: list[bytes]) -> list[bytes]:
    return [piece async for piece in decoded(response(coding, chunks))]


@given(
    st.sampled_from([("gzip", gzip.compress), ("x-gzip", stored), ("identity", bytes)]),
    st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    st.integers(1, 500),
    st.lists(st.integers(1, 400), max_size=20),
)
async def test_members_and_cuts_of_any_kind_come_to_the_same(
    kind: tuple[str, Pack], parts: list[bytes], times: int, places: list[int]
) -> None:
    """B23: a gzip stream may have several members (RFC 1952, 2.2)."""
    coding, pack = kind
    parts = [part * times for part in parts]
    body = b"".join(pack(part) for part in parts)
    found = await pieces(coding, cut(body, places))
    assert b"".join(found) == b"".join(parts)
    if coding != "identity":
        assert all(len(piece) <= PIECE for piece in found)


@given(
    st.sampled_from([zlib.compress, raw_deflate]),
    st.binary(max_size=300),
    st.lists(st.integers(1, 400), max_size=20),
)
async def test_deflate_is_read_with_and_without_its_header(
    pack: Pack, data: bytes, places: list[int]
) -> None:
    """RFC 9110, 8.4.1.2."""
    assert b"".join(await pieces("deflate", cut(pack(data), places))) == data


@given(
    st.sampled_from(["gzip", "deflate"]),
    st.sampled_from([b"", gzip.compress(b"x"), b"\x1f\x8b", b"\x78\x9c"]),
    st.binary(max_size=200),
    st.lists(st.integers(1, 200), max_size=5),
)
async def test_bytes_of_any_kind_are_data_or_a_broken_body(
    coding: str, start: bytes, rest: bytes, places: list[int]
) -> None:
    """U59: and nothing else goes wrong."""
    try:
        await pieces(coding, cut(start + rest, places))
    except ServerError as error:
        assert error.message.startswith("response body failed: ")  # noqa: PT017  either will do


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
async def test_no_byte_is_lost_where_a_piece_is_just_full(size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    assert b"".join(await pieces("gzip", [gzip.compress(data)])) == data


async def test_an_empty_body_needs_no_member() -> None:
    """202 with a content coding."""
    assert await pieces("gzip", []) == []
    assert await pieces("gzip", [b""]) == []


@given(
    st.binary(max_size=200),
    st.text(max_size=20) | st.sampled_from(sorted(set(aliases.aliases.values()))),
)
def test_any_bytes_in_any_charset_are_some_text(body: bytes, charset: str) -> None:
    """C17."""
    kind = f"application/json; charset={charset}".encode("utf-8", errors="surrogateescape")
    answer = httpx2.Response(200, headers=[(b"content-type", kind)])
    assert isinstance(text_of(body, charset_of(answer)), str)


@pytest.mark.parametrize(
    ("charset", "codec"),
    [
        ("latin1", "iso8859-1"),
        ("UTF8", "utf-8"),
        ("Shift_JIS", "shift_jis"),
        ("utf-16", "utf-16"),
        ("utf-32le", "utf-32-le"),
        ("base64", "utf-8"),
        ("undefined", "utf-8"),
        ("", "utf-8"),
    ],
)
def test_only_charsets_of_text_count(charset: str, codec: str) -> None:
    answer = httpx2.Response(200, headers={"content-type": f"text/plain; charset={charset}"})
    assert charset_of(answer) == codec


async def test_a_body_of_the_very_limit_is_read() -> None:
    """B23."""
    assert len(await read_body(response("gzip", [gzip.compress(b"0" * 1000)]), 1000)) == 1000
    with pytest.raises(ServerError, match="larger than 999 bytes"):
        await read_body(response("gzip", [gzip.compress(b"0" * 1000)]), 999)


async def test_only_the_beginning_of_a_body_that_nobody_needs_is_read() -> None:
    read = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"0" * 10_000

    answer = httpx2.Response(200, content=stream())
    await drain(answer)
    assert read == 7
    await drain(answer)
    assert read == 7
