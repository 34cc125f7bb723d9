"""How much the writable directories of a sandbox hold, looked at while it runs.

`du` does the counting: what a script leaves may be nested deeper than Python can follow, may
change under the eyes, and holds links, which `du` does not follow. It does not see what was
deleted and is still open, so that the descriptors of the sandbox's processes are looked at too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic as _clock

LOOK_INTERVAL = 1.0  # seconds
HOME_INTERVAL = 5.0  # seconds; of a home, which is full already or grows slowly
# A tree that takes long to look at is left alone for this many times as long.
PAUSE_FACTOR = 2
DU_TIMEOUT = 60.0
# An empty file takes room too: as many files as pieces of this size fit in the limit.
SMALLEST = 4096
MAX_DESCRIPTORS = 100_000  # that one look goes through


async def keep_within(
    limit: int,
    directories: Sequence[Path],
    on_excess: Callable[[], None],
    *,
    inside: Sequence[str],
    every: float = LOOK_INTERVAL,
    at_once: bool = False,
) -> None:
    """Look until cancelled; calls `on_excess` once and ends when they hold more than `limit`.

    `inside` are the places of the directories in the sandbox, one by one. `at_once`: what is there
    before may be too much.
    """
    pause = 0.0 if at_once else every
    while True:
        await asyncio.sleep(pause)
        started = _clock()
        used = await asyncio.to_thread(_used, directories, inside)
        if used > limit:
            on_excess()
            return
        pause = max(every, PAUSE_FACTOR * (_clock() - started))


def _used(directories: Sequence[Path], inside: Sequence[str]) -> int:
    return used_bytes(directories) + deleted_bytes(directories, inside)


def used_bytes(directories: Sequence[Path]) -> int:
    """What they hold together, at least `SMALLEST` for each file; endless if there are too many to
    count. Blocks."""
    try:
        blocks = _du("--block-size=1", directories)
        files = _du("--inodes", directories)
    except subprocess.TimeoutExpired:
        return sys.maxsize
    return max(blocks, files * SMALLEST)


def deleted_bytes(directories: Sequence[Path], inside: Sequence[str]) -> int:
    """What processes that have the directories at these places hold of files without a name."""
    try:
        shown = dict(zip(inside, [os.stat(path) for path in directories], strict=True))
    except FileNotFoundError:
        return 0
    devices = {place.st_dev for place in shown.values()}
    processes = [process for process in os.listdir("/proc") if process.isdigit()]
    descriptors = (
        path for process in processes if _has(process, shown) for path in _descriptors(process)
    )
    held: dict[int, int] = {}
    for path in islice(descriptors, MAX_DESCRIPTORS):
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if found.st_nlink == 0 and found.st_dev in devices:
                held[found.st_ino] = max(found.st_blocks * 512, SMALLEST)
    return sum(held.values())


def _has(process: str, shown: Mapping[str, os.stat_result]) -> bool:
    """Whether it sees them, from a root that nothing in a sandbox can change."""
    try:
        return all(
            os.path.samestat(os.stat(f"/proc/{process}/root{inside}"), place)
            for inside, place in shown.items()
        )
    except OSError:
        return False


def _descriptors(process: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as entries:
        for entry in entries:
            yield entry.path


def _du(unit: str, directories: Sequence[Path]) -> int:
    paths = [str(path) for path in directories]
    command = ["du", "--summarize", "--total", "--one-file-system", unit, "--", *paths]
    done = _run(command)
    if done.returncode != 0 and os.geteuid() != 0:
        # A directory that its owner may not read hides what is in it from a worker who is him.
        _run(["chmod", "-R", "u+rwX", "--", *paths])
        done = _run(command)
    total = done.stdout.decode(errors="replace").splitlines()[-1]
    return int(total.split("\t")[0])


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
