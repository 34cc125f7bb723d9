"""The homes of stdio servers: whose they are, how large, and how they are cleared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.sandbox import disk, files
from jobs.sandbox.homes import Homes
from umpteenth.core.config import load_options
from umpteenth.core.ids import new_id

MIB = 1024**2


def homes_in(folder: Path) -> Homes:
    return Homes(folder / "homes", 16 * MIB)


def test_they_lie_in_the_data_directory_and_have_a_limit(tmp_path: Path) -> None:
    homes = Homes.from_options(load_options({"UMPTEENTH_DATA_DIR": str(tmp_path)}))
    assert homes == Homes(tmp_path / "homes", 2048 * MIB)


def test_a_home_persists_and_is_its_servers_own(tmp_path: Path) -> None:
    homes, server_id = homes_in(tmp_path), new_id()
    home = homes.make(server_id)
    (home / "cache").touch()
    assert home.parent == tmp_path / "homes"
    assert homes.make(server_id) == home
    assert homes.make(new_id()) != home
    assert (home / "cache").exists()
    assert home.stat().st_mode & 0o777 == 0o700


def test_its_size_is_what_it_takes_on_the_disk(tmp_path: Path) -> None:
    homes, server_id = homes_in(tmp_path), new_id()
    assert homes.size(server_id) == 0
    home = homes.make(server_id)
    (home / "deep").mkdir()
    (home / "deep" / "file").write_bytes(b"x" * 3 * MIB)
    (home / "elsewhere").symlink_to("/usr")
    assert 3 * MIB <= homes.size(server_id) < 4 * MIB


def test_a_cleared_home_is_gone_with_everything_in_it(tmp_path: Path) -> None:
    homes, cleared, other = homes_in(tmp_path), new_id(), new_id()
    outside = tmp_path / "outside"
    outside.mkdir()
    home = homes.make(cleared)
    (home / "link").symlink_to(outside)
    (home / "locked").mkdir(mode=0o000)
    kept = homes.make(other)
    homes.clear(cleared)
    assert not home.exists()
    assert homes.remove_cleared() == 1
    assert list(homes.folder.iterdir()) == [kept]
    assert outside.is_dir()
    homes.clear(cleared)  # there is none any more
    assert homes.make(cleared) == home


async def test_one_that_is_full_before_its_server_starts_is_noticed_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * MIB)
    said: list[str] = []
    await disk.keep_within(
        MIB // 2, [tmp_path], said.append, too_much="full", inside=["/x"], every=3600, at_once=True
    )
    assert said == ["full"]


def test_root_changes_no_rights_of_what_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that goes on in its cleared home could put a link in the way of a chmod."""
    commands: list[str] = []

    def note(command: Sequence[str], **_: Any) -> None:
        commands.append(command[0])

    monkeypatch.setattr("jobs.sandbox.files.shutil.rmtree", lambda path: None)
    monkeypatch.setattr("jobs.sandbox.files.subprocess.run", note)
    for user in (0, 1000):
        monkeypatch.setattr("jobs.sandbox.files.os.geteuid", lambda user=user: user)
        files.remove_tree(tmp_path)
    assert commands == ["rm", "chmod", "rm"]
