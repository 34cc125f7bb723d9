"""What the writable directories of a sandbox hold, and when that is too much."""

from __future__ import annotations

import asyncio
import mmap
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from jobs.sandbox import deleted, disk
from jobs.sandbox.deleted import SMALLEST, Deleted, deleted_files
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
    assert used_bytes([tmp_path]) >= 300 * SMALLEST


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


def test_a_script_keeps_the_rights_that_it_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when du ends with 1 because something vanished, while a plain user's worker looks."""
    fill(tmp_path / "kept", 1)
    fill(tmp_path / "own" / "file", 1)
    kept = [tmp_path / "kept", tmp_path / "own"]
    kept[0].chmod(0o040)
    kept[1].chmod(0o500)
    (tmp_path / "closed" / "deep").mkdir(parents=True)
    (tmp_path / "closed" / "deep").chmod(0)
    (tmp_path / "closed").chmod(0o300)
    before = [(path.stat().st_mode, path.stat().st_ctime_ns) for path in kept]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    used_bytes([tmp_path, tmp_path / "gone"])
    assert [(path.stat().st_mode, path.stat().st_ctime_ns) for path in kept] == before
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "closed" / "deep").stat().st_mode & 0o777 == 0o500


def test_files_that_were_deleted_count_once_while_they_are_held(tmp_path: Path) -> None:
    """To whoever has the directory at the same place; this process is one of them."""
    look = partial(deleted_files, [tmp_path], [str(tmp_path)])
    with (tmp_path / "open").open("w+b") as file, (tmp_path / "named").open("wb") as named:
        file.write(b"x" * MIB)
        named.write(b"x" * MIB)
        file.flush()
        os.unlink(file.name)
        with os.fdopen(os.dup(file.fileno()), "wb"), mmap.mmap(file.fileno(), MIB):
            found = look().size
        assert deleted_files([tmp_path], ["/elsewhere"]).size == 0
    # Others of this machine hold some, too, and see all of it as nobody in a sandbox does.
    assert MIB <= found - look().size < 2 * MIB
    assert deleted_files([tmp_path / "gone"], [str(tmp_path)]) == Deleted()


def test_descriptors_without_end_are_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted, "TIMEOUT", -1.0)
    assert deleted_files([tmp_path], [str(tmp_path)]).size > 2**62


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

    def answers(self, monkeypatch: pytest.MonkeyPatch, *used: int | Exception) -> None:
        left = list(used)

        def answer(directories: object) -> int:
            found = left.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(disk, "used_bytes", answer)

    async def keep(self, limit: int = 10, directory: Path = Path("/x")) -> list[str]:
        said: list[str] = []
        await keep_within(limit, [directory], said.append, too_much="too much", inside=["/x"])
        return said

    async def test_it_says_once_that_there_is_too_much(
        self, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
    ) -> None:
        self.answers(monkeypatch, 5, 10, 11)
        assert await self.keep() == ["too much"]
        assert pauses == [disk.LOOK_INTERVAL] * 3

    async def test_a_tree_that_takes_long_to_count_is_looked_at_less_often(
        self, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
    ) -> None:
        self.answers(monkeypatch, 5, 11)
        clock = iter([0.0, 3.0, 20.0])
        now: Callable[[], float] = lambda: next(clock)  # noqa: E731
        monkeypatch.setattr(disk, "_clock", now)
        await self.keep()
        assert pauses == [disk.LOOK_INTERVAL, 3.0 * disk.PAUSE_FACTOR]

    async def test_a_look_that_fails_is_not_the_last(
        self, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
    ) -> None:
        broken = [OSError(11, "no process"), ValueError(), RuntimeError("no thread"), OSError()]
        self.answers(monkeypatch, *broken, 5, *broken, 11)
        assert await self.keep() == ["too much"]

    async def test_who_cannot_be_looked_at_is_ended(
        self, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
    ) -> None:
        self.answers(monkeypatch, *[OSError()] * disk.MAX_FAILURES)
        assert await self.keep() == [disk.UNSEEN]

    async def test_a_du_that_says_nothing_is_no_empty_tree(
        self, monkeypatch: pytest.MonkeyPatch, pauses: list[float], tmp_path: Path
    ) -> None:
        done = subprocess.CompletedProcess([], -9, b"", b"")
        monkeypatch.setattr(disk, "_run", lambda command: done)
        assert await self.keep(directory=tmp_path) == [disk.UNSEEN]

    @pytest.mark.parametrize(
        ("free", "said"), [(disk.FLOOR - 1, disk.NO_ROOM), (disk.FLOOR, "too much")]
    )
    async def test_what_cannot_be_counted_ends_it_where_room_is_short(
        self, monkeypatch: pytest.MonkeyPatch, pauses: list[float], free: int, said: str
    ) -> None:
        self.answers(monkeypatch, 5, 11)
        monkeypatch.setattr(disk, "deleted_files", lambda *_: Deleted(0, hidden=True))
        monkeypatch.setattr(disk, "_free_bytes", lambda directories: free)
        assert await self.keep() == [said]
