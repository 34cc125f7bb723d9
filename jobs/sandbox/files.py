"""Files of ours that sandboxes see or fill: the `ump` program and its like."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from jobs.sandbox.places import system_python
from jobs.sandbox.runtime import small_file

UMP_SOURCE = Path(__file__).parents[1] / "ump" / "ump.py"
CONNECT_SOURCE = Path(__file__).with_name("egress") / "connect.py"
NODE_PRELOAD_SOURCE = Path(__file__).with_name("egress") / "proxy.cjs"

REMOVE_TIMEOUT = 300.0  # seconds; what somebody fills all the while is never gone


def ump_program() -> Path:
    """The `ump` that sandboxes see: a copy whose first line names a Python that they have."""
    return small_file("ump", _ump_text, mode=0o755)


def _ump_text() -> str:
    _, _, rest = UMP_SOURCE.read_text(encoding="utf-8").partition("\n")
    return f"#!{system_python()} -ISE\n{rest}"


def connect_program() -> Path:
    """What joins ssh to the proxy of a guarded sandbox."""

    def text() -> str:
        return f"#!{system_python()} -ISE\n{CONNECT_SOURCE.read_text(encoding='utf-8')}"

    return small_file("proxy-connect", text, mode=0o755)


def node_preload() -> Path:
    """What Node loads first in a guarded sandbox; a copy, for the code may be out of sight."""
    return small_file("proxy.cjs", lambda: NODE_PRELOAD_SOURCE.read_text(encoding="utf-8"))


def remove_tree(path: Path) -> None:
    """Delete a directory that a hostile program has filled; missing is fine.

    Links are removed, not followed. A process of the sandbox that is left may keep some of it
    there: try again later.
    """
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
    if path.is_dir() and not path.is_symlink():
        # Deeper than Python's stack, or directories without permissions. Those are in root's way
        # nowhere, and where a process is left, it could have his chmod follow a link out.
        if os.geteuid() != 0:
            _run("chmod", "-R", "u+rwX", "--", str(path))
        _run("rm", "-rf", "--", str(path))


def _run(*command: str) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, check=False, capture_output=True, timeout=REMOVE_TIMEOUT)
