"""Files without a name that the processes of a sandbox still hold, and with them room on the disk.

They are open, mapped, being executed, or under way to another process. Each thread may have
descriptors of its own, and outlive the first one of its process. Of a mapped file only root is
told the size, and nobody of one that is under way. A process may close its descriptors to
others of its user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic as _clock

# An empty file takes room too: as many files as pieces of this size fit in a limit.
SMALLEST = 4096
TIMEOUT = 60.0  # seconds of one look
_MARK = b" (deleted)"
_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272}.get(platform.machine())
_KCMP_FILES = 2
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Deleted:
    """What they take, endless if there are too many to count, and whether there may be more whose
    size cannot be known."""

    size: int = 0
    hidden: bool = False


def deleted_files(directories: Sequence[Path], inside: Sequence[str]) -> Deleted:
    """What processes hold that have the directories at these places. Blocks."""
    try:
        shown = dict(zip(inside, [os.stat(path) for path in directories], strict=True))
    except FileNotFoundError:
        return Deleted()
    look = _Look(shown, _clock() + TIMEOUT)
    try:
        look.at_all()
    except TimeoutError:
        return Deleted(sys.maxsize)
    return Deleted(sum(look.sizes.values()), look.hidden)


@dataclass
class _Look:
    """One look; a thread is what stands in /proc under its number, and the rest of its process."""

    shown: Mapping[str, os.stat_result]
    deadline: float
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    hidden: bool = False

    def __post_init__(self) -> None:
        self._devices = {place.st_dev for place in self.shown.values()}
        self._places = tuple(f"{place}/".encode() for place in self.shown)

    def at_all(self) -> None:
        """Raises `TimeoutError`."""
        for process in filter(str.isdigit, os.listdir("/proc")):
            self._check_time()
            tables: list[str] = []
            for number, thread in enumerate(self._threads(process)):
                if number == 0:  # memory is that of the process
                    self._at_file(f"/proc/{thread}/exe")
                    self._at_memory(thread)
                if not any(_share_descriptors(thread, other) for other in tables):
                    tables.append(thread)
                    self._at_descriptors(thread)
                self._check_time()

    def _threads(self, process: str) -> Iterator[str]:
        """Those that see the directories."""
        first_sees = self._sees(process)
        if not first_sees and not _has_ended(process):
            return
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                if first_sees or self._sees(thread):
                    yield thread

    def _sees(self, thread: str) -> bool:
        """From a root that nothing in a sandbox can change."""
        try:
            return all(
                os.path.samestat(os.stat(f"/proc/{thread}/root{inside}"), place)
                for inside, place in self.shown.items()
            )
        except OSError:
            return False

    def _at_descriptors(self, thread: str) -> None:
        with self._open_to_us(), os.scandir(f"/proc/{thread}/fd") as entries:
            for entry in entries:
                found = self._at_file(entry.path)
                if found is not None and stat.S_ISSOCK(found.st_mode):
                    self.hidden |= _has_files(thread, entry.name)
                self._check_time()

    def _at_memory(self, thread: str) -> None:
        """Looks at the list first: the files themselves are told to root of the machine only."""
        with self._open_to_us(), open(f"/proc/{thread}/maps", "rb") as lines:
            for line in lines:
                if not line.rstrip(b"\n").endswith(_MARK):
                    continue
                where, _, _, _, _, path = line.split(None, 5)
                try:
                    self._count(os.stat(f"/proc/{thread}/map_files/{_plain(where)}"))
                except PermissionError:
                    self.hidden |= path.startswith(self._places)
                except OSError:
                    pass  # it has just gone
                self._check_time()

    @contextlib.contextmanager
    def _open_to_us(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise
        except PermissionError:
            self.hidden = True
        except OSError:
            pass  # it has just gone

    def _at_file(self, path: str) -> os.stat_result | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        self._count(found)
        return found

    def _count(self, found: os.stat_result) -> None:
        if found.st_nlink == 0 and found.st_dev in self._devices:
            self.sizes[found.st_dev, found.st_ino] = max(found.st_blocks * 512, SMALLEST)

    def _check_time(self) -> None:
        if _clock() > self.deadline:
            raise TimeoutError


def _plain(where: bytes) -> str:
    """A range of addresses as it is called in map_files: without zeros in front."""
    return "-".join(f"{int(address, 16):x}" for address in where.split(b"-"))


def _has_ended(process: str) -> bool:
    """Whether its first thread has, which then sees nothing; others may go on."""
    try:
        os.readlink(f"/proc/{process}/root")
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _has_files(thread: str, descriptor: str) -> bool:
    """Whether descriptors wait in a socket for whoever reads there."""
    try:
        text = Path(f"/proc/{thread}/fdinfo/{descriptor}").read_text()
    except OSError:
        return False
    return any(line.startswith("scm_fds:") and line.split()[1] != "0" for line in text.splitlines())


def _share_descriptors(thread: str, other: str) -> bool:
    """Whether it has the same ones as another thread; where the kernel does not say, not."""
    if _KCMP is None:
        return False
    return int(_libc.syscall(_KCMP, int(thread), int(other), _KCMP_FILES, 0, 0)) == 0
