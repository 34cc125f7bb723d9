"""Bodies of HTTP answers: decompressed by us, counted while they grow, turned into text.

The HTTP library's own decoders are not used: they drop what follows the first member of a gzip
stream, and would take codings that were never offered. Memory stays flat whatever a server sends:
compressed data is unpacked in pieces, and the decoded bytes count (B23).
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import zlib
from collections.abc import AsyncGenerator, Iterator
from encodings.aliases import aliases
from typing import Final

import httpx2

from servers.limits import KIB
from servers.mcp.errors import NotMcp, own_words, words_of
from servers.mcp.events import Event, EventParser, EventTooLarge
from servers.mcp.schema_words import bytes_in_words
from servers.mcp.types import ConnectionLost, ServerError
from umpteenth.core import deadlines

# What can be unpacked piece by piece with the standard library; nothing else is offered.
OFFERED_CODINGS: Final = "gzip, deflate"
PIECE: Final = 64 * KIB
# Tiny ones come by the ten thousand; others in the loop get their turn in between.
CHUNKS_PER_TURN: Final = 50
# What is worth reading of a body that nobody needs, so that its connection can be used again.
DRAIN_BYTES: Final = 64 * KIB
DRAIN_SECONDS: Final = 0.2

_WINDOW: Final = zlib.MAX_WBITS
_CHARSETS: Final = frozenset({*aliases, *aliases.values()})
# Their bytes may pass as UTF-8.
_WIDE: Final = ("utf-16", "utf-32")
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def content_type(response: httpx2.Response) -> str:
    value: str = response.headers.get("content-type", "")
    return value.partition(";")[0].strip().lower()


def raw_header(response: httpx2.Response, name: str) -> str:
    """As it came, byte for byte, for values that are only ever sent back; empty if absent."""
    found = [value for given, value in response.headers.raw if given.lower() == name.encode()]
    return found[0].decode("latin-1") if found else ""


async def read_body(response: httpx2.Response, limit: int) -> bytes:
    """The decoded body. Raises `ServerError` if it breaks off or has more than `limit` bytes."""
    if not response.headers.get("content-encoding") and _announced(response) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async with contextlib.aclosing(decoded(response)) as pieces:
        async for piece in pieces:
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            parts.append(piece)
    return b"".join(parts)


async def read_events(response: httpx2.Response, limit: int) -> AsyncGenerator[Event, None]:
    """The events of a stream, each of at most `limit` bytes. Raises `ServerError`."""
    parser = EventParser(limit, charset_of(response))
    try:
        async with contextlib.aclosing(decoded(response)) as pieces:
            async for piece in pieces:
                for event in parser.feed(piece):
                    yield event
    except EventTooLarge:
        raise _too_large(limit) from None


async def read_beginning(response: httpx2.Response, limit: int, seconds: float) -> bytes:
    """What an error says; whatever goes wrong with its body matters less than the error."""
    body = bytearray()
    with contextlib.suppress(ServerError, TimeoutError):
        async with deadlines.timeout(seconds), contextlib.aclosing(decoded(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > limit:
                    break
    return bytes(body[:limit])


async def dismiss(response: httpx2.Response) -> None:
    """Be done with an answer that nobody reads."""
    try:
        await drain(response)
    finally:
        await response.aclose()


async def drain(response: httpx2.Response) -> None:
    """Read what little there is: a connection with an unread body cannot be used again."""
    if response.is_closed or content_type(response) == "text/event-stream":
        return
    size = 0
    with contextlib.suppress(httpx2.HTTPError, TimeoutError):
        async with (
            deadlines.timeout(DRAIN_SECONDS),
            contextlib.aclosing(response.aiter_raw()) as chunks,
        ):
            async for chunk in chunks:
                size += len(chunk)
                if size > DRAIN_BYTES:
                    return


async def decoded(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body in pieces of bounded size, as they come. Raises `ServerError` (U59)."""
    unpack = _unpacker(response)
    try:
        async with contextlib.aclosing(response.aiter_raw()) as chunks:
            count = 0
            async for chunk in chunks:
                count += 1
                if count % CHUNKS_PER_TURN == 0:
                    await asyncio.sleep(0)  # what has arrived already comes without a pause
                if unpack is None:
                    yield chunk
                    continue
                for piece in unpack.feed(chunk):
                    yield piece
                    await asyncio.sleep(0)  # others get their turn while a bomb goes off
        if unpack is not None:
            unpack.finish()
    except (httpx2.HTTPError, zlib.error) as error:
        raise broken_body(error) from error


