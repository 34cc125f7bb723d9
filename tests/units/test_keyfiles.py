"""Key files: for their owner alone, whole or not there, and never made anew by mistake."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from umpteenth.core.config import ConfigError, Options, SecurityOptions
from umpteenth.core.keyfiles import (
    SECRET_KEY_FILE,
    create_private_file,
    make_data_dir,
    read_private_file,
    read_secret_key,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_data_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    make_data_dir(tmp_path / "a" / "data")
    assert mode(tmp_path / "a" / "data") == 0o700


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/data cannot be made: Not a directory\."):
        make_data_dir(tmp_path / "file" / "data")


def test_the_secret_key_is_made_once_and_kept(tmp_path: Path) -> None:
    options = Options(data_dir=tmp_path / "data")
    first = read_secret_key(options)
    assert len(first) >= 50
    assert read_secret_key(options) == first
    assert mode(tmp_path / "data" / SECRET_KEY_FILE) == 0o600


def test_a_secret_key_from_the_options_leaves_no_file(tmp_path: Path) -> None:
    options = Options(data_dir=tmp_path, security=SecurityOptions(secret_key=SecretStr("given")))
    assert read_secret_key(options) == "given"
    assert list(tmp_path.iterdir()) == []


def test_of_many_who_make_a_key_at_once_one_does_and_all_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "key"

    def make(number: int) -> tuple[bool, str]:
        return create_private_file(path, f"key {number}\n"), read_private_file(path)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(make, range(16)))
    assert [made for made, _ in results].count(True) == 1
    assert len({text for _, text in results}) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_a_key_file_that_others_can_read_stops_the_start_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "key"
    create_private_file(path, "abc")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others; run: chmod 600"):
        read_private_file(path)


@pytest.mark.parametrize(
    ("content", "sentence"), [(b"", "is empty"), (b"  \n", "is empty"), (b"\xff", "not text")]
)
def test_a_damaged_key_file_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        read_private_file(path)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone cannot be read: No such file or directory"):
        read_private_file(tmp_path / "gone")


@pytest.mark.parametrize("sign", ["keyring", "umpteenth.sqlite3"])
def test_a_key_that_is_lost_beside_data_is_made_anew_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sign: str
) -> None:
    """Once: whoever starts next finds it."""
    (tmp_path / sign).touch()
    options = Options(data_dir=tmp_path)
    assert read_secret_key(options) == read_secret_key(options)
    [record] = caplog.records
    assert record.getMessage() == (
        f"{tmp_path / SECRET_KEY_FILE} was missing and has been made anew: everybody is signed out."
    )


def test_the_first_key_is_made_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read_secret_key(Options(data_dir=tmp_path))
    assert caplog.records == []
