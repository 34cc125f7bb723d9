"""Deletes stored files whose rows are gone."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from django.core.files.storage import default_storage

logger = logging.getLogger(__name__)

MAX_FAILURES = 3  # to delete a file, one after the other; then nobody waits for more


def delete_files(paths: Iterable[str]) -> None:
    """Remove stored bodies; what cannot be removed is logged."""
    failures = 0
    for path in paths:
        if failures == MAX_FAILURES:
            logger.error("%s and what followed were not deleted: the storage is away", path)
            return
        try:
            default_storage.delete(path)
        except Exception:  # storages raise errors of their own kinds
            logger.exception("%s could not be deleted", path)
            failures += 1
        else:
            failures = 0
