"""Which hierarchies of control groups are mounted, and where in them this process is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpu")


@dataclass(frozen=True)
class Hierarchy:
    """A mounted tree of groups, the one that this process is in, and what it controls."""

    top: Path
    own: Path
    controllers: tuple[str, ...]
    unified: bool = False


def find_hierarchies(process: Path = Path("/proc/self")) -> list[Hierarchy]:
    """Those mounted here that may have what we want; empty on a machine without."""
    try:
        mounted = (process / "mountinfo").read_text("utf-8", "surrogateescape")
        groups = dict(_own_groups((process / "cgroup").read_text("utf-8", "surrogateescape")))
    except OSError:
        return []
    return [
        Hierarchy(top, _below(top, root, groups[names]), names, unified="" in names)
        for top, root, names in _mounts(mounted)
        if names in groups and ("" in names or not set(CONTROLLERS).isdisjoint(names))
    ]


def _own_groups(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """By controllers; v2 has the empty name."""
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        yield tuple(sorted(names.split(","))), path


def _mounts(text: str) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    """Where a hierarchy is mounted, which group that shows, and the controllers."""
    known: set[tuple[str, ...]] = set()
    for line in text.splitlines():
        place, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        root, top = (_unescape(word) for word in place.split(" ")[3:5])
        names: tuple[str, ...] = ("",)
        if kind == "cgroup":
            names = tuple(sorted(set(options.split(",")) - {"rw", "ro", "xattr"}))
        elif kind != "cgroup2":
            continue
        if names not in known:
            known.add(names)
            yield Path(top), root, names


def _unescape(word: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        word = word.replace(f"\\{code}", character)
    return word


def _below(top: Path, root: str, group: str) -> Path:
    """The group's directory; of one that the mount does not show, the top stands for it."""
    inside = group if root == "/" else group.removeprefix(root)
    if ".." in Path(group).parts or (root not in ("/", group) and inside == group):
        return top
    return top / inside.lstrip("/")