def broken_body(error: Exception) -> ConnectionLost:
    return ConnectionLost(f"response body failed: {words_of(error)}")


def text_of(body: bytes, charset: str) -> str:
    """The text of a JSON document: a mark counts most, then UTF-8, then the charset it names.

    JSON between systems is UTF-8 (RFC 8259, 8.1), and most servers that name another charset send
    UTF-8 all the same. Bytes that fit nothing are replaced (C17).
    """
    for mark, codec in _MARKS:
        if body.startswith(mark):
            return body.decode(codec, errors="replace")
    for codec in (charset, "utf-8") if charset.startswith(_WIDE) else ("utf-8", charset):
        with contextlib.suppress(UnicodeError):
            return body.decode(codec)
    return body.decode(errors="replace")


def charset_of(response: httpx2.Response) -> str:
    """The text codec that the content type names, if there is such a one; else UTF-8.

    Python remembers every name that it was ever asked for; it is asked for those it knows only.
    """
    name = (response.charset_encoding or "").lower().replace("-", "_")
    if name not in _CHARSETS:
        return "utf-8"
    try:
        bytes(4).decode(name)  # codecs of text only; an empty text has any charset
    except (LookupError, ValueError):
        return "utf-8"
    return codecs.lookup(name).name


class _Unpacker:
    """A gzip or deflate body, unpacked in pieces of at most `PIECE` bytes."""

    def __init__(self, coding: str) -> None:
        self._gzip = coding == "gzip"
        self._head = b""  # of a deflate body, until its kind is known
        self._stream = zlib.decompressobj(_WINDOW | 16 if self._gzip else _WINDOW)
        self._known = self._gzip
        self._members = 0
        self._in_member = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises `zlib.error`."""
        if not self._known:
            self._head += data
            if len(self._head) < 2:
                return
            data, self._head, self._known = self._head, b"", True
            # "deflate" is meant to have a header (RFC 9110, 8.4.1.2); some servers leave it out.
            if data[0] & 0x0F != 8 or int.from_bytes(data[:2]) % 31:
                self._stream = zlib.decompressobj(-_WINDOW)
        yield from self._unpack(data)

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        full = False
        while data or full:
            if not self._in_member and self._members and not self._next_member(data):
                return
            self._in_member = True
            piece = self._stream.decompress(data, PIECE)
            full = len(piece) == PIECE
            data = self._stream.unconsumed_tail
            if self._stream.eof:
                self._members += 1
                self._in_member = full = False
                data = self._stream.unused_data
            if piece:
                yield piece

    def _next_member(self, data: bytes) -> bool:
        """Whether another member follows; anything else after one is padding (RFC 1952, 2.2)."""
        if not self._gzip or data[0] != 0x1F:
            return False
        self._stream = zlib.decompressobj(_WINDOW | 16)
        return True

    def finish(self) -> None:
        if self._in_member or self._head:
            raise zlib.error("the compressed answer is cut off")


def _unpacker(response: httpx2.Response) -> _Unpacker | None:
    named = response.headers.get("content-encoding", "").lower().split(",")
    codings = [coding for part in named if (coding := part.strip()) not in ("", "identity")]
    if not codings:
        return None
    coding = codings[0].removeprefix("x-")
    if len(codings) > 1 or coding not in ("gzip", "deflate"):
        raise NotMcp(
            f"The server's answer is compressed with {own_words(', '.join(codings), 100)}, "
            "which Umpteenth did not offer to read.",
            f"Let the server, or the proxy in front of it, keep to {OFFERED_CODINGS}.",
        )
    return _Unpacker(coding)


def _announced(response: httpx2.Response) -> int:
    length = response.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


def _too_large(limit: int) -> ServerError:
    return ServerError(
        f"The server's answer is larger than {bytes_in_words(limit)}.",
        "Raise max_message_bytes if the server may send so much.",
    )
