"""A script's output on its way to the timeline: decoded, masked, in pieces, bounded."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from umpteenth.core.text import clean

if TYPE_CHECKING:
    from jobs.timeline import Recorder

PIECE = 12_000  # bytes of text in one event
PAUSE = 0.2  # seconds that text may wait for more
HEAD = 8 * 1024 * 1024  # bytes of a run's output that are recorded as they come
TAIL = 64 * 1024  # characters kept of what follows
_CHUNK = 64 * 1024
# Rounds of the event loop in which what lies in a pipe is read, handed over and decoded.
_ROUNDS = 8
# A line end or terminal sequence that has begun: it is cleaned whole or not at all.
_BEGUN = re.compile(
    r"(?:\r|(?:\x1b\[|\x9b)[0-?]{0,256}[ -/]{0,256}|\x1b[ -/]{0,256}"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]{0,4096}\x1b?)\Z"
)


class Budget:
    """What a run's streams together may record as they come."""

    def __init__(self, left: int = HEAD) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        if self.left < size:
            self.left = 0
            return False
        self.left -= size
        return True


class OutputStream:
    """Records one of a script's streams (`stdout` or `stderr`) until it ends.

    `room` is awaited before more is read, so that a script which writes faster than the
    database waits for it.
    """

    def __init__(
        self, name: str, recorder: Recorder, budget: Budget, room: Callable[[], Awaitable[None]]
    ) -> None:
        self._name = name
        self._recorder = recorder
        self._budget = budget
        self._room = room
        self.followed = asyncio.Event()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mask: Any = recorder.stream()
        self._pending = ""
        self._unsettled = ""
        self._since = 0.0
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._left_out = 0

    async def follow(self, reader: asyncio.StreamReader) -> None:
        """Read to the end; what is there is recorded also when this is cancelled."""
        reading: asyncio.Future[bytes] | None = None
        self.followed.set()
        try:
            while True:
                reading = reading or asyncio.ensure_future(reader.read(_CHUNK))
                await asyncio.wait({reading}, timeout=self._patience())
                if self._patience() == 0:
                    self.flush()
                if not reading.done():
                    continue
                chunk, reading = reading.result(), None
                if not chunk:
                    return
                await self._room()
                self._feed(self._decoder.decode(chunk))
        finally:
            if reading is not None:
                reading.cancel()
            self._end()

    def flush(self) -> None:
        """Record what has been read, without waiting for more."""
        if self._pending:
            piece, self._pending = self._pending, ""
            for part in _pieces(piece):
                self._write(part)

    def _patience(self) -> float | None:
        """Seconds until the oldest text that waits must be written; None while none waits."""
        if not self._pending:
            return None
        return max(0.0, self._since + PAUSE - time.monotonic())

    def _feed(self, text: str) -> None:
        self._add(self._mask.feed(text))

    def _add(self, text: str) -> None:
        text = self._unsettled + text
        begun = _BEGUN.search(text)
        settled = begun.start() if begun else len(text)
        self._unsettled = text[settled:]
        if not self._pending:
            self._since = time.monotonic()
        self._pending += clean(text[:settled])
        while len(self._pending) >= PIECE:
            piece, self._pending = _split(self._pending)
            self._write(piece)

    def _write(self, text: str) -> None:
        size = len(text.encode())
        if not self._left_out and self._budget.take(size):
            self._emit(text)
            return
        self._tail.append(text)
        self._tail_size += len(text)
        self._left_out += size
        while self._tail_size - len(self._tail[0]) > TAIL:
            self._tail_size -= len(self._tail.popleft())

    def _end(self) -> None:
        self._feed(self._decoder.decode(b"", final=True))
        self._add(self._mask.close())
        self._pending += clean(self._unsettled)
        self.flush()
        kept = "".join(self._tail)
        left_out = self._left_out - len(kept.encode())
        if left_out > 0:
            message = f"{left_out:,} bytes of {self._name} are left out here"
            self._recorder.record("log", {"message": message})
        for piece in _pieces(kept):
            self._emit(piece)

    def _emit(self, text: str) -> None:
        self._recorder.record("output", {"stream": self._name, "text": text}, masked=True)


async def catch_up(streams: Sequence[OutputStream]) -> None:
    """Record what the script wrote before it came here, so that the timeline keeps its order.

    A script may be here before anybody reads what it wrote.
    """
    for stream in streams:
        await stream.followed.wait()
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
    for stream in streams:
        stream.flush()


def _split(text: str) -> tuple[str, str]:
    """A first piece of at most `PIECE` bytes, at the end of a line where there is one."""
    piece = text[:PIECE].encode()[:PIECE].decode(errors="ignore")
    end = piece.rfind("\n") + 1
    size = end if end > PIECE // 4 else len(piece)
    return text[:size], text[size:]


def _pieces(text: str) -> list[str]:
    found = []
    while text:
        piece, text = _split(text) if len(text.encode()) > PIECE else (text, "")
        found.append(piece)
    return found
