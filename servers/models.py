"""MCP servers, the tools they listed, and the checks that were made of them."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Lower

from umpteenth.core.ids import new_id


class Server(models.Model):
    """A registered MCP server: how to reach it, and what its last checks found."""

    class Transport(models.TextChoices):
        HTTP = "http", "HTTP"
        STDIO = "stdio", "stdio"
        UNIX = "unix", "Unix socket"

    class State(models.TextChoices):
        UNTESTED = "untested", "Not tested"
        CONNECTED = "connected", "Connected"
        LOGIN_REQUIRED = "login_required", "Login required"
        FAILED = "failed", "Failed"

    # It cannot be used as it is.
    TROUBLED = (State.FAILED, State.LOGIN_REQUIRED)

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=64)
    description = models.CharField(max_length=500, blank=True)
    transport = models.CharField(max_length=10, choices=Transport)
    enabled = models.BooleanField(default=True)

    # HTTP: scheme, host and path. The query may hold keys and lives in `private`.
    # Unix socket: the address that is used over it (U12).
    url = models.CharField(max_length=2000, blank=True)
    socket_path = models.CharField(max_length=107, blank=True)  # what the kernel can hold
    command = models.CharField(max_length=500, blank=True)
    args = models.JSONField(default=list, blank=True)
    # Encrypted JSON {"query": str, "headers": [[name, value]], "env": [[name, value]]};
    # values may hold {{secret:NAME}} references.
    private = models.BinaryField()
    key_id = models.CharField(max_length=32, db_index=True)
    # Kept apart so that lists need no decryption.
    has_authorization = models.BooleanField(default=False)
    secret_names = models.JSONField(default=list, blank=True)
    # What differs from the defaults of `servers.options`.
    options = models.JSONField(default=dict, blank=True)
    # The secret that option `token_ref` names, kept apart so that lists can tell if it exists.
    token_name = models.CharField(max_length=100, blank=True)
    # Which tools runs may see, beyond their jobs' lists: `servers.policy.Policy.as_json()`.
    policy = models.JSONField(default=dict, blank=True)

    # Counts saved edits; a form that was opened on an older one is refused.
    version = models.PositiveIntegerField(default=1)
    # Counts the edits among them that change how it is reached; a test of an older one is stale.
    connection_version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )

    # What checks found out. `tested_at` is the last success, whose tools are kept.
    state = models.CharField(max_length=20, choices=State, default=State.UNTESTED)
    tested_at = models.DateTimeField(null=True)
    tool_count = models.PositiveIntegerField(default=0)
    checked_at = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True)
    protocol_version = models.CharField(max_length=20, blank=True)
    server_name = models.CharField(max_length=200, blank=True)
    server_version = models.CharField(max_length=100, blank=True)
    instructions = models.TextField(blank=True)
    # What worked last, tried first next time: {"transport": …, "mode": …}.
    remembered = models.JSONField(default=dict, blank=True)
    # How transport and revision were found, in a sentence.
    found_how = models.CharField(max_length=300, blank=True)
    # Checks that failed in a row, and when health looks again (`servers.health`); None: never.
    failures = models.PositiveIntegerField(default=0)
    next_check_at = models.DateTimeField(null=True)

    class Meta:
        ordering = [Lower("name")]
        constraints = [
            # Instructions are matched to names ignoring case (P17), so "GitHub" and "github"
            # cannot both exist.
            models.UniqueConstraint(Lower("name"), name="server_name_ignoring_case")
        ]
        indexes = [
            # The sweep asks every second which servers are to be checked.
            models.Index(
                fields=["next_check_at"],
                name="server_check_due",
                condition=models.Q(next_check_at__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def endpoint(self) -> str:
        """What people recognise it by: the address without its query, the socket and the
        address over it, or the command line."""
        if self.transport == self.Transport.HTTP:
            return self.url
        if self.transport == self.Transport.UNIX:
            return f"{self.socket_path} {self.url}"
        return " ".join([self.command, *map(str, self.args)])


class Tool(models.Model):
    """A tool as the last successful check listed it."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="tools")
    position = models.PositiveIntegerField()
    name = models.TextField()
    title = models.TextField(blank=True)
    description = models.TextField(blank=True)
    input_schema = models.JSONField(default=dict)
    output_schema = models.JSONField(null=True)
    # The server's own hints; None where it gave none.
    read_only = models.BooleanField(null=True)
    destructive = models.BooleanField(null=True)
    open_world = models.BooleanField(null=True)
    content_hash = models.CharField(max_length=64)

    # What a page says about it: `New`, `Changed` or nothing; and `Policy.restriction`.
    mark: str = ""
    restriction: str = ""

    class Meta:
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["server", "name"], name="tool_per_server")]

    def __str__(self) -> str:
        return self.name

    @property
    def shows_read_only(self) -> bool:
        """Whether the `Read-only` badge is shown: only if the server says so (P33, P73)."""
        return self.read_only is True

    @property
    def shows_destructive(self) -> bool:
        """Whether the `Destructive` badge is shown; never for a tool without any hint."""
        hints = (self.read_only, self.destructive, self.open_world)
        return any(hint is not None for hint in hints) and (
            self.read_only is not True and self.destructive is not False
        )


