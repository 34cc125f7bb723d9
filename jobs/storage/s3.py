"""Files in a bucket of S3 or of something that speaks like it (django-storages, boto3).

Imported by Django when the first file is asked for: boto3 costs a third of a second. What it
calls is the operator's choice and passes no guard.
"""

from __future__ import annotations

import threading
from typing import Any

from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.core.files import File
from storages.backends.s3 import S3Storage
from storages.utils import clean_name

from jobs.storage.pieces import PIECE, stored_file

CONNECT_TIMEOUT = 5  # seconds
READ_TIMEOUT = 30  # seconds without a byte
ATTEMPTS = 3  # of each request


class BucketStorage(S3Storage):  # type: ignore[misc]  # no types
    """django-storages reads files whole into memory; here they come in pieces."""

    def __init__(self, *, addressing: str = "auto", **options: Any) -> None:
        self._making = threading.Lock()
        self._shared: Any = None
        super().__init__(
            # A name that is taken stays as it is.
            file_overwrite=False,
            client_config=Config(
                s3={"addressing_style": addressing},
                connect_timeout=CONNECT_TIMEOUT,
                read_timeout=READ_TIMEOUT,
                retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
                # The newer checksums are unknown to many that speak like S3.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
            # Files are written by threads already; more would only take memory.
            transfer_config=TransferConfig(use_threads=False),
            **options,
        )

    @property
    def connection(self) -> Any:
        """One for all threads: each costs a tenth of a second and megabytes."""
        with self._making:
            if self._shared is None:
                self._shared = self._create_session().resource(
                    "s3",
                    region_name=self.region_name,
                    endpoint_url=self.endpoint_url,
                    config=self.client_config,
                )
            return self._shared

    def _open(self, name: str, mode: str = "rb") -> File[bytes]:
        if mode != "rb":
            raise ValueError("stored files are only read; save a new one instead")
        size = self.size(name)
        client, key = self.connection.meta.client, self._normalize_name(clean_name(name))

        def fetch(place: int) -> bytes:
            wanted = f"bytes={place}-{min(place + PIECE, size) - 1}"
            try:
                answer = client.get_object(Bucket=self.bucket_name, Key=key, Range=wanted)
                with answer["Body"] as body:
                    piece: bytes = body.read()
            except (BotoCoreError, ClientError) as error:
                raise OSError(f"{name} cannot be read: {error}") from error
            return piece

        return stored_file(name, size, fetch)

    def url(self, *arguments: Any, **options: Any) -> str:
        """Files go out by our own pages only, which make them harmless (design, section 3)."""
        raise NotImplementedError("files in the bucket have no address")
