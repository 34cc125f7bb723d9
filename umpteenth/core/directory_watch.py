"""Waits until a file is moved into a directory, by Linux's inotify where there is one.

Whoever uses it looks into the directory anyway now and then: where inotify is missing, or its
limits are reached, or the directory was replaced, a wait is only as good as a short sleep.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from pathlib import Path

IN_MOVED_TO = 0x80
_BUFFER = 64 * 1024  # bytes; what does not fit is read at the next wait


class DirectoryWatch:
    """Arrivals since it was made count, so make it before the first look."""

    def __init__(self, folder: Path, poll_every: float) -> None:
        """`poll_every`: seconds of a wait without inotify."""
        self._poll_every = poll_every
        self._descriptor = _watch(folder)
        # Not `select`, which refuses the descriptors above 1,023 of a busy worker.
        self._poll = select.poll()
        if self._descriptor is not None:
            self._poll.register(self._descriptor, select.POLLIN)

    def wait(self, timeout: float) -> None:
        """Return when something arrives or has arrived, at the latest after `timeout` seconds."""
        if self._descriptor is None:
            time.sleep(min(timeout, self._poll_every))
        elif self._poll.poll(timeout * 1000):
            os.read(self._descriptor, _BUFFER)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _watch(folder: Path) -> int | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), IN_MOVED_TO) < 0:
        os.close(descriptor)
        return None
    return descriptor
