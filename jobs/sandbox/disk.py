"""How much the writable directories of a sandbox hold, looked at while it runs.

`du` does the counting: what a script leaves may be nested deeper than Python can follow, may
change under the eyes, and holds links, which `du` does not follow.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic as _clock

LOOK_INTERVAL = 1.0  # seconds
HOME_INTERVAL = 5.0  # seconds; of a home, which is full already or grows slowly
# The share of time that looking takes at most: a large tree is looked at less often.
PAUSE_FACTOR = 4
DU_TIMEOUT = 60.0
# An empty file takes room too: as many files as pieces of this size fit in the limit.
SMALLEST = 4096


async def keep_within(
    limit: int,
    directories: Sequence[Path],
    on_excess: Callable[[], None],
    *,
    every: float = LOOK_INTERVAL,
    at_once: bool = False,
) -> None:
    """Look until cancelled; calls `on_excess` once and ends when they hold more than `limit`.

    `at_once`: what is there before may be too much.
    """
    pause = 0.0 if at_once else every
    while True:
        await asyncio.sleep(pause)
        started = _clock()
        used = await asyncio.to_thread(used_bytes, directories)
        if used > limit:
            on_excess()
            return
        pause = max(every, PAUSE_FACTOR * (_clock() - started))


def used_bytes(directories: Sequence[Path]) -> int:
    """What they hold together, at least `SMALLEST` for each file; endless if there are too many to
    count. Blocks."""
    try:
        blocks = _du("--block-size=1", directories)
        files = _du("--inodes", directories)
    except subprocess.TimeoutExpired:
        return sys.maxsize
    return max(blocks, files * SMALLEST)


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
