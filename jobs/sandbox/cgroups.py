"""Control groups (cgroups): what bounds the memory, processes and processors of a whole sandbox.

Each process of ours has one directory in each hierarchy that it may use, and each sandbox one in
that, which the launcher's child enters before it becomes the command. The directory is locked
while its owner lives; what dead workers left is removed by the next one that starts.

A controller is taken from cgroup v2 where it is there, else from v1. In v2 only groups without
processes of their own can hand controllers on, so ours is used if it is handed over to us (a
container's, or `Delegate=yes` of systemd), and what runs in it moves to a leaf; else root goes to
the top, as engines for containers do.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import logging
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jobs.sandbox.base import Limits
from jobs.sandbox.hierarchies import CONTROLLERS, Hierarchy, find_hierarchies
from jobs.sandbox.locked import left_behind, make_locked

logger = logging.getLogger(__name__)

PREFIX = "umpteenth-"
LEAF = "umpteenth.processes"  # in v2: where the processes of a group go whose children we are
CPU_PERIOD = 100_000  # microseconds
REMOVE_TIMEOUT = 5.0  # seconds
REMOVE_PAUSE = 0.002


@dataclass(frozen=True)
class Usage:
    """What the limits of a group came to."""

    out_of_memory: bool = False
    processes_refused: bool = False


@dataclass(frozen=True)
class _Place:
    """The directory of this process in one hierarchy, and its lock."""

    path: Path
    controllers: tuple[str, ...]
    unified: bool
    lock: int


class Group:
    """The group of one sandbox: a directory in each hierarchy."""

    def __init__(self, directories: Sequence[Path], controllers: Collection[str]) -> None:
        self._directories = directories
        self.controllers = controllers

    @property
    def entrances(self) -> list[str]:
        """The files that a process writes `0` to, to enter."""
        return [str(path / "cgroup.procs") for path in self._directories]

    def usage(self) -> Usage:
        out_of_memory = refused = 0
        for path in self._directories:
            # The second name is v1's.
            for name in ("memory.events", "memory.oom_control"):
                out_of_memory += _count(path / name, "oom_kill")
            refused += _count(path / "pids.events", "max")
        return Usage(out_of_memory > 0, refused > 0)

    def remove(self) -> None:
        """Delete it, at once where its processes are gone, else as soon as they are."""
        left = [path for path in self._directories if not _remove_empty(path)]
        if not left:
            return
        try:
            threading.Thread(target=_remove, args=(left,), name="cgroups", daemon=True).start()
        except RuntimeError:  # no thread to be had
            _remove(left)


class Cgroups:
    """The groups of this process. `shared()` has those of this machine; threads may share it."""

    def __init__(self, hierarchies: Sequence[Hierarchy]) -> None:
        self._hierarchies = hierarchies
        self._lock = threading.Lock()
        self._places: list[_Place] | None = None
        self._numbers = itertools.count(1)

    @property
    def controllers(self) -> frozenset[str]:
        """What can be limited here; looks the first time it is asked, which takes milliseconds."""
        return frozenset(name for place in self._opened() for name in place.controllers)

    def make(self, limits: Limits) -> Group:
        """A group with these limits, as far as there are controllers. Raises `OSError`."""
        name, made = str(next(self._numbers)), []
        try:
            for place in self._opened():
                directory = place.path / name
                os.mkdir(directory)
                made.append(directory)
                _limit(directory, place, limits)
        except OSError:
            _remove(made)
            raise
        return Group(made, self.controllers)

    def remove_leftovers(self) -> int:
        """Delete the groups of dead workers with all that is left in them; how many there were."""
        return sum(_remove_leftovers(hierarchy.top) for hierarchy in self._hierarchies)

    def close(self) -> None:
        with self._lock:
            places, self._places = self._places or [], None
        for place in places:
            _remove([*_children(place.path), place.path])
            os.close(place.lock)

    def forget(self) -> None:
        """In a forked child: the groups belong to the parent."""
        self._lock = threading.Lock()
        places, self._places = self._places or [], None
        for place in places:
            os.close(place.lock)

    def _opened(self) -> list[_Place]:
        with self._lock:
            if self._places is None:
                self._places = self._open()
            return self._places

    def _open(self) -> list[_Place]:
        self.remove_leftovers()
        found: list[_Place] = []
        missing = set(CONTROLLERS)
        # v2 first: a controller is in one hierarchy only.
        for hierarchy in sorted(self._hierarchies, key=lambda item: not item.unified):
            try:
                place = _open(hierarchy, missing)
            except OSError as error:
                logger.info("cgroups in %s cannot be used: %s", hierarchy.top, error)
                continue
            if place is not None:
                found.append(place)
                missing -= set(place.controllers)
        return found


def _open(hierarchy: Hierarchy, wanted: set[str]) -> _Place | None:
    """Our directory there, tried out; None where it controls nothing that is wanted."""
    parent, available = hierarchy.own, hierarchy.controllers
    if hierarchy.unified:
        parent = _unified_parent(hierarchy)
        available = tuple((parent / "cgroup.controllers").read_text().split())
    controllers = tuple(name for name in CONTROLLERS if name in available and name in wanted)
    if hierarchy.unified:
        controllers = _hand_on(parent, controllers)
    if not controllers:
        return None
    path, lock = make_locked(partial(_new_directory, parent))
    place = _Place(path, controllers, hierarchy.unified, lock)
    trial = path / "trial"
    try:
        if hierarchy.unified and _hand_on(path, controllers) != controllers:
            raise OSError(errno.EPERM, "controllers are not handed on", str(path))
        os.mkdir(trial)
        _limit(trial, place, Limits())
        _try_to_enter(trial)
    except OSError:
        os.close(lock)
        _remove([trial, path])
        raise
    _remove([trial])
    return place


def _try_to_enter(group: Path) -> None:
    """With a process that ends at once; rights to make a group are not yet those to fill it."""
    command = ["sh", "-c", 'echo 0 > "$1"', "sh", str(group / "cgroup.procs")]
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=10)
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, str(error), str(group)) from None
    if done.returncode != 0:
        raise OSError(errno.EPERM, done.stderr.decode(errors="replace"), str(group))


def _unified_parent(hierarchy: Hierarchy) -> Path:
    own = hierarchy.own.parent if hierarchy.own.name == LEAF else hierarchy.own
    return own if own == hierarchy.top or _is_delegated(own) else hierarchy.top


def _is_delegated(group: Path) -> bool:
    """Whether systemd leaves this group to us."""
    if os.geteuid() != 0:
        return os.access(group / "cgroup.subtree_control", os.W_OK)
    with contextlib.suppress(OSError):
        return os.getxattr(group, "trusted.delegate") == b"1"
    return False


def _hand_on(group: Path, controllers: Sequence[str]) -> tuple[str, ...]:
    """Let the children of a v2 group have these controllers; which of them they have then."""
    file = group / "cgroup.subtree_control"
    for name in controllers:
        if name in file.read_text().split():
            continue
        try:
            _write(file, f"+{name}")
        except OSError as error:
            if error.errno == errno.EBUSY:
                _move_processes(group)
                _write(file, f"+{name}")
            else:  # cpu may be refused alone, for the sake of real-time processes
                logger.info("the controller %s is not handed on by %s: %s", name, group, error)
    found = file.read_text().split()
    return tuple(name for name in controllers if name in found)


def _move_processes(group: Path) -> None:
    """Into a leaf: a group with processes hands nothing on. Some may fork meanwhile."""
    leaf = group / LEAF
    with contextlib.suppress(FileExistsError):
        os.mkdir(leaf)
    for _ in range(10):
        found = _processes(group)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", str(pid))


def _new_directory(parent: Path) -> Path:
    path = parent / f"{PREFIX}{secrets.token_hex(6)}"
    os.mkdir(path)
    return path


def _limit(directory: Path, place: _Place, limits: Limits) -> None:
    write = _limit_unified if place.unified else _limit_v1
    for controller in place.controllers:
        write(directory, controller, limits)


def _limit_unified(directory: Path, controller: str, limits: Limits) -> None:
    if controller == "memory":
        _write(directory / "memory.max", str(limits.memory))
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap
            _write(directory / "memory.swap.max", "0")
    elif controller == "pids":
        _write(directory / "pids.max", str(limits.processes))
    else:
        _write(directory / "cpu.max", f"{_quota(limits)} {CPU_PERIOD}")


def _limit_v1(directory: Path, controller: str, limits: Limits) -> None:
    if controller == "memory":
        _write(directory / "memory.limit_in_bytes", str(limits.memory))
        with contextlib.suppress(FileNotFoundError):  # a kernel that does not count swap
            _write(directory / "memory.memsw.limit_in_bytes", str(limits.memory))
    elif controller == "pids":
        _write(directory / "pids.max", str(limits.processes))
    else:
        _write(directory / "cpu.cfs_period_us", str(CPU_PERIOD))
        try:
            _write(directory / "cpu.cfs_quota_us", str(_quota(limits)))
        except OSError as error:
            if error.errno != errno.EINVAL:  # more than a group above has, which holds anyway
                raise


def _quota(limits: Limits) -> int:
    return int(limits.cpus * CPU_PERIOD)


def _write(file: Path, text: str) -> None:
    """Without making the file: a controller that is not there must be seen."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _count(file: Path, name: str) -> int:
    """The number behind a name in a file of such lines; 0 where either is missing."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    found = [line.split() for line in lines]
    return sum(int(words[1]) for words in found if len(words) == 2 and words[0] == name)


def _processes(group: Path) -> list[int]:
    """Those that this process can name; one outside of its namespace is shown as 0."""
    try:
        return [int(word) for word in (group / "cgroup.procs").read_text().split() if word != "0"]
    except OSError:
        return []


def _children(group: Path) -> list[Path]:
    try:
        return [path for path in group.iterdir() if path.is_dir()]
    except OSError:
        return []


def _remove_empty(group: Path) -> bool:
    """Whether it is gone now."""
    try:
        os.rmdir(group)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove(groups: Sequence[Path]) -> None:
    """Kill what is in them and delete them, in this order; the kernel takes its time (16 ms)."""
    deadline = time.monotonic() + REMOVE_TIMEOUT
    for group in groups:
        while not _remove_empty(group):
            for pid in _processes(group):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                logger.warning("the cgroup %s cannot be removed", group)
                break
            time.sleep(REMOVE_PAUSE)


def _remove_leftovers(top: Path) -> int:
    count = 0
    for folder, names, _ in os.walk(top):
        for name in [name for name in names if name.startswith(PREFIX)]:
            names.remove(name)
            count += _remove_if_dead(Path(folder, name))
    return count


def _remove_if_dead(group: Path) -> bool:
    """Delete the directory of a worker unless that lives, or is somebody else's."""
    with left_behind(group) as is_left:
        if is_left:
            _remove([*_children(group), group])
    return is_left and not group.exists()


_shared = Cgroups(find_hierarchies())
os.register_at_fork(after_in_child=_shared.forget)
atexit.register(_shared.close)


def shared() -> Cgroups:
    """The groups of this process."""
    return _shared
