"""A child that ends with its parent, by whatever signal the parent dies."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
DESCRIPTORS = 65_536
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of malloc.h
LARGE = 1024 * 1024  # bytes that have pages of their own
ARENAS = 2


def end_with_parent(parent: int | None) -> None:
    """Have the kernel kill this process when `parent` (a pid, None: nobody) ends.

    The kernel sends the signal when the *thread* that started this process ends, so start
    children from the main thread.
    """
    if parent is None:
        return
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # It may have died before the line above.
    if os.getppid() != parent:
        sys.exit(1)


def take_descriptors() -> None:
    """Use as many descriptors as the system grants; 1024 is what programs usually begin with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_memory_back() -> None:
    """Return to the system what large messages took, as soon as they are gone.

    By itself glibc keeps them, once it has seen some, in a heap for each of many threads: after
    results of 15 MiB a worker held 1 GiB for good. Other C libraries have no such call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_ARENA_MAX, ARENAS)


if __name__ == "__main__":
    # python -m umpteenth.core.process PARENT COMMAND…: any other program as such a child.
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
