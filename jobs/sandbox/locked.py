"""Directories that belong to a process for as long as it lives.

Their owner holds a lock on them, which goes with him however he ends. Whoever finds one without a
lock may remove it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_locked(make: Callable[[], Path]) -> tuple[Path, int]:
    """A new directory and the descriptor that locks it.

    Until it is locked it looks left behind to a process that looks at the same moment; what that
    one removed is made again.
    """
    while True:
        path = make()
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, _FLAGS)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


@contextlib.contextmanager
def left_behind(path: Path) -> Iterator[bool]:
    """Whether nobody holds it; then nobody else finds it so within the block.

    Not so what is another user's, or cannot be seen.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        yield False
        return
    try:
        yield os.fstat(descriptor).st_uid == os.geteuid() and _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
