"""How much the writable directories of a sandbox hold, looked at while it runs.

`du` does the counting: what a script leaves may be nested deeper than Python can follow, may
change under the eyes, and holds links, which `du` does not follow. What was deleted and is still
held it does not see; that is looked for in the sandbox's processes (`deleted`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic as _clock

from jobs.sandbox.deleted import SMALLEST, deleted_files

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0  # seconds
HOME_INTERVAL = 5.0  # seconds; of a home, which is full already or grows slowly
# A tree that takes long to look at is left alone for this many times as long.
PAUSE_FACTOR = 2
DU_TIMEOUT = 60.0
MAX_FAILURES = 5  # looks in a row that came to nothing
# With less free room on the disk nobody may hold what cannot be counted.
FLOOR = 1024**3

NO_DU = "du cannot count what lies on the disk; install the package coreutils (GNU's)."
UNSEEN = "what it keeps on the disk could not be looked at"
NO_ROOM = (
    "the disk of this machine is nearly full, and it holds deleted files whose size cannot be known"
)


async def keep_within(
    limit: int,
    directories: Sequence[Path],
    end: Callable[[str], None],
    *,
    too_much: str,
    inside: Sequence[str],
    every: float = LOOK_INTERVAL,
    at_once: bool = False,
) -> None:
    """Look until cancelled; calls `end` once and ends when they hold more than `limit`.

    `inside` are the places of the directories in the sandbox, one by one. `at_once`: what is there
    before may be too much. `end` is told `too_much`, or why nobody can know.
    """
    pause = 0.0 if at_once else every
    failures = 0
    while True:
        await asyncio.sleep(pause)
        started = _clock()
        try:
            broken = await asyncio.to_thread(_broken, limit, directories, inside, too_much)
            failures = 0
        except Exception:  # out of processes, threads or descriptors; a limit must not end so
            failures += 1
            if failures == 1:
                logger.warning("the disk of a sandbox could not be looked at", exc_info=True)
            broken = UNSEEN if failures >= MAX_FAILURES else ""
        if broken:
            end(broken)
            return
        pause = max(every, PAUSE_FACTOR * (_clock() - started))


def _broken(limit: int, directories: Sequence[Path], inside: Sequence[str], too_much: str) -> str:
    """The sentence for what is wrong, if anything is."""
    deleted = deleted_files(directories, inside)
    if used_bytes(directories) + deleted.size > limit:
        return too_much
    return NO_ROOM if deleted.hidden and _free_bytes(directories) < FLOOR else ""


def _free_bytes(directories: Sequence[Path]) -> int:
    found = [os.statvfs(path) for path in directories]
    return min(place.f_bavail * place.f_frsize for place in found)


def used_bytes(directories: Sequence[Path]) -> int:
    """What they hold together, at least `SMALLEST` for each file; endless if there are too many to
    count. Blocks."""
    try:
        blocks = _du("--block-size=1", directories)
        files = _du("--inodes", directories)
    except subprocess.TimeoutExpired:
        return sys.maxsize
    return max(blocks, files * SMALLEST)


def problem() -> str:
    """Why no disk can be looked at here; without that every sandbox would be ended soon."""
    try:
        _du("--inodes", [Path(os.devnull)])
    except (OSError, ValueError, subprocess.SubprocessError):
        return NO_DU
    return ""


def _du(unit: str, directories: Sequence[Path]) -> int:
    paths = [str(path) for path in directories]
    command = ["du", "--summarize", "--total", "--one-file-system", unit, "--", *paths]
    done = _run(command)
    if done.returncode != 0 and os.geteuid() != 0:
        # A directory that its owner may not read hides what is in it from a worker who is him.
        # Nothing else is touched: a script that works there may have taken rights away on purpose.
        closed = ["-xdev", "-type", "d", "!", "-perm", "-u=rx"]
        _run(["find", *paths, *closed, "-execdir", "chmod", "u+rx", "--", "{}", ";"])
        done = _run(command)
    lines = done.stdout.decode(errors="replace").splitlines()
    if not lines:
        raise OSError(f"du said nothing and ended with {done.returncode}")
    return int(lines[-1].split("\t")[0])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=DU_TIMEOUT,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
    )
