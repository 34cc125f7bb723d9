"""A child that ends with its parent, by whatever signal the parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


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


if __name__ == "__main__":
    # python -m umpteenth.core.process PARENT COMMAND…: any other program as such a child.
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
