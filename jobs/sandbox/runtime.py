"""A short private directory for this process's sockets and small files.

A Unix socket's path holds 107 bytes, which a data directory may exceed. The directory is locked
while its owner lives; leftovers of dead processes are removed by the next one that starts.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jobs.sandbox.locked import left_behind, make_locked

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
            new = partial(_new_directory, base)
            _current = (os.getpid(), *make_locked(new))
        return _current[1]


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


def _new_directory(base: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))


def _remove_leftovers(base: Path) -> None:
    for path in base.glob(PREFIX + "*"):
        with left_behind(path) as is_left:
            if is_left:
                shutil.rmtree(path, ignore_errors=True)


@atexit.register
def _remove() -> None:
    global _current
    if _current is not None and _current[0] == os.getpid():
        shutil.rmtree(_current[1], ignore_errors=True)
        os.close(_current[2])
        _current = None
