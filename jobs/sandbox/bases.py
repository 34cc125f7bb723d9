"""What a directory of packages adds to a sandbox: where it stands, and the variables that make
programs and libraries in it found.

bwrap cannot lay one tree over another, so that nothing appears under /usr: what is found is found
by its search path. `jobs.environments.build` fills the directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

INSIDE = "/ump/env"
# Below it, one directory for each kind of package.
DEBIAN, PYTHON, NODE = "debian", "python", "node"
_PROGRAMS = (
    f"{PYTHON}/bin",
    f"{NODE}/node_modules/.bin",
    f"{DEBIAN}/usr/local/bin",
    f"{DEBIAN}/usr/bin",
    f"{DEBIAN}/bin",
    f"{DEBIAN}/usr/games",
    f"{DEBIAN}/usr/sbin",
    f"{DEBIAN}/sbin",
)


def variables(base: Path, search_path: str) -> Mapping[str, str]:
    """The variables of a sandbox with this directory; `search_path` is the one without it.

    What we put first stays first: `ump` is no package's to replace.
    """
    ours, _, system = search_path.partition(":")
    programs = [f"{INSIDE}/{name}" for name in _PROGRAMS if (base / name).is_dir()]
    found = {"PATH": ":".join((ours, *programs, system))}
    if (base / PYTHON).is_dir():
        found["VIRTUAL_ENV"] = f"{INSIDE}/{PYTHON}"
    if (base / NODE).is_dir():
        found["NODE_PATH"] = f"{INSIDE}/{NODE}/node_modules"
    if (base / DEBIAN).is_dir():
        found |= _of_debian(base)
    return found


def _of_debian(base: Path) -> Mapping[str, str]:
    libraries = ":".join(f"{INSIDE}/{DEBIAN}/{name}" for name in _libraries(base / DEBIAN))
    return {
        "LD_LIBRARY_PATH": libraries,
        "LIBRARY_PATH": libraries,  # where a compiler looks
        "CPATH": f"{INSIDE}/{DEBIAN}/usr/include",
        "XDG_DATA_DIRS": f"{INSIDE}/{DEBIAN}/usr/share:/usr/local/share:/usr/share",
    }


def _libraries(debian: Path) -> list[str]:
    """Where packages put libraries; with the directories of the machine's architecture."""
    found = []
    for name in ("usr/local/lib", "usr/lib", "lib"):
        # Inside a package a link may lead anywhere; only its place is used.
        if (debian / name).is_dir():
            found += sorted(str(p.relative_to(debian)) for p in (debian / name).glob("*-linux-*"))
            found.append(name)
    return [name for name in found if ":" not in name]
