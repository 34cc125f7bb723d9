"""What every storage of runs' files promises (design.md, section 3, Files)."""

from __future__ import annotations

import io

import pytest
from django.core.files.base import ContentFile, File
from django.core.files.storage import Storage

PIECE = 256 * 1024
# Longer than a part, not a multiple of one, and no two places alike.
LONG = b"".join(number.to_bytes(4, "big") for number in range(3 * PIECE // 4 + 10))


class StorageBehaviour:
    def test_what_is_saved_is_read_back(self, storage: Storage) -> None:
        for content in (b"", b"one", bytes(range(256)), b"x" * PIECE, LONG):
            name = storage.save("runs/a/file", ContentFile(content))
            assert storage.exists(name)
            assert storage.size(name) == len(content)
            with storage.open(name, "rb") as file:
                assert file.read() == content

    def test_a_file_is_read_from_any_place(self, storage: Storage) -> None:
        name = storage.save("runs/a/long", ContentFile(LONG))
        with storage.open(name, "rb") as file:
            for place in (0, 1, PIECE - 1, PIECE, PIECE + 7, len(LONG) - 3, len(LONG), 5):
                file.seek(place)
                assert file.read(10) == LONG[place : place + 10]
            file.seek(-4, io.SEEK_END)
            assert file.read() == LONG[-4:]

    def test_a_file_is_read_in_pieces(self, storage: Storage) -> None:
        name = storage.save("runs/a/long", ContentFile(LONG))
        with storage.open(name, "rb") as file:
            pieces = iter(lambda: file.read(64 * 1024), b"")
            assert b"".join(pieces) == LONG

    def test_a_file_that_comes_in_small_bites_is_kept_whole(self, storage: Storage) -> None:
        name = storage.save("runs/a/bites", File(_Bites(LONG), name="bites"))
        with storage.open(name, "rb") as file:
            assert file.read() == LONG

    def test_a_name_that_is_taken_stays_as_it_is(self, storage: Storage) -> None:
        first = storage.save("runs/a/same", ContentFile(b"first"))
        second = storage.save("runs/a/same", ContentFile(b"second"))
        assert first != second
        with storage.open(first, "rb") as file:
            assert file.read() == b"first"

    def test_a_deleted_file_is_gone_and_may_be_deleted_again(self, storage: Storage) -> None:
        name = storage.save("runs/a/gone", ContentFile(LONG))
        other = storage.save("runs/a/stays", ContentFile(b"other"))
        storage.delete(name)
        storage.delete(name)
        assert not storage.exists(name)
        assert storage.exists(other)

    def test_the_files_of_a_run_are_listed(self, storage: Storage) -> None:
        for name in ("listed/1", "listed/2", "listed/b/3", "listed too/4"):
            storage.save(f"runs/{name}", ContentFile(b"x"))
        folders, files = storage.listdir("runs/listed")
        assert (folders, sorted(files)) == (["b"], ["1", "2"])

    def test_what_is_not_stored_is_missed_like_a_file(self, storage: Storage) -> None:
        assert not storage.exists("runs/a/never")
        with pytest.raises(FileNotFoundError):
            storage.size("runs/a/never")
        with pytest.raises(FileNotFoundError):
            storage.open("runs/a/never", "rb").read()

    def test_a_file_that_breaks_while_it_is_read_leaves_nothing(self, storage: Storage) -> None:
        with pytest.raises(OSError, match="the disk is gone"):
            storage.save("runs/a/broken", File(Broken(LONG), name="broken"))
        assert not storage.exists("runs/a/broken")

    def test_it_has_no_addresses(self, storage: Storage) -> None:
        name = storage.save("runs/a/x", ContentFile(b"x"))
        with pytest.raises(NotImplementedError):
            storage.url(name)

    def test_a_path_that_leads_out_is_refused(self, storage: Storage) -> None:
        for name in ("../key", "runs/../../key", "/etc/passwd"):
            with pytest.raises(Exception, match=r"(?i)suspicious|path|outside|location"):
                storage.save(name, ContentFile(b"x"))


class _Bites(io.BytesIO):
    """Gives less than it is asked for, as sockets and pipes do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size, 1000) if size and size > 0 else 1000)


class Broken(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > PIECE:
            raise OSError("the disk is gone")
        return super().read(size)
