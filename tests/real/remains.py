"""What is left of a site's sandboxes: processes, namespaces, mounts, sockets, directories.

Other tests run sandboxes at the same time, so that everything is told apart by what only this
site's has: the processes below its workers, their namespaces, and the path of its directory in the
mounts of a sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from jobs.sandbox.cgroups import PREFIX
from tests.real.conftest import Site

CGROUPS = Path("/sys/fs/cgroup")
KINDS = ("pid", "net", "ipc")


def processes() -> Iterator[int]:
    """All of the machine but zombies, which hold nothing and wait for process 1."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "stat").read_text("latin-1").rpartition(")")[2].split()[0] != "Z":
                    yield int(entry.name)


def descendants(pid: int) -> list[int]:
    """The process and all that came from it."""
    children: dict[int, list[int]] = {}
    for process in processes():
        with suppress(OSError, ValueError):
            stat = Path(f"/proc/{process}/stat").read_text("latin-1").rpartition(")")[2]
            children.setdefault(int(stat.split()[1]), []).append(process)
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def namespaces(pid: int) -> dict[str, int]:
    """A descriptor for each of those that are not the test's own."""
    found = {}
    for kind in KINDS:
        with suppress(OSError):
            descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            name = f"{kind}:[{os.fstat(descriptor).st_ino}]"
            if name == os.readlink(f"/proc/self/ns/{kind}"):
                os.close(descriptor)
            else:
                found[name] = descriptor
    return found


@dataclass
class Remains:
    """Watches one site: `look` while it works, then ask what is left.

    Descriptors keep the namespaces that were seen, whose numbers would soon be those of others.
    """

    site: Site
    seen: dict[str, int] = field(default_factory=dict)
    mounted: set[str] = field(default_factory=set)
    # The directories of the worker, below which each sandbox has one.
    cgroups: set[Path] = field(default_factory=set)

    def look(self, worker: int) -> None:
        """Remember what the worker's sandboxes are in at this moment."""
        self.mounted |= self.mounts(worker)
        for pid in descendants(worker):
            held = namespaces(pid)
            for name, descriptor in held.items():
                if self.seen.setdefault(name, descriptor) != descriptor:
                    os.close(descriptor)
            for group in cgroups_of(pid):
                self.cgroups |= {path for path in group.parents if path.name.startswith(PREFIX)}

    def processes(self) -> list[str]:
        """Processes in a namespace that was seen, or with a mount of the site's directory, which
        every process of the machine would have if it had stayed outside of a sandbox."""
        folder = str(self.site.data_dir.parent)
        left = []
        for pid in processes():
            with suppress(OSError):
                mounts = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "replace")
                if folder in mounts or self._knows(pid):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    left.append(f"{pid}: {line.decode(errors='replace')[:200]}")
        return left

    def _knows(self, pid: int) -> bool:
        return any(os.readlink(f"/proc/{pid}/ns/{kind}") in self.seen for kind in KINDS)

    def forget(self) -> None:
        for descriptor in self.seen.values():
            os.close(descriptor)
        self.seen.clear()

    def mounts(self, worker: int) -> set[str]:
        """What the worker and those below it have mounted, and the test has not."""
        own = mounts_of(os.getpid())
        theirs = set().union(*map(mounts_of, descendants(worker)))
        return theirs - own - mounts_of(os.getpid())  # others mount and unmount meanwhile

    def groups(self) -> list[str]:
        """The directories of workers that were seen."""
        return sorted(str(path) for path in self.cgroups if path.exists())

    def groups_of_sandboxes(self) -> list[str]:
        return sorted(
            str(path) for group in self.cgroups for path in group.glob("*/") if path.is_dir()
        )

    def sockets(self) -> list[str]:
        found = (self.site.data_dir.parent / "s").rglob("*.sock")
        return [str(path) for path in found]

    def private_directories(self) -> list[str]:
        return os.listdir(self.site.data_dir.parent / "s")

    def run_directories(self) -> list[str]:
        runs = self.site.data_dir / "runs"
        return os.listdir(runs) if runs.exists() else []


def mounts_of(pid: int) -> set[str]:
    """Places and kinds of all that is mounted for a process."""
    found = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "replace").splitlines():
            before, _, after = line.partition(" - ")
            found.add(f"{before.split()[4]} {after.split()[0]}")
    return found


def cgroups_of(pid: int) -> set[Path]:
    """The directories of the control groups that a process is in."""
    found = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            name = controllers.removeprefix("name=") or "unified"
            for base in (CGROUPS / name, CGROUPS):
                if path != "/" and (base / path[1:]).is_dir():
                    found.add(base / path[1:])
    return found
