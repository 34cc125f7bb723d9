"""Whether files of runs can be kept on this installation, by trying it."""

from __future__ import annotations

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage

from umpteenth.core.ids import new_id
from umpteenth.core.text import clean, with_full_stop

CONTENT = b"Written by `umpteenth doctor`, to be deleted at once.\n"
MAX_REASON = 300  # characters of what a storage says


def problem() -> str:
    """Write a file, read it, delete it; a sentence where one of them fails."""
    step = "written"
    try:
        name = default_storage.save(f"runs/doctor-{new_id()}", ContentFile(CONTENT))
        step = "read or deleted"
        try:
            with default_storage.open(name, "rb") as file:
                found = file.read()
            step = "deleted"
        finally:
            default_storage.delete(name)
        left = default_storage.exists(name)
    except Exception as error:  # storages raise errors of their own kinds
        reason = clean(" ".join(str(error).split()), MAX_REASON) or type(error).__name__
        return with_full_stop(f"A file cannot be {step}: {reason}")
    if found != CONTENT:
        return "A file is not read as it was written."
    return "A file that was deleted is still there." if left else ""
