"""Files of runs in a directory, in the database and in S3 (issue 5, section 5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from botocore.exceptions import BotoCoreError, ClientError, ReadTimeoutError
from django.core.files.base import ContentFile, File
from django.core.files.storage import FileSystemStorage, Storage, storages

from jobs.models import StoredPart
from jobs.storage.s3 import BucketStorage
from tests.fakes.s3 import FakeS3, fake_s3, options_for
from tests.fakes.storages import LONG, PIECE, Broken, StorageBehaviour
from umpteenth.core.config import StorageOptions
from umpteenth.settings import _storage


def made(options: StorageOptions, data_dir: Path = Path("/nowhere")) -> Storage:
    """As Django makes it from the options."""
    storage: Storage = storages.create_storage(_storage(options, data_dir))
    return storage


class TestInADirectory(StorageBehaviour):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return made(StorageOptions(), tmp_path)

    def test_a_broken_save_leaves_no_half_file_beside(self, storage: FileSystemStorage) -> None:
        with pytest.raises(OSError, match="the disk is gone"):
            storage.save("runs/a/broken", File(Broken(LONG), name="broken"))
        assert storage.listdir("runs") == ([], [])

    def test_a_directory_goes_with_its_last_file_and_comes_back(
        self, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = (storage.save(f"runs/a/{n}", ContentFile(b"x")) for n in "12")
        storage.delete(first)
        assert storage.exists(second)
        storage.delete(second)
        assert list((tmp_path / "files/runs").iterdir()) == []
        real, gone = os.open, [FileNotFoundError(2, "deleted just now")]

        def late(*arguments: Any, **options: Any) -> int:
            if gone:
                raise gone.pop()
            return real(*arguments, **options)

        monkeypatch.setattr(os, "open", late)
        assert storage.size(storage.save("runs/a/3", ContentFile(b"xyz"))) == 3
        assert gone == []

    def test_it_is_the_directory_files_of_the_data_directory(self, tmp_path: Path) -> None:
        storage = made(StorageOptions(), tmp_path)
        assert isinstance(storage, FileSystemStorage)
        assert storage.path("runs/a") == str(tmp_path / "files/runs/a")


@pytest.mark.django_db
class TestInTheDatabase(StorageBehaviour):
    @pytest.fixture
    def storage(self) -> Storage:
        return made(StorageOptions(backend="database"))

    def test_parts_are_of_one_size_and_go_with_their_file(self, storage: Storage) -> None:
        name = storage.save("runs/a/long", ContentFile(LONG))
        sizes = [len(part.content) for part in StoredPart.objects.all()]
        assert sizes == [PIECE, PIECE, PIECE, len(LONG) - 3 * PIECE]
        storage.delete(name)
        assert not StoredPart.objects.exists()

    def test_only_the_part_that_is_asked_for_is_fetched(
        self, storage: Storage, django_assert_num_queries: object
    ) -> None:
        name = storage.save("runs/a/long", ContentFile(LONG))
        with django_assert_num_queries(2), storage.open(name, "rb") as file:  # type: ignore[operator]
            file.seek(2 * PIECE + 5)
            assert file.read(10) == LONG[2 * PIECE + 5 :][:10]

    def test_a_file_whose_parts_are_gone_is_no_shorter_file(self, storage: Storage) -> None:
        name = storage.save("runs/a/long", ContentFile(LONG))
        StoredPart.objects.filter(index=2).delete()
        with storage.open(name, "rb") as file, pytest.raises(OSError, match="shorter"):
            file.read()

    def test_files_are_not_written_in_place(self, storage: Storage) -> None:
        name = storage.save("runs/a/x", ContentFile(b"x"))
        with pytest.raises(ValueError, match="only read"):
            storage.open(name, "wb")


@pytest.fixture
def bucket() -> Iterator[FakeS3]:
    with fake_s3() as bucket:
        yield bucket


class TestInS3(StorageBehaviour):
    @pytest.fixture
    def storage(self, bucket: FakeS3) -> Storage:
        return made(options_for(bucket))

    def test_objects_lie_below_the_prefix(self, storage: Storage, bucket: FakeS3) -> None:
        name = storage.save("runs/a/x", ContentFile(b"x"))
        assert name == "runs/a/x"
        assert bucket.objects == {"production/runs/a/x": b"x"}

    def test_a_large_file_goes_and_comes_in_pieces(self, storage: Storage, bucket: FakeS3) -> None:
        body = LONG * 25  # above the 8 MiB from which boto3 uploads in parts
        name = storage.save("runs/a/large", ContentFile(body))
        assert sum(method == "PUT" for method, _, _ in bucket.requests) == 3
        del bucket.requests[:]
        with storage.open(name, "rb") as file:
            file.seek(PIECE + 3)
            assert file.read(10) == body[PIECE + 3 :][:10]
        assert [asked for _, _, asked in bucket.requests] == [
            "",
            f"bytes={PIECE + 3}-{2 * PIECE + 2}",
        ]

    def test_one_client_serves_all_threads(self, storage: Storage) -> None:
        assert isinstance(storage, BucketStorage)
        assert storage.connection is storage.connection

    def test_a_bucket_that_does_not_exist_is_an_error_and_no_missing_file(
        self, bucket: FakeS3
    ) -> None:
        storage = made(options_for(bucket, bucket="another"))
        with pytest.raises(ClientError, match=r"NoSuchBucket|404"):
            storage.save("runs/a/x", ContentFile(b"x"))

    def test_wrong_keys_are_refused_aloud(self, bucket: FakeS3) -> None:
        storage = made(options_for(bucket, access_key="stranger"))
        with pytest.raises(ClientError, match="403"):
            storage.exists("runs/a/x")

    def test_an_endpoint_that_is_down_is_an_error_soon(self, bucket: FakeS3) -> None:
        storage = made(options_for(bucket, endpoint="http://127.0.0.1:1"))
        with pytest.raises(BotoCoreError, match="Could not connect"):
            storage.exists("runs/a/x")

    @pytest.mark.parametrize("broken", ["get_object", "read"])
    def test_a_connection_that_breaks_while_it_is_read_is_an_error(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch, broken: str
    ) -> None:
        name = storage.save("runs/a/long", ContentFile(LONG))
        fault = ReadTimeoutError(endpoint_url="https://s3.example.org")
        body = Mock(read=Mock(side_effect=fault))
        answers = {"read": Mock(return_value={"Body": MagicMock(__enter__=lambda _: body)})}
        get_object = answers.get(broken, Mock(side_effect=fault))
        with storage.open(name, "rb") as file:
            file.read(10)
            assert isinstance(storage, BucketStorage)
            monkeypatch.setattr(storage.connection.meta.client, "get_object", get_object)
            with pytest.raises(OSError, match="cannot be read: Read timeout"):
                file.read()

    def test_a_file_that_vanishes_while_it_is_read_is_an_error(
        self, storage: Storage, bucket: FakeS3
    ) -> None:
        name = storage.save("runs/a/long", ContentFile(LONG))
        with storage.open(name, "rb") as file:
            file.read(10)
            bucket.objects.clear()
            with pytest.raises(OSError, match="cannot be read"):
                file.read()
