"""Removes what a worker that was killed left on disk: the directories of its runs.

Its processes ended with it (`jobs.sandbox.launcher`); files have nobody who does that.
"""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import UUID

from jobs.models import Run
from jobs.sandbox.files import remove_tree
from umpteenth.core.config import get_options

logger = logging.getLogger(__name__)


def remove_leftovers() -> int:
    """Delete directories of runs that no worker executes any more; how many there were.

    A run is claimed before its directory is made, so that one in use belongs to a live run.
    """
    base = get_options().data_dir / "runs"
    found = {run_id: path for path in _directories(base) if (run_id := _run_id(path.name))}
    live = set(
        Run.objects.filter(pk__in=found, status__in=Run.UNFINISHED).values_list("pk", flat=True)
    )
    left = [path for run_id, path in found.items() if run_id not in live]
    for path in left:
        remove_tree(path)
    if left:
        logger.info("removed the directories of %d runs of workers that were killed", len(left))
    return len(left)


def _directories(base: Path) -> list[Path]:
    return [path for path in base.iterdir() if path.is_dir()] if base.is_dir() else []


def _run_id(name: str) -> UUID | None:
    """The run that a directory belongs to; what we did not make is nobody's to delete."""
    try:
        return UUID(name)
    except ValueError:
        return None
