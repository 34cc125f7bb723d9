"""What jobs use in place of the default environment, and how it was made on each machine."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Lower

from umpteenth.core.ids import new_id


class Environment(models.Model):
    """Programs and packages under a name. `digest` stands for the content of the definition."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    definition = models.TextField()  # YAML, as somebody wrote it
    digest = models.CharField(max_length=64)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = [Lower("name")]

    def __str__(self) -> str:
        return self.name


class EnvironmentBuild(models.Model):
    """The last building of one content on one machine; `jobs.environments.builds` writes it.

    Two names with the same content share it. Whether the environment is there says the
    machine's disk and not this row, which says what happened and who is at it.
    """

    class Status(models.TextChoices):
        QUEUED = "queued", "Queued"
        BUILDING = "building", "Building"
        READY = "ready", "Ready"
        FAILED = "failed", "Failed"
        REMOVED = "removed", "Removed"

    UNFINISHED = (Status.QUEUED, Status.BUILDING)

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    digest = models.CharField(max_length=64)
    machine = models.CharField(max_length=64)
    host = models.CharField(max_length=200, blank=True)  # what people call the machine
    definition = models.TextField()
    status = models.CharField(max_length=10, choices=Status, default=Status.QUEUED)
    # Written by the claim; every later write of the builder names it.
    claim_token = models.CharField(max_length=40, blank=True)
    heartbeat_at = models.DateTimeField(null=True)
    step = models.CharField(max_length=200, blank=True)
    log = models.TextField(blank=True)
    error = models.TextField(blank=True)
    size = models.PositiveBigIntegerField(default=0)
    queued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["host", "machine"]
        constraints = [
            # Two runs that want it at the same moment start one build.
            models.UniqueConstraint(fields=["digest", "machine"], name="one_build_a_machine")
        ]
