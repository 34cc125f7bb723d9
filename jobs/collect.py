"""Keeps the files that a run left in /ump/outputs as artifacts."""

from __future__ import annotations

import logging
import mimetypes
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from uuid import UUID

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import transaction

from jobs.models import Artifact, Run
from jobs.storage.removal import delete_files
from jobs.timeline import LostClaim
from umpteenth.core.ids import new_id
from umpteenth.core.text import clean

if TYPE_CHECKING:
    from jobs.timeline import Recorder

logger = logging.getLogger(__name__)

MAX_TOTAL = 50 * 1024 * 1024  # bytes of all artifacts of a run
MAX_FILES = 500
MAX_NAME = 500  # characters of the path below /ump/outputs
MAX_DEPTH = 20
MAX_REFUSED = 10_000  # files after which nobody looks for more
MAX_LOOKED_AT = MAX_FILES + MAX_REFUSED  # in one directory
MAX_NAMED = 20  # files that are named on the timeline because they were not kept
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/javascript")


@dataclass(frozen=True)
class Found:
    """A regular file; `name` is its path below the directory."""

    name: str
    body: bytes


def collect(run_id: UUID, token: str, folder: Path, recorder: Recorder) -> int:
    """Store every file as an artifact and record it; how many there were.

    Links are not followed: the script chose their targets. What does not fit is named on the
    timeline. Raises `LostClaim`.
    """
    total = count = refused = 0
    taken: set[str] = set()
    for path, name in _files(folder):
        if refused == MAX_REFUSED:
            break
        fits = count < MAX_FILES and len(name) <= MAX_NAME and name.count("/") <= MAX_DEPTH
        body = _read(path, MAX_TOTAL - total) if fits else None
        if body is None:
            refused += 1
            if refused <= MAX_NAMED:
                recorder.record("error", {"message": _refusal(name)})
            continue
        media_type = _media_type(name)
        if media_type.startswith(_TEXT_TYPES):
            body = recorder.mask_bytes(body)
        name = _unused(recorder.mask(name), taken)
        _store(run_id, token, Found(name, body), media_type)
        recorder.record("artifact", {"name": name, "size": len(body)})
        total += len(body)
        count += 1
    if refused > MAX_NAMED:
        least = "At least " if refused == MAX_REFUSED else ""
        message = f"{least}{refused - MAX_NAMED:,} more files in /ump/outputs were not kept."
        recorder.record("error", {"message": message})
    return count


def _files(folder: Path, prefix: str = "", depth: int = 0) -> Iterator[tuple[Path, str]]:
    try:
        with os.scandir(folder) as found:
            # Of a million names most would only fill the worker's memory.
            entries = sorted(islice(found, MAX_LOOKED_AT), key=lambda entry: entry.name)
    except OSError:
        if prefix:
            yield folder, prefix  # named as something that was not kept
        return
    for entry in entries:
        name = prefix + entry.name.encode("utf-8", "replace").decode("utf-8", "replace")
        if entry.is_dir(follow_symlinks=False):
            # One level more than is kept, so that what lies deeper is missed aloud.
            if depth <= MAX_DEPTH:
                yield from _files(Path(entry.path), f"{name}/", depth + 1)
            else:
                yield Path(entry.path), f"{name}/"
        else:
            # Links, sockets and devices too: what is not kept is missed aloud.
            yield Path(entry.path), name


def _read(path: Path, limit: int) -> bytes | None:
    """The file's bytes; None where it is larger than the limit or no plain file any more."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        # Holes cost the script nothing and would cost the worker their reading.
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            return None
        body = file.read(limit + 1)
    return None if len(body) > limit else body


def _store(run_id: UUID, token: str, found: Found, media_type: str) -> None:
    artifact_id = new_id()
    path = default_storage.save(f"runs/{run_id}/{artifact_id}", ContentFile(found.body))
    try:
        with transaction.atomic():
            mine = Run.objects.filter(pk=run_id, claim_token=token, status__in=Run.LIVE)
            if not mine.exists():
                raise LostClaim
            Artifact.objects.create(
                id=artifact_id,
                run_id=run_id,
                name=found.name,
                media_type=media_type,
                size=len(found.body),
                path=path,
            )
    except BaseException:
        delete_files([path])
        raise


def _unused(name: str, taken: set[str]) -> str:
    """The name as it can be shown and sent; two that look the same then are numbered."""
    shown = clean(name).replace("\n", " ").strip()[:MAX_NAME]
    # Files may have names such as `. `, of which nothing is left that is one.
    parts = [part for part in shown.split("/") if part.strip() not in ("", ".", "..")]
    path = PurePosixPath("/".join(parts) or "file")
    found, number = str(path), 1
    while found in taken:
        number += 1
        ending = f" ({number}){path.suffix[:20]}"
        found = str(path.with_suffix(""))[: MAX_NAME - len(ending)] + ending
    taken.add(found)
    return found


def _media_type(name: str) -> str:
    guessed, encoding = mimetypes.guess_type(name)
    return (guessed if guessed and not encoding else None) or "application/octet-stream"


def _refusal(name: str) -> str:
    limit = MAX_TOTAL // (1024 * 1024)
    return (
        f"The file {name[:200]!r} in /ump/outputs was not kept: a run keeps {MAX_FILES} files "
        f"and {limit} MiB together, with names of {MAX_NAME} characters, {MAX_DEPTH} directories "
        "deep; links and other special files are left out."
    )
