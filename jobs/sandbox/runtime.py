"""A short private directory for this process's sockets and small files.

A Unix socket's path holds 107 bytes, which a data directory may exceed. The directory is locked
while its owner lives; leftovers of dead processes are removed by the next one that starts.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

PREFIX = "ump-rt-"

_lock = threading.Lock()
_current: tuple[int, Path, int] | None = None  # process id, directory, locked descriptor


def runtime_dir() -> Path:
    """This process's directory (0700), made when first asked for and removed at exit."""
    global _current
    with _lock:
        if _current is None or _current[0] != os.getpid():
            base = _base()
            _remove_leftovers(base)
            _current = (os.getpid(), *_make(base))
        return _current[1]


def _make(base: Path) -> tuple[Path, int]:
    """A new directory and the descriptor that locks it.

    Until it is locked it looks like a leftover to a process that starts at the same moment; what
    that one removed is made again.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def socket_path() -> Path:
    """A new path for a socket in the runtime directory."""
    return runtime_dir() / f"{secrets.token_hex(6)}.sock"


def small_file(name: str, content: Callable[[], str], *, mode: int = 0o644) -> Path:
    """A file that is the same for all sandboxes of this process, written when first needed."""
    path = runtime_dir() / name
    if not path.exists():
        new = path.with_name(f"{name}.{secrets.token_hex(4)}")
        new.write_text(content(), encoding="utf-8")
        new.chmod(mode)
        new.rename(path)
    return path


def _base() -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    # A longer one would not leave room for the rest.
    if named and len(named) < 60 and os.access(named, os.W_OK | os.X_OK):
        return Path(named)
    return Path("/tmp")


def _remove_leftovers(base: Path) -> None:
    for path in base.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


@atexit.register
def _remove() -> None:
    global _current
    if _current is not None and _current[0] == os.getpid():
        shutil.rmtree(_current[1], ignore_errors=True)
        os.close(_current[2])
        _current = None
