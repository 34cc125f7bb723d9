"""What holds a sandbox within its limits where there is no control group, and what does not."""

from __future__ import annotations

import resource
from collections.abc import Collection

from jobs.sandbox.base import Limits

_REMEDY = "start the worker as root, or with Delegate=yes in its systemd unit"
# Root without them is root of a container.
_REMEDY_OF_ROOT = "let the worker's container write to a cgroup of its own"


def resource_limits(limits: Limits, controllers: Collection[str]) -> list[tuple[int, int, int]]:
    """What the launcher's child sets before it becomes the command: number, soft, hard.

    None of them is beyond what this process has itself. `controllers` are those of its group.
    """
    found = [
        _descriptors(),
        _within(resource.RLIMIT_CORE, 0, 0),
        # A single file then cannot outgrow the disk between two looks at it.
        _within(resource.RLIMIT_FSIZE, limits.disk, limits.disk),
    ]
    if "memory" not in controllers:
        # Not RLIMIT_AS: Node reserves many times what it uses.
        found.append(_within(resource.RLIMIT_DATA, limits.memory, limits.memory))
    return found


def _descriptors() -> tuple[int, int, int]:
    """Half of our own: descriptors in messages that nobody takes count for their user, up to the
    limit of whoever sends the next one. A plain user's scripts are the worker's own user, and at
    his limit no sandbox could be given its pipes any more.
    """
    soft, hard = 4096, 65_536
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if ours != resource.RLIM_INFINITY:
        soft, hard = min(soft, ours // 2), min(hard, ours // 2)
    return _within(resource.RLIMIT_NOFILE, soft, hard)


def process_limit(limits: Limits) -> int:
    """For `prlimit --nproc`, which cannot raise it above our own."""
    return _within(resource.RLIMIT_NPROC, limits.processes, limits.processes)[1]


def _within(which: int, soft: int, hard: int) -> tuple[int, int, int]:
    held = resource.getrlimit(which)[1]
    if held != resource.RLIM_INFINITY:
        soft, hard = min(soft, held), min(hard, held)
    return which, soft, hard


def gaps(controllers: Collection[str], *, privileged: bool) -> tuple[str, ...]:
    """A sentence with the remedy for each limit that is not enforced, or not fully."""
    found = []
    if "memory" not in controllers:
        found.append("Memory is limited for each process of a sandbox, not for all together")
    if "pids" not in controllers and privileged:
        found.append("Processes are limited for all sandboxes together, not for each")
    if "cpu" not in controllers:
        found.append("Processors are not limited")
    remedy = _REMEDY_OF_ROOT if privileged else _REMEDY
    return tuple(f"{gap}: {remedy} (docs/sandboxes.md)." for gap in found)


def too_much_disk(limits: Limits) -> str:
    return f"it used more than its {limits.disk // 1024**2:,} MiB of disk"


def too_large_home(limit: int) -> str:
    return (
        f"its home holds more than {limit // 1024**2:,} MiB (sandbox.server_home_limit); clear it "
        "on the server's page or with umpteenth mcp clear-home"
    )


def too_much_memory(limits: Limits) -> str:
    return f"it used more than its {limits.memory // 1024**2:,} MiB of memory"
