"""The environments that this machine has: one directory each, below the data directory.

    environments/machine                      who this installation is, also under another host name
    environments/<digest>-<system>/root       what sandboxes see as /ump/env
    environments/<digest>-<system>/made.json  on what it was made, and when
    environments/.new-…, .old-…               being made, and going

A directory appears whole, by one rename, and whoever uses it holds a lock on it: then it is not
removed. A lock ends with its process. No Django here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import secrets
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from jobs.sandbox.base import USER_IDS
from jobs.sandbox.files import remove_tree
from jobs.sandbox.locked import left_behind
from jobs.sandbox.places import system_python

PLACE = "environments"
LOCKED_AFTER = 60.0  # seconds
_NEW, _OLD = ".new-", ".old-"
_ROOT, _MADE = "root", "made.json"


@dataclass(frozen=True)
class Store:
    """The environments below one data directory."""

    data_dir: Path

    @property
    def place(self) -> Path:
        return self.data_dir / PLACE

    def machine(self) -> str:
        """Of whom all can use what one made: the hosts of one data directory and one system."""
        return _short(f"{self.installation()}:{system_words()}")

    def installation(self) -> str:
        """A name that stays. A copy of the directory is another one, so the file's own number
        belongs to it."""
        path = self.place / "machine"
        if not path.exists():
            self._make_place()
            new = path.with_name(f"{_NEW}{secrets.token_hex(8)}")
            new.write_text(secrets.token_hex(16))
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(new, path)
            new.unlink()
        mark = f"{path.read_text()}:{path.stat().st_ino}"
        return _short(mark)

    def find(self, digest: str) -> Path | None:
        """The directory for sandboxes; None where it is missing or damaged."""
        path = self._path(digest)
        try:
            made = json.loads((path / _MADE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return path / _ROOT if isinstance(made, dict) else None

    @contextlib.contextmanager
    def hold(self, digest: str) -> Iterator[Path | None]:
        """Keep an environment from being removed while it is in use; None where there is none."""
        with contextlib.ExitStack() as held:
            yield self._hold(digest, held)

    def _hold(self, digest: str, held: contextlib.ExitStack) -> Path | None:
        while True:
            path = self._path(digest)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return None
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                # Not one that went while we waited, or was made anew.
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    os.utime(path)
                    return self.find(digest)

    @contextlib.contextmanager
    def making(self) -> Iterator[Path]:
        """A new directory to fill; `root` and `scratch` in it belong to the user who builds. What
        is not kept in the end goes, also where this process is killed meanwhile. Blocks."""
        self._make_place()
        new = self.place / f"{_NEW}{secrets.token_hex(8)}"
        for path in (new, new / _ROOT, new / "scratch"):
            path.mkdir(mode=0o700)
            path.chmod(0o711 if path == new else 0o755)
            if os.geteuid() == 0 and path != new:
                os.chown(path, USER_IDS["agent"], USER_IDS["agent"])
        descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield new
        finally:
            os.close(descriptor)
            remove_tree(new)

    def keep(self, new: Path, digest: str) -> Path:
        """What `making` gave takes its place; what was there goes when nobody uses it."""
        remove_tree(new / "scratch")
        made = {"system": system_words(), "at": time.time()}
        (new / _MADE).write_text(json.dumps(made), encoding="utf-8")
        self.drop(digest)
        path = self._path(digest)
        os.rename(new, path)
        return path / _ROOT

    def drop(self, digest: str) -> bool:
        """Take an environment away from those who come; it is removed when nobody uses it."""
        try:
            os.rename(self._path(digest), self.place / f"{_OLD}{secrets.token_hex(8)}")
        except FileNotFoundError:
            return False
        return True

    def remove_unused(self, wanted: Set[str], *, unused_since: float) -> list[str]:
        """Delete what no environment stands for (`wanted` are the digests of all), what nobody
        has used since then, and what builders that were killed left. The digests that went from
        this machine."""
        gone = []
        for path in self._directories():
            digest = path.name.partition("-")[0]
            try:
                used_at = path.stat().st_mtime
            except FileNotFoundError:  # another worker tidies, too
                continue
            if path.name.startswith((_NEW, _OLD)):
                # One that was made this moment may not be locked yet.
                if path.name.startswith(_OLD) or used_at < time.time() - LOCKED_AFTER:
                    self._remove(path)
            elif (digest not in wanted or used_at < unused_since) and self._remove(path):
                gone += [digest] if path == self._path(digest) else []
        return gone

    def _remove(self, path: Path) -> bool:
        with contextlib.suppress(OSError), left_behind(path) as is_left:
            if is_left:
                if not path.name.startswith((_NEW, _OLD)):
                    # Nobody who comes now finds half of it.
                    path = path.rename(path.with_name(f"{_OLD}{secrets.token_hex(8)}"))
                remove_tree(path)
            return is_left
        return False

    def _path(self, digest: str) -> Path:
        """Hosts of other systems that share the data directory have theirs beside it."""
        return self.place / f"{digest}-{_short(system_words())[:8]}"

    def _directories(self) -> list[Path]:
        if not self.place.is_dir():
            return []
        return [path for path in self.place.iterdir() if path.is_dir()]

    def _make_place(self) -> None:
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)


def _short(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def system_words() -> str:
    """What a directory of packages depends on: after an upgrade of the system it is made anew."""
    release: dict[str, str] = {}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
    python = os.path.realpath(system_python())
    system = f"{release.get('ID', '')} {release.get('VERSION_ID', '')}"
    return f"{system} {platform.machine()} {python}".strip()
