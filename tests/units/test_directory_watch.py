"""Waiting for a file that is moved into a directory: quick with inotify, right without it."""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from umpteenth.core import directory_watch
from umpteenth.core.directory_watch import DirectoryWatch

LONG = 30.0  # seconds; no wait that ends by an arrival comes near it


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[DirectoryWatch]:
    made = DirectoryWatch(tmp_path, poll_every=LONG)
    yield made
    made.close()


def arrive(folder: Path) -> None:
    hidden = folder / ".message"
    hidden.touch()
    hidden.rename(folder / "message")


def seconds_of(watch: DirectoryWatch, timeout: float) -> float:
    started = time.monotonic()
    watch.wait(timeout)
    return time.monotonic() - started


def test_a_file_that_arrives_ends_the_wait(watch: DirectoryWatch, tmp_path: Path) -> None:
    later = threading.Thread(target=arrive, args=[tmp_path])
    later.start()
    assert seconds_of(watch, LONG) < LONG / 2
    later.join()


def test_what_arrived_before_the_wait_ends_it_too(watch: DirectoryWatch, tmp_path: Path) -> None:
    arrive(tmp_path)
    assert seconds_of(watch, LONG) < LONG / 2


def test_a_worker_with_very_many_open_files_can_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors above 1,023, which `select` refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    real = directory_watch._watch

    def high(folder: Path) -> int:
        low = real(folder)
        assert low is not None
        moved = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
        os.close(low)
        return moved

    try:
        monkeypatch.setattr(directory_watch, "_watch", high)
        watch = DirectoryWatch(tmp_path, poll_every=LONG)
        arrive(tmp_path)
        assert seconds_of(watch, LONG) < LONG / 2
        watch.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_arrival_ends_one_wait_only(watch: DirectoryWatch, tmp_path: Path) -> None:
    arrive(tmp_path)
    watch.wait(LONG)
    assert seconds_of(watch, 0.02) >= 0.02


def test_a_file_that_is_still_being_written_does_not_count(
    watch: DirectoryWatch, tmp_path: Path
) -> None:
    (tmp_path / ".message").touch()
    assert seconds_of(watch, 0.02) >= 0.02


def test_without_inotify_a_wait_is_as_long_as_a_poll(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path / "missing", poll_every=0.01)
    assert 0.01 <= seconds_of(watch, LONG) < LONG / 2
    watch.close()


def test_other_systems_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    arrive(tmp_path)
    watch = DirectoryWatch(tmp_path, poll_every=0.01)
    assert 0.01 <= seconds_of(watch, LONG) < LONG / 2


def test_closing_gives_the_descriptor_back_and_may_be_done_twice(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    watch = DirectoryWatch(tmp_path, poll_every=LONG)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    watch.close()
    watch.close()
    assert len(os.listdir("/proc/self/fd")) == before
