"""A run of a job, its events and what it left behind."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Value

from umpteenth.core.ids import new_id

from .job import Job


class Run(models.Model):
    """One execution. `jobs.lifecycle` owns every change of `status`."""

    class Status(models.TextChoices):
        QUEUED = "queued", "Queued"
        PROVISIONING = "provisioning", "Provisioning"
        RUNNING = "running", "Running"
        SUCCEEDED = "succeeded", "Succeeded"
        FAILED = "failed", "Failed"
        TIMED_OUT = "timed_out", "Timed out"
        CANCELLED = "cancelled", "Cancelled"
        SKIPPED = "skipped", "Skipped"

    LIVE = (Status.PROVISIONING, Status.RUNNING)
    UNFINISHED = (Status.QUEUED, *LIVE)

    class Trigger(models.TextChoices):
        MANUAL = "manual", "Run now"
        COMMAND = "command", "Command line"
        SCHEDULE = "schedule", "Schedule"
        RETRY = "retry", "Retry"

    class Trust(models.TextChoices):
        """Requirements, section 0: from what started the run."""

        CREATOR = "creator", "Creator"
        AGENT = "agent", "Agent"
        PUBLIC = "public", "Public"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="runs")
    number = models.PositiveIntegerField()
    status = models.CharField(max_length=15, choices=Status, default=Status.QUEUED)
    trigger = models.CharField(max_length=10, choices=Trigger)
    trust = models.CharField(max_length=10, choices=Trust)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor_name = models.CharField(max_length=150, blank=True)
    retry_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    disable_mcp = models.BooleanField(default=False)
    input = models.JSONField(null=True)
    scheduled_for = models.DateTimeField(null=True)

    # Written by the claim; every later write of the worker checks it.
    claim_token = models.CharField(max_length=40, blank=True)
    worker = models.CharField(max_length=200, blank=True)
    heartbeat_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    last_seq = models.PositiveIntegerField(default=0)
    blob_bytes = models.PositiveBigIntegerField(default=0)

    error = models.TextField(blank=True)
    summary = models.TextField(blank=True)
    outputs = models.JSONField(default=dict)
    # Calls that may have changed something (`jobs.effects`).
    side_effects = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    queued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="run_number_per_job"),
            # Two schedulers, or one that was restarted, make one run of an occurrence.
            models.UniqueConstraint(fields=["job", "scheduled_for"], name="one_run_an_occurrence"),
        ]
        indexes = [
            # The runs page, newest first, over all jobs and by status.
            models.Index(fields=["-queued_at", "-id"], name="run_newest"),
            models.Index(fields=["status", "-queued_at"], name="run_by_status"),
            # A job's runs page and its strip of ten.
            models.Index(fields=["job", "-number"], name="run_of_job"),
            # The sweep and the worker's search for queued work.
            models.Index(
                fields=["status", "heartbeat_at"],
                name="run_unfinished",
                condition=models.Q(status__in=["queued", "provisioning", "running"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job} #{self.number}"

    @property
    def is_finished(self) -> bool:
        return self.status not in self.UNFINISHED


class RunEvent(models.Model):
    """One line of the timeline (design, section 5). `payload` is masked and at most 16 KiB."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    span = models.CharField(max_length=40, blank=True)
    parent_span = models.CharField(max_length=40, blank=True)
    ms = models.FloatField(null=True)
    payload = models.JSONField(default=dict)

    class Meta:
        ordering = ["seq"]
        constraints = [models.UniqueConstraint(fields=["run", "seq"], name="event_seq_per_run")]
        indexes = [
            # The figures, steps and calls of a run whose other events are a long output.
            models.Index(fields=["run", "kind", "seq"], name="event_kind_in_run")
        ]


class Blob(models.Model):
    """A body too large for its event, stored whole in the default storage."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="blobs")
    path = models.CharField(max_length=200)
    size = models.PositiveBigIntegerField()


class Artifact(models.Model):
    """A file that a run left in /ump/outputs, or that a tool's result held: then with its span."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="artifacts")
    name = models.CharField(max_length=500)
    span = models.CharField(max_length=40, blank=True)
    media_type = models.CharField(max_length=100)
    size = models.PositiveBigIntegerField()
    path = models.CharField(max_length=200)

    class Meta:
        ordering = ["name"]
        constraints = [
            # A script may name a file as the ones of results are named.
            models.UniqueConstraint(fields=["run", "span", "name"], name="artifact_name_per_run")
        ]


class Worker(models.Model):
    """A worker process as it last reported itself; pages warn when none does."""

    name = models.CharField(primary_key=True, max_length=200)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    slots = models.PositiveIntegerField()
    # Why this worker cannot start sandboxes; empty where it can.
    sandbox_problem = models.TextField(blank=True)
    # The adapter it uses, and one sentence for each limit that it cannot enforce.
    sandbox_adapter = models.CharField(max_length=20, blank=True, db_default="")
    sandbox_gaps = models.JSONField(default=list, db_default=Value([], models.JSONField()))
    # Workers of one data directory are of one machine, whatever it is called.
    machine = models.CharField(max_length=64, blank=True, db_default="")
    # What the default environment has there: [[name, version]], empty where it is missing.
    programs = models.JSONField(default=list, db_default=Value([], models.JSONField()))


class Lease(models.Model):
    """Which beat does the sweep; several beats take turns harmlessly."""

    name = models.CharField(primary_key=True, max_length=50)
    holder = models.CharField(max_length=200)
    expires_at = models.DateTimeField()
