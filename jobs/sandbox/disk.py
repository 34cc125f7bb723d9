"""How much the writable directories of a sandbox hold, looked at while it runs.

`du` does the counting: what a script leaves may be nested deeper than Python can follow, may
change under the eyes, and holds links, which `du` does not follow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

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
        started = time.monotonic()
        used = await asyncio.to_thread(used_bytes, directories)
        if used > limit:
            on_excess()
            return
        pause = max(every, PAUSE_FACTOR * (time.monotonic() - started))


def used_bytes(directories: Sequence[Path]) -> int:
    """What they hold together; at least `SMALLEST` for each file. Blocks."""
    blocks = _du("--block-size=1", directories)
    files = _du("--inodes", directories)
    return max(blocks, files * SMALLEST)


def _du(unit: str, directories: Sequence[Path]) -> int:
    command = ["du", "--summarize", "--total", "--one-file-system", unit, "--"]
    command += [str(path) for path in directories]
    done = _run(command)
    if done.returncode != 0 and os.geteuid() != 0:
        # A directory that its owner may not read hides what is in it from a worker who is him.
        _run(["chmod", "-R", "u+rwX", "--", *(str(path) for path in directories)])
        done = _run(command)
    last = done.stdout.decode(errors="replace").splitlines()[-1:]
    return int(last[0].split("\t")[0]) if last else 0


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DU_TIMEOUT,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("the room that a sandbox uses could not be found out: %s", error)
        return subprocess.CompletedProcess(command, 0, b"", b"")
