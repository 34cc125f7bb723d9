"""What the writable directories of a sandbox hold, and when that is too much."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.sandbox import disk
from jobs.sandbox.disk import keep_within, used_bytes

MIB = 1024**2


def fill(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_directories_count_together(tmp_path: Path) -> None:
    fill(tmp_path / "a" / "deep" / "file", MIB)
    fill(tmp_path / "b" / "file", 2 * MIB)
    assert 3 * MIB <= used_bytes([tmp_path / "a", tmp_path / "b"]) < 3 * MIB + 64 * 1024


def test_what_is_reserved_and_not_written_does_not_count(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1024 * MIB)
    assert used_bytes([tmp_path]) < MIB


def test_links_are_not_followed_and_one_file_counts_once(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere" / "large", 4 * MIB)
    inside = tmp_path / "inside"
    fill(inside / "file", MIB)
    os.link(inside / "file", inside / "again")
    (inside / "link").symlink_to(tmp_path / "elsewhere")
    assert MIB <= used_bytes([inside]) < 2 * MIB


def test_empty_files_take_room_too(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).touch()
    assert used_bytes([tmp_path]) >= 300 * disk.SMALLEST


def test_names_that_look_like_options_and_lines_are_names(tmp_path: Path) -> None:
    fill(tmp_path / "-s\n9\tx", MIB)
    fill(tmp_path / "\udcff", MIB)
    assert 2 * MIB <= used_bytes([tmp_path]) < 3 * MIB


def test_a_tree_deeper_than_any_path_counts(tmp_path: Path) -> None:
    script = "for n in $(seq 60); do mkdir -p $0 && cd $0 || exit 1; done; head -c 2M /dev/zero >f"
    deep = "/".join(["d" * 200] * 3)
    subprocess.run(["bash", "-c", script, deep], cwd=tmp_path, check=True)
    assert used_bytes([tmp_path]) >= 2 * MIB


def test_a_directory_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    assert used_bytes([tmp_path / "gone"]) == 0


def test_what_cannot_be_counted_in_time_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree so large is what the limit is for."""
    monkeypatch.setattr(disk, "DU_TIMEOUT", 0.0)
    assert used_bytes([tmp_path]) > 2**62


def test_a_file_that_was_deleted_counts_while_it_is_open(tmp_path: Path) -> None:
    """To whoever has the directory at the same place; this process is one of them."""
    with (tmp_path / "open").open("wb") as file, (tmp_path / "named").open("wb") as named:
        file.write(b"x" * MIB)
        named.write(b"x" * MIB)
        file.flush()
        os.unlink(file.name)
        with os.fdopen(os.dup(file.fileno()), "wb"):
            found = disk.deleted_bytes([tmp_path], [str(tmp_path)])
        assert disk.deleted_bytes([tmp_path], ["/elsewhere"]) == 0
    # Others of this machine hold some, too, and see all of it as nobody in a sandbox does.
    assert MIB <= found - disk.deleted_bytes([tmp_path], [str(tmp_path)]) < 2 * MIB
    assert disk.deleted_bytes([tmp_path / "gone"], [str(tmp_path)]) == 0


class TestKeepWithin:
    @pytest.fixture
    def pauses(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """No waiting; how long it would have been."""
        found: list[float] = []
        sleep = asyncio.sleep

        async def no_sleep(seconds: float) -> None:
            found.append(seconds)
            await sleep(0)

        monkeypatch.setattr(asyncio, "sleep", no_sleep)
        return found

    def answers(self, monkeypatch: pytest.MonkeyPatch, *used: int) -> None:
        left = list(used)
        monkeypatch.setattr(disk, "used_bytes", lambda directories: left.pop(0))

    async def test_it_says_once_that_there_is_too_much(
        self, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
    ) -> None:
        self.answers(monkeypatch, 5, 10, 11)
        said: list[str] = []
        await keep_within(10, [Path("/x")], lambda: said.append("too much"), inside=["/x"])
        assert said == ["too much"]
        assert pauses == [disk.LOOK_INTERVAL] * 3

    async def test_a_tree_that_takes_long_to_count_is_looked_at_less_often(
        self, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
    ) -> None:
        self.answers(monkeypatch, 5, 11)
        clock = iter([0.0, 3.0, 20.0])
        now: Callable[[], float] = lambda: next(clock)  # noqa: E731
        monkeypatch.setattr(disk, "_clock", now)
        await keep_within(10, [Path("/x")], lambda: None, inside=["/x"])
        assert pauses == [disk.LOOK_INTERVAL, 3.0 * disk.PAUSE_FACTOR]
