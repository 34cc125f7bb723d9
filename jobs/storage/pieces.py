"""A stored file as Python's files are: read from any place, one piece in memory at a time."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from django.core.files import File

PIECE = 256 * 1024  # bytes that are fetched at once

# The bytes that begin at a place, as many as one answer holds; at least one below the size.
Fetch = Callable[[int], bytes]


def stored_file(name: str, size: int, fetch: Fetch) -> File[bytes]:
    reader = io.BufferedReader(_Reader(size, fetch), PIECE)
    return _StoredFile(reader, name, size)


class _StoredFile(File):  # type: ignore[type-arg]  # Django cannot subscript it
    """Knows its size, which Django would look for on a disk."""

    def __init__(self, file: Any, name: str, size: int) -> None:
        super().__init__(file, name)
        self.size = size


class _Reader(io.RawIOBase):
    def __init__(self, size: int, fetch: Fetch) -> None:
        self._size = size
        self._fetch = fetch
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        if self._place >= self._size:
            return 0
        found = self._fetch(self._place)[: len(buffer)]
        if not found:
            raise OSError("the stored file is shorter than it should be")
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)
