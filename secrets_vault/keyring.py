"""Where the key ring of this installation lives: a file in the data directory, or an option.

The file changes while processes run (`rotate-keys`), so its state is looked at before each use
and it is read again when it changed. Nothing is ever encrypted with a key that is not, at that
moment, in the file.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secrets_vault.crypto import BadKeyRing, KeyRing
from umpteenth.core.config import ConfigError, get_options
from umpteenth.core.keyfiles import make_data_dir, read_private_file

RING_FILE = "keyring"
LOCK_FILE = "keyring.lock"
OPTION = "security.key_ring"

_State = tuple[str, int, int, int] | str
_cache: tuple[_State, KeyRing] | None = None
_cache_lock = threading.Lock()


class RingBusy(Exception):
    """Another process is changing the key ring."""


def ring_path() -> Path:
    return get_options().data_dir / RING_FILE


def is_given_by_option() -> bool:
    return get_options().security.key_ring is not None


def source() -> str:
    """How messages call the place of the keys."""
    return OPTION if is_given_by_option() else f"the key ring file {ring_path()}"


def read_ring(*, again: bool = False) -> KeyRing:
    """The ring as it is now; `again` reads it even if it looks unchanged. Raises `ConfigError`."""
    global _cache
    with _cache_lock:
        state = _state()
        if again or _cache is None or _cache[0] != state:
            _cache = (state, _parse(_text()))
        return _cache[1]


def remembered_ring() -> KeyRing | None:
    """The ring as it was last read: enough to decrypt with while the file is out of reach."""
    return _cache[1] if _cache else None


def forget_ring() -> None:
    """As if this process had never read a ring."""
    global _cache
    _cache = None


@contextmanager
def ring_lock(*, wait: bool = True) -> Iterator[None]:
    """Held by whoever makes or changes the file. Raises `RingBusy` at once without `wait`."""
    options = get_options()
    make_data_dir(options.data_dir)
    handle = os.open(options.data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        raise RingBusy from None
    try:
        yield
    finally:
        os.close(handle)


def replace_ring_file(ring: KeyRing) -> None:
    """Put another ring in place of the file: whole or not at all, owner and mode kept.

    The caller holds `ring_lock`. Raises `OSError`.
    """
    path = Path(os.path.realpath(ring_path()))
    spare = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write_new(spare, ring, owner=path.stat())
        spare.rename(path)
    except OSError:
        spare.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_ring_to(path: Path, ring: KeyRing) -> None:
    """A new file, readable by its owner alone. Raises `OSError` (also where it exists)."""
    try:
        _write_new(path, ring)
    except FileExistsError:
        raise
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _write_new(path: Path, ring: KeyRing, *, owner: os.stat_result | None = None) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        if owner is not None and (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
            # Rotated by root for a service that runs as somebody else.
            os.fchown(handle, owner.st_uid, owner.st_gid)
        file.write(ring.to_text())
        file.flush()
        os.fsync(handle)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _state() -> _State:
    given = get_options().security.key_ring
    if given is not None:
        return given.get_secret_value()
    path = ring_path()
    try:
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"The key file {path} cannot be read: {error.strerror}.") from None
    return str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size


def _text() -> str:
    given = get_options().security.key_ring
    return given.get_secret_value() if given is not None else read_private_file(ring_path())


def _parse(text: str) -> KeyRing:
    try:
        return KeyRing.parse(text)
    except BadKeyRing as error:
        place = source()
        raise ConfigError(f"{place[0].upper()}{place[1:]} cannot be used: {error}.") from None
