"""Files in the database, in parts: for installations whose machines share no directory."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.files import File
from django.core.files.storage import Storage
from django.db import transaction
from django.utils.deconstruct import deconstructible

from jobs.models import StoredFile, StoredPart
from jobs.storage.pieces import PIECE, stored_file
from umpteenth.core.connections import give_back


@deconstructible
class DatabaseStorage(Storage):
    """Every part but the last has `PIECE` bytes, so that a place in the file names its part."""

    def _open(self, name: str, mode: str = "rb") -> File[bytes]:
        if mode != "rb":
            raise ValueError("stored files are only read; save a new one instead")
        file_id, size = self._find(name)

        def fetch(place: int) -> bytes:
            index, offset = divmod(place, PIECE)
            part = StoredPart.objects.filter(file_id=file_id, index=index)
            content = part.values_list("content", flat=True).first()
            # Whoever downloads the file may take long for each piece.
            give_back()
            return b"" if content is None else bytes(content)[offset:]

        return stored_file(name, size, fetch)

    def _save(self, name: str, content: File[bytes]) -> str:
        # One transaction: a worker that is killed leaves nothing half done.
        with transaction.atomic():
            file = StoredFile.objects.create(name=name, size=0)
            size = 0
            for index, piece in enumerate(_pieces(content)):
                StoredPart.objects.create(file=file, index=index, content=piece)
                size += len(piece)
            StoredFile.objects.filter(pk=file.pk).update(size=size)
        return name

    def delete(self, name: str) -> None:
        StoredFile.objects.filter(name=name).delete()

    def exists(self, name: str) -> bool:
        return StoredFile.objects.filter(name=name).exists()

    def listdir(self, path: str) -> tuple[list[str], list[str]]:
        start = f"{path.rstrip('/')}/"
        names = StoredFile.objects.filter(name__startswith=start).values_list("name", flat=True)
        below = [name.removeprefix(start).partition("/") for name in names]
        folders = {first for first, slash, _ in below if slash}
        return sorted(folders), [first for first, slash, _ in below if not slash]

    def size(self, name: str) -> int:
        return self._find(name)[1]

    def _find(self, name: str) -> tuple[int, int]:
        found = StoredFile.objects.filter(name=name).values_list("pk", "size").first()
        if found is None:
            raise FileNotFoundError(f"{name} is not stored")
        return found


def _pieces(content: File[bytes]) -> Iterator[bytes]:
    """The content in parts of exactly `PIECE` bytes; the last may be shorter."""
    content.seek(0)
    held = bytearray()
    while chunk := content.read(PIECE):
        held += chunk
        while len(held) >= PIECE:
            yield bytes(held[:PIECE])
            del held[:PIECE]
    if held:
        yield bytes(held)
