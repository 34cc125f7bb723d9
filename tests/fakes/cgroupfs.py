"""A directory that behaves like the cgroup file system of version 2, as far as we use it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from jobs.sandbox import cgroups

_FILES = {
    "memory": {"memory.max": "max", "memory.swap.max": "max", "memory.events": "oom_kill 0"},
    "pids": {"pids.max": "max", "pids.events": "max 0"},
    "cpu": {"cpu.max": "max 100000"},
}


class CgroupFs:
    """`top` is mounted; what stands in its `cgroup.controllers` can be handed on."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch, controllers: str) -> None:
        self.top = top
        self.closed: set[Path] = set()  # groups that we may not change
        self._mkdir = os.mkdir
        self._mkdir(top)
        self._fill(top, controllers)
        monkeypatch.setattr(os, "mkdir", self.mkdir)
        monkeypatch.setattr(cgroups, "_write", self.write)
        monkeypatch.setattr(cgroups, "_remove_empty", self.remove_empty)
        monkeypatch.setattr(cgroups, "_try_to_enter", lambda group: None)

    def _fill(self, group: Path, controllers: str) -> None:
        files = {"cgroup.procs": "", "cgroup.controllers": controllers}
        files["cgroup.subtree_control"] = ""
        if group != self.top:
            for name in controllers.split():
                files |= _FILES.get(name, {})
        for name, text in files.items():
            (group / name).write_text(text)

    def mkdir(self, path: str | Path, *arguments: int, **options: int) -> None:
        group = Path(path)
        inside = group.is_relative_to(self.top)
        if inside and group.parent in self.closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(group))
        self._mkdir(group, *arguments, **options)
        if inside:
            self._fill(group, (group.parent / "cgroup.subtree_control").read_text())

    def write(self, file: Path, text: str) -> None:
        if file.parent in self.closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        if file.name == "cgroup.subtree_control":
            if file.parent != self.top or self.has_processes(self.top):
                self._refuse_processes(file.parent)
            handed = {*file.read_text().split(), *(word.strip("+") for word in text.split())}
            text = " ".join(sorted(handed))
        elif file.name == "cgroup.procs":
            for other in self.top.rglob("cgroup.procs"):
                left = [word for word in other.read_text().split() if word != text]
                other.write_text("\n".join(left))
            text = f"{file.read_text()}\n{text}".strip()
        elif not file.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))
        file.write_text(text)

    def _refuse_processes(self, group: Path) -> None:
        if self.has_processes(group):
            raise OSError(errno.EBUSY, "Device or resource busy")

    def has_processes(self, group: Path) -> bool:
        return bool((group / "cgroup.procs").read_text().split())

    def remove_empty(self, group: Path) -> bool:
        if not group.exists():
            return True
        if self.has_processes(group) or any(path.is_dir() for path in group.iterdir()):
            return False
        shutil.rmtree(group)
        return True
