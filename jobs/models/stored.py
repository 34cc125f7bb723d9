"""Files in the database, for installations whose workers share no directory."""

from __future__ import annotations

from django.db import models


class StoredFile(models.Model):
    """A file of `jobs.storage`; `name` is its path within the storage."""

    name = models.CharField(max_length=200, unique=True)
    size = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)


class StoredPart(models.Model):
    """A piece of a file; all but the last are of one size."""

    file = models.ForeignKey(StoredFile, on_delete=models.CASCADE, related_name="parts")
    index = models.PositiveIntegerField()
    content = models.BinaryField()

    class Meta:
        ordering = ["index"]
        constraints = [models.UniqueConstraint(fields=["file", "index"], name="part_once_a_file")]
