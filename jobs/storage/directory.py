"""Files in a directory, as Django keeps them, but whole or not at all."""

from __future__ import annotations

import contextlib
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
        save = super()._save  # type: ignore[misc]  # not in the stubs
        try:
            try:
                save(unfinished, content)
            except FileNotFoundError:  # whoever deleted the last file took the directory with it
                save(unfinished, content)
            os.rename(self.path(unfinished), self.path(name))
        except BaseException:
            self.delete(unfinished)
            raise
        return name

    def delete(self, name: str) -> None:
        """A run's directory goes with its last file."""
        super().delete(name)
        parent = os.path.dirname(self.path(name))
        if parent != self.location:
            with contextlib.suppress(OSError):  # there are others in it, or it is gone
                os.rmdir(parent)

    def url(self, name: str | None) -> str:
        """Files go out by our own pages only, which make them harmless (design, section 3)."""
        raise NotImplementedError("files of runs have no address")
