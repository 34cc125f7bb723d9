"""Which of the programs that scripts expect a sandbox on this machine has."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from jobs.sandbox.places import find_uv

# What a sandbox sees of the host's own search path.
_SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_EXPECTED = ("bash", "python3", "node", "npm", "npx", "git", "curl", "jq", "rg")
# What people call the programs of the default environment; npx and uvx come with their like.
NAMES = {
    "python3": "Python",
    "node": "Node",
    "npm": "npm",
    "uv": "uv",
    "git": "git",
    "curl": "curl",
    "jq": "jq",
    "rg": "ripgrep",
}
_TIME = 10.0  # seconds that a program may take to name its version


@dataclass(frozen=True)
class Program:
    """A program by the name it is called by; `path` on the host, empty where it is missing."""

    name: str
    path: str


def find_programs() -> list[Program]:
    """The programs, in a fixed order; nothing is started."""
    found = [Program(name, shutil.which(name, path=_SEARCH_PATH) or "") for name in _EXPECTED]
    uv = find_uv()
    for name in ("uv", "uvx"):
        path = uv.with_name(name) if uv is not None else None
        found.append(Program(name, str(path) if path is not None and path.exists() else ""))
    return found


def default_environment() -> list[tuple[str, str]]:
    """What the default environment has here: names and versions, the version empty where it is
    missing. Starts each program once, which takes up to a second: keep what it says."""
    paths = {program.name: program.path for program in find_programs()}
    with ThreadPoolExecutor(len(NAMES)) as pool:
        versions = pool.map(lambda name: _version([paths[name], "--version"]), NAMES)
    return list(zip(NAMES.values(), versions, strict=True))


def _version(argv: Sequence[str]) -> str:
    """The first number of what the program says; `?` where it is there and says none."""
    if not argv[0]:
        return ""
    try:
        said = subprocess.run(
            argv,
            capture_output=True,
            check=False,
            timeout=_TIME,
            cwd="/",
            stdin=subprocess.DEVNULL,
            env={"PATH": _SEARCH_PATH, "HOME": "/nonexistent"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return "?"
    number = re.search(r"\d+(?:\.\d+)+", said.stdout.decode("utf-8", "replace")[:1000])
    return number.group() if number else "?"
