"""Removes what nobody needs any more on a worker's disk: directories of runs whose worker was
killed, what is left of their sandboxes, and the homes of servers that were deleted or cleared.

A killed worker's processes ended with it (`jobs.sandbox.launcher`), but for an engine's; files
have nobody who does that.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.files.storage import default_storage
from django.db.models import QuerySet

from jobs.models import Artifact, Blob, Run
from jobs.sandbox import base as sandbox
from jobs.sandbox.files import remove_tree
from jobs.sandbox.homes import Homes
from jobs.storage.removal import delete_files
from servers.models import Server
from umpteenth.core.config import get_options

logger = logging.getLogger(__name__)


def remove_leftovers() -> int:
    """Delete such directories; how many there were.

    A run is claimed before its directory is made, so that one in use belongs to a live run.
    """
    options = get_options()
    homes = Homes.from_options(options)
    sandbox.tidy()
    unfinished = Run.objects.filter(status__in=Run.UNFINISHED)
    runs = _remove_others(options.data_dir / "runs", unfinished)
    for run_id in runs:
        _remove_unnamed_files(run_id)
    servers = _remove_others(homes.folder, Server.objects.all())
    return len(runs) + len(servers) + homes.remove_cleared()


def _remove_unnamed_files(run_id: UUID) -> None:
    """Delete what a killed worker had stored of a run and not yet named in the database."""
    folder = f"runs/{run_id}"
    try:
        _, names = default_storage.listdir(folder)
    except FileNotFoundError:
        return
    except Exception:  # storages raise errors of their own kinds
        logger.exception("the files of run %s cannot be listed", run_id)
        return
    kept = set(Blob.objects.filter(run=run_id).values_list("path", flat=True))
    kept |= set(Artifact.objects.filter(run=run_id).values_list("path", flat=True))
    delete_files({f"{folder}/{name}" for name in names} - kept)


def _remove_others(base: Path, rows: QuerySet[Any]) -> list[UUID]:
    """Delete the directories named by ids that are none of these rows'; the ids."""
    found = {row_id: path for path in _directories(base) if (row_id := _id(path.name))}
    kept = set(rows.filter(pk__in=found).values_list("pk", flat=True))
    left = [row_id for row_id in found if row_id not in kept]
    for row_id in left:
        remove_tree(found[row_id])
    if left:
        logger.info("removed %d directories from %s that nobody needs any more", len(left), base)
    return left


def _directories(base: Path) -> list[Path]:
    return [path for path in base.iterdir() if path.is_dir()] if base.is_dir() else []


def _id(name: str) -> UUID | None:
    """What a directory belongs to; what we did not make is nobody's to delete."""
    try:
        return UUID(name)
    except ValueError:
        return None
