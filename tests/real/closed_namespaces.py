"""Asks the adapter what it can do, as root of a machine that gives nobody a user namespace.

    python3 closed_namespaces.py   prints {"problem": …, "root_problem": …}

The machine is a user namespace of its own, with the kernel's switch set. Only root can make it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

CLONE_NEWUSER = 0x10000000
SWITCH = "/proc/sys/user/max_user_namespaces"


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def enter() -> None:
    """Returns in a child that is in there; the parent maps its users and ends with it."""
    entered_r, entered_w = os.pipe()
    mapped_r, mapped_w = os.pipe()
    pid = os.fork()
    if pid:
        os.read(entered_r, 1)
        for name in ("uid_map", "gid_map"):
            write(f"/proc/{pid}/{name}", "0 0 65536")
        os.write(mapped_w, b"1")
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0:
        os._exit(1)
    os.write(entered_w, b"1")
    os.read(mapped_r, 1)
    write(SWITCH, "0")


if __name__ == "__main__":
    enter()
    from jobs.sandbox.bubblewrap import Bubblewrap
    from jobs.sandbox.places import Places

    adapter = Bubblewrap(Places(Path("/nonexistent")))
    print(json.dumps({"problem": adapter.problem(), "root_problem": adapter.root_problem()}))
