"""What the building of an environment says: bounded, and clean enough to be shown. No Django."""

from __future__ import annotations

import codecs
import re
import threading
from typing import Final

from umpteenth.core.text import clean

HEAD: Final = 16 * 1024  # characters that are kept from the beginning
TAIL: Final = 48 * 1024
MAX_LINE: Final = 2000
_LONGEST: Final = 2 * MAX_LINE  # of a line that is looked at
_MAX_STEP: Final = 200
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LABEL: Final = re.compile(r"^(?:npm )?(?:error|ERR!|cause|E)\b[:!]?\s*", re.IGNORECASE)
# A registry's address in the machine's settings may hold a password.
_CREDENTIALS: Final = re.compile(r"://[^/\s@]+@")
_HALF_AN_ADDRESS: Final = re.compile(r"://[^/\s@]*$")


class BuildLog:
    """Written by the builder's loop, read by whoever stores it. The middle of a long one goes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._head: list[str] = []
        self._head_size = 0
        self._tail: list[str] = []
        self._tail_size = 0
        self._left_out = 0
        self.step = ""

    def begin(self, title: str) -> None:
        self._flush()
        self.step = title[:_MAX_STEP]
        self.add(f"== {title}")

    def write(self, data: bytes) -> None:
        """Output as it comes; a line counts once it is whole, and of a long one its beginning."""
        *lines, rest = re.split(r"\r?\n|\r", self._rest + self._decoder.decode(data))
        for line in lines:
            self.add(line)
        self._rest = rest[: _LONGEST + 1]

    def add(self, line: str) -> None:
        line = clean(_without_passwords(line), MAX_LINE).rstrip()
        if not line:
            return
        with self._lock:
            if not self._tail and self._head_size + len(line) < HEAD:
                self._head.append(line)
                self._head_size += len(line) + 1
                return
            self._tail.append(line)
            self._tail_size += len(line) + 1
            while self._tail_size > TAIL:
                self._tail_size -= len(self._tail.pop(0)) + 1
                self._left_out += 1

    def text(self) -> str:
        with self._lock:
            gap = [f"… {self._left_out:,} lines left out …"] if self._left_out else []
            return "\n".join([*self._head, *gap, *self._tail])

    def last_words(self) -> str:
        """The last line that seems to say what went wrong."""
        self._flush()
        with self._lock:
            lines = [line for line in (*self._head, *self._tail)[-40:] if line[:2] != "=="]
        telling = [
            line for line in lines if re.search(r"error|E:|\xd7|not found|No solution", line)
        ]
        found = (telling or lines or [""])[-1].strip()
        return clean(_LABEL.sub("", found), 500)

    def _flush(self) -> None:
        rest, self._rest = self._rest, ""
        self.add(rest)


def _without_passwords(line: str) -> str:
    whole = _COLOURS.sub("", line[:_LONGEST])
    if len(line) > _LONGEST:
        whole = _HALF_AN_ADDRESS.sub("", whole)
    return _CREDENTIALS.sub("://***@", whole)
