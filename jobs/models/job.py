"""A job and what is attached to it."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Lower

from secrets_vault.models import Secret
from servers.models import Server
from umpteenth.core.ids import new_id

from .environment import Environment

DEFAULT_TIMEOUT = 900  # seconds
MIN_TIMEOUT = 1
MAX_TIMEOUT = 86_400
# What each sandbox of a run may use, the script's and those of stdio servers: processors, and
# MiB of memory and of disk.
DEFAULT_CPUS, MIN_CPUS, MAX_CPUS = 1.0, 0.1, 64.0
DEFAULT_MEMORY, MIN_MEMORY, MAX_MEMORY = 1024, 64, 1024 * 1024
DEFAULT_DISK, MIN_DISK, MAX_DISK = 2048, 16, 1024 * 1024


class Job(models.Model):
    """A script with its servers, secrets, limits and schedule."""

    class Network(models.TextChoices):
        NONE = "none", "No network"
        INTERNET = "internet", "Internet access"
        DOMAINS = "domains", "Allowed domains only"
        UNRESTRICTED = "unrestricted", "Unrestricted network"

    class Overlap(models.TextChoices):
        SKIP = "skip", "Skip"
        QUEUE = "queue", "Queue"
        PARALLEL = "parallel", "Parallel"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    description = models.CharField(max_length=500, blank=True)
    script = models.TextField()
    network = models.CharField(max_length=20, choices=Network, default=Network.INTERNET)
    # Exact names and `*.suffix`, as jobs.network writes them; only with DOMAINS.
    domains = models.JSONField(default=list, blank=True)
    # Only with INTERNET and DOMAINS; the installation's own rules come first.
    allow_private_network = models.BooleanField(default=False)
    timeout = models.PositiveIntegerField(
        default=DEFAULT_TIMEOUT,
        validators=[MinValueValidator(MIN_TIMEOUT), MaxValueValidator(MAX_TIMEOUT)],
    )
    # Defaults of columns are for processes that were started before an upgrade.
    cpus = models.FloatField(default=DEFAULT_CPUS, db_default=DEFAULT_CPUS)
    memory = models.PositiveIntegerField(default=DEFAULT_MEMORY, db_default=DEFAULT_MEMORY)
    disk = models.PositiveIntegerField(default=DEFAULT_DISK, db_default=DEFAULT_DISK)
    # None: what the machine has. One that jobs use is not deleted.
    environment = models.ForeignKey(
        Environment, null=True, on_delete=models.PROTECT, related_name="jobs"
    )
    # Root inside the sandbox's own namespaces (P26).
    run_as_root = models.BooleanField(default=False, db_default=False)
    overlap = models.CharField(max_length=10, choices=Overlap, default=Overlap.SKIP)
    enabled = models.BooleanField(default=True)

    # Empty: no schedule. `next_run_at` changes in the transaction that makes the run.
    cron = models.CharField(max_length=100, blank=True)
    timezone = models.CharField(max_length=64, default="UTC")
    next_run_at = models.DateTimeField(null=True)

    servers = models.ManyToManyField(Server, through="Attachment", related_name="jobs")
    # Under Skip and Queue at most one live run: claimed by conditional update.
    active_run = models.ForeignKey(
        "jobs.Run", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    last_number = models.PositiveIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = [Lower("name")]
        indexes = [
            # The beat's sweep asks for due schedules every second.
            models.Index(
                fields=["next_run_at"],
                name="job_due",
                condition=models.Q(next_run_at__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.name


class Attachment(models.Model):
    """A server on a job. `allowed_tools` None: all tools, also ones added later (P64, P66)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attachments")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="attachments")
    allowed_tools = models.JSONField(null=True)

    # What a page says of the server's login: why runs cannot use it, or soon cannot.
    login_problem: str = ""
    # Whether runs go without the server because they are root's (P26).
    is_skipped_as_root: bool = False

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["job", "server"], name="server_once_a_job")]


class JobSecret(models.Model):
    """A secret as an environment variable of the job's script."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="secrets")
    variable = models.CharField(max_length=100)
    secret = models.ForeignKey(Secret, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["variable"]
        constraints = [models.UniqueConstraint(fields=["job", "variable"], name="variable_once")]


class StateEntry(models.Model):
    """One key of a job's memory between runs."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="state")
    key = models.CharField(max_length=200)
    value = models.JSONField(null=True)
    size = models.PositiveIntegerField(default=0)  # bytes of the value as JSON
    updated_at = models.DateTimeField(auto_now=True)
    run = models.ForeignKey("jobs.Run", null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["key"]
        constraints = [models.UniqueConstraint(fields=["job", "key"], name="state_key_once")]
