"""The short private directory of a process, and what dead processes left of theirs."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest

from jobs.sandbox import locked, runtime
from jobs.sandbox.locked import left_behind


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
        patch.setattr(locked, module.__name__, _Patched(module, name, late))
        path = runtime.runtime_dir()
    assert path.is_dir()
    assert path not in removed
    runtime._remove()


def test_what_is_held_is_gone_a_link_or_anothers_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    held, lock = locked.make_locked(lambda: _made(tmp_path / "held"))
    for path in (held, tmp_path / "link", tmp_path / "gone"):
        with left_behind(path) as is_left:
            assert not is_left
    os.close(lock)
    with left_behind(held) as is_left, left_behind(held) as is_left_to_another:
        assert (is_left, is_left_to_another) == (True, False)
    monkeypatch.setattr(os, "geteuid", lambda: held.stat().st_uid + 1)
    with left_behind(held) as is_left:
        assert not is_left


def _made(path: Path) -> Path:
    path.mkdir()
    return path


class _Patched:
    """A module as `locked` sees it, with one function of ours."""

    def __init__(self, module: object, name: str, function: object) -> None:
        self._module = module
        setattr(self, name, function)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)
