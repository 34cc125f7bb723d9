"""Files in a directory, as Django keeps them, but whole or not at all."""

from __future__ import annotations

import os
import secrets

from django.core.files import File
from django.core.files.storage import FileSystemStorage
from django.utils.deconstruct import deconstructible


@deconstructible
class DirectoryStorage(FileSystemStorage):
    """Django writes a file under its own name at once, and a full disk leaves half of it there."""

    def _save(self, name: str, content: File[bytes]) -> str:
        unfinished = f"{name}.{secrets.token_hex(8)}.part"
        try:
            super()._save(unfinished, content)  # type: ignore[misc]  # not in the stubs
            os.rename(self.path(unfinished), self.path(name))
        except BaseException:
            self.delete(unfinished)
            raise
        return name

    def url(self, name: str | None) -> str:
        """Files go out by our own pages only, which make them harmless (design, section 3)."""
        raise NotImplementedError("files of runs have no address")
