"""Server-sent events, read from bytes by their standard.

The parser of the HTTP library holds back a carriage return at the end of a chunk until more comes,
so that a standing stream with such line ends stands still (B17); this one does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
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
    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes of one event
        self._parts: list[bytes] = []  # of a line without its end
        self._size = 0
        self._after_return = False
        self._at_start = True
        self._id = ""
        self._reset()

    def _reset(self) -> None:
        self._kind = ""
        self._data: list[str] = []
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
        *ends, rest = _LINE_END.split(chunk)
        for end in ends:
            self._add(end)
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
        name, _, value = line.decode("utf-8", errors="replace").partition(":")
        self._take_field(name, value.removeprefix(" "))
        return None

    def _take_field(self, name: str, value: str) -> None:
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
            self._worth_reporting = True
        elif name == "id" and "\0" not in value:
            self._id = value
            self._worth_reporting = True
        elif name == "retry" and value.isascii() and value.isdigit():
            self._retry = int(value[:12])
            self._worth_reporting = True

    def _finish(self) -> Event | None:
        event = Event(self._kind or "message", "\n".join(self._data), self._id, self._retry)
        reported = self._worth_reporting
        self._reset()
        self._size = 0
        return event if reported else None