class Check(models.Model):
    """One test of a server, done by a worker."""

    class Kind(models.TextChoices):
        PERSON = "person", "Test"
        HEALTH = "health", "Health check"
        # The start of a run, where it found something new; made when it is over.
        RUN = "run", "Run start"

    class Status(models.TextChoices):
        QUEUED = "queued", "Waiting for a worker"
        RUNNING = "running", "Running"
        DONE = "done", "Done"

    class Outcome(models.TextChoices):
        CONNECTED = "connected", "Connected"
        LOGIN_REQUIRED = "login_required", "Login required"
        FAILED = "failed", "Connection failed"
        CANCELLED = "cancelled", "Cancelled"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="checks")
    connection_version = models.PositiveIntegerField()
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.PERSON)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    status = models.CharField(max_length=10, choices=Status, default=Status.QUEUED)
    outcome = models.CharField(max_length=20, choices=Outcome, blank=True)
    claim_token = models.CharField(max_length=40, blank=True)
    heartbeat_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    # [{"label": "Connecting", "ms": 12.3 or null while it lasts}], and "failed": true in one
    # after which something else was tried.
    steps = models.JSONField(default=list)
    last_stderr = models.TextField(blank=True)
    stderr_tail = models.TextField(blank=True)
    exit_code = models.IntegerField(null=True)
    error = models.TextField(blank=True)
    hint = models.TextField(blank=True)
    warnings = models.JSONField(default=list)
    # Sentences about what happened by itself: a session was renewed, a question declined.
    notices = models.JSONField(default=list)
    tool_count = models.PositiveIntegerField(null=True)
    transport = models.CharField(max_length=30, blank=True)
    protocol_version = models.CharField(max_length=20, blank=True)
    # How both were found, in a sentence.
    found_how = models.CharField(max_length=300, blank=True)
    # What differs from the success before: {"added": [name], "removed": […], "changed": […]}.
    changes = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            # The sheet reads a server's newest checks.
            models.Index(fields=["server", "-created_at"], name="check_newest"),
            # The sweep looks for checks that nobody finishes.
            models.Index(
                fields=["status", "created_at"],
                name="check_unfinished",
                condition=~models.Q(status="done"),
            ),
        ]
        constraints = [
            # A second click on Test joins the test under way.
            models.UniqueConstraint(
                fields=["server", "connection_version"],
                condition=~models.Q(status="done"),
                name="one_check_under_way",
            )
        ]

    def __str__(self) -> str:
        return f"{self.server_id} {self.created_at:%Y-%m-%d %H:%M:%S}"

    @property
    def is_done(self) -> bool:
        return self.status == self.Status.DONE


class CallTicket(models.Model):
    """A place in the line of one server's calls (`servers.inflight`).

    The oldest tickets that have not expired hold the server's slots, the others wait in order.
    `holder` is the claim token of a run, or a token of its own for a call outside of runs.
    """

    # Found by `ticket_line`; an index of its own would be written for nothing.
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+", db_index=False)
    holder = models.CharField(max_length=40, db_index=True)
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["server", "id"], name="ticket_line")]
