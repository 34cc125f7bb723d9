"""Starts stdio servers as bare processes in groups of their own: a sandbox without walls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence


class BareProcess:
    """A started server. `kill` ends its whole process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.pid = process.pid
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.stderr = process.stderr

    verdict = ""

    async def wait(self) -> int:
        return await self.process.wait()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self.process.wait()
        self.stdin.close()
        # Seen here, or old Pythons report a broken pipe that nobody asked about.
        with contextlib.suppress(OSError):
            await self.stdin.wait_closed()
        for _ in range(200):  # death takes a moment, and nothing tells of a grandchild's
            if not _group_lives(self.pid):
                break
            await asyncio.sleep(0.01)


class BareSpawner:
    """A spawner that remembers what it started."""

    def __init__(self) -> None:
        self.started: list[BareProcess] = []
        self.news = asyncio.Event()

    async def __call__(self, argv: Sequence[str], env: Mapping[str, str]) -> BareProcess:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **env},
            start_new_session=True,
        )
        bare = BareProcess(process)
        self.started.append(bare)
        self.news.set()
        return bare

    def alive(self) -> list[int]:
        """Process groups that still hold a living process."""
        return [process.pid for process in self.started if _group_lives(process.pid)]


def _group_lives(group: int) -> bool:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{entry}/stat", encoding="latin-1") as stat:
                fields = stat.read().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                return True
    return False
