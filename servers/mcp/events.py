"""Server-sent events, read from bytes by their standard.

The parser of the HTTP library holds back a carriage return at the end of a chunk until more comes,
so that a standing stream with such line ends stands still (B17); this one does not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
# After two the event is over; more of them change nothing, but cost time by the million (B23).
_MANY_LINE_ENDS: Final = [
    (end * 3, end * 2, re.compile(b"(?:%s){3,}" % end)) for end in (b"\n", b"\r\n", b"\r")
]
MAX_ID: Final = 1024  # bytes: it goes back in a header
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Event:
    """`data` is empty for events that only number the stream; `retry` is in milliseconds."""

    kind: str
    data: str
    id: str
    retry: int | None


class EventTooLarge(Exception):
    """One event grew over the limit."""


class EventParser:
    def __init__(self, limit: int, charset: str = "utf-8") -> None:
        """`limit` in bytes of one event, with what precedes it. All lines should be UTF-8;
        `charset` is for those that are not."""
        self._limit = limit
        self._charset = charset
        self._parts: list[bytes] = []  # of a line without its end
        self._size = 0
        self._after_return = False
        self._at_start = True
        self._id = ""
        self._reset()

    def _reset(self) -> None:
        self._kind = b""
        self._data = bytearray()  # each line with its end: many short ones take no more than this
        self._retry: int | None = None
        self._worth_reporting = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that `chunk` completes. Raises `EventTooLarge`."""
        if self._after_return and chunk.startswith(b"\n"):
            # The second half of a line end whose first half ended the last chunk.
            chunk = chunk[1:]
            self._after_return = False
        if not chunk:
            return
        self._after_return = chunk.endswith(b"\r")
        *ends, rest = _LINE_END.split(_with_few_line_ends(chunk))
        for end in ends:
            self._add(end)
            self._size += 1
            line = b"".join(self._parts)
            self._parts.clear()
            event = self._take_line(line)
            if event is not None:
                yield event
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._limit:
            raise EventTooLarge

    def _take_line(self, line: bytes) -> Event | None:
        if self._at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        if not line:
            return self._finish()
        name, _, value = line.partition(b":")
        self._take_field(name, value.removeprefix(b" "))
        return None

    def _take_field(self, name: bytes, value: bytes) -> None:
        if name == b"event":
            self._kind = value
        elif name == b"data":
            self._data += value
            self._data += b"\n"
            self._worth_reporting = True
        elif name == b"id" and b"\0" not in value and len(value) <= MAX_ID:
            self._id = self._decode(value)
            self._worth_reporting = True
        elif name == b"retry" and value.isdigit():
            self._retry = int(value[:12])
            self._worth_reporting = True

    def _finish(self) -> Event | None:
        kind, data = self._decode(self._kind), self._decode(self._data[:-1])
        event = Event(kind or "message", data, self._id, self._retry)
        reported = self._worth_reporting
        self._reset()
        if not reported:
            return None  # and counts on: comments without end are no better than a line without
        self._size = 0
        return event

    def _decode(self, part: bytes | bytearray) -> str:
        for charset in ("utf-8", self._charset):
            with contextlib.suppress(UnicodeError):
                return part.decode(charset)
        return part.decode("utf-8", errors="replace")


def _with_few_line_ends(chunk: bytes) -> bytes:
    for many, few, pattern in _MANY_LINE_ENDS:
        if many in chunk:
            chunk = pattern.sub(few, chunk)
    return chunk
