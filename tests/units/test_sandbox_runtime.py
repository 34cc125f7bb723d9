"""The short private directory of a process, and what dead processes left of theirs."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest

from jobs.sandbox import runtime


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runtime, "_base", lambda: tmp_path)
    monkeypatch.setattr(runtime, "_current", None)
    return tmp_path


def test_it_is_for_its_owner_alone_and_stays_the_same(base: Path) -> None:
    path = runtime.runtime_dir()
    assert path.parent == base
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert runtime.runtime_dir() == path
    runtime._remove()
    assert not path.exists()


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(base: Path) -> None:
    dead, living = base / "ump-rt-dead", base / "ump-rt-living"
    for path in (dead, living):
        path.mkdir()
    lock = os.open(living, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    runtime.runtime_dir()
    os.close(lock)
    assert (dead.exists(), living.exists()) == (False, True)
    runtime._remove()


@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked"])
def test_one_that_another_process_took_for_a_leftover_is_made_again(
    base: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A worker and a command that start together."""
    module, name = (os, "open") if moment == "before it is opened" else (fcntl, "flock")
    real = getattr(module, name)
    removed: list[Path] = []

    def late(*arguments: object) -> object:
        if not removed and (mine := next(base.glob("ump-rt-*"), None)):
            shutil.rmtree(mine)
            removed.append(mine)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runtime, module.__name__, _Patched(module, name, late))
        path = runtime.runtime_dir()
    assert path.is_dir()
    assert path not in removed
    runtime._remove()


class _Patched:
    """A module as `runtime` sees it, with one function of ours."""

    def __init__(self, module: object, name: str, function: object) -> None:
        self._module = module
        setattr(self, name, function)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)
