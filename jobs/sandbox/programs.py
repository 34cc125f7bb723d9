"""Which of the programs that scripts expect a sandbox on this machine has."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from jobs.sandbox.places import find_uv

# What a sandbox sees of the host's own search path.
_SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_EXPECTED = ("bash", "python3", "node", "npm", "npx", "git", "curl", "jq", "rg")


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
