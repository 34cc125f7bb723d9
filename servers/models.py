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

    class LoginKind(models.TextChoices):
        PERSON = "person", "A person logs in"
        MACHINE = "machine", "The client logs in by itself"

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
    # Encrypted JSON {"query": str, "headers": [[name, value]], "env": [[name, value]],
    # "client_secret": str}; values may hold {{secret:NAME}} references.
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

    # The operator's own OAuth client (P56-P58); its secret is in `private`.
    oauth_kind = models.CharField(max_length=10, choices=LoginKind, default=LoginKind.PERSON)
    oauth_client_id = models.CharField(max_length=500, blank=True)
    oauth_scopes = models.CharField(max_length=1000, blank=True)
    # The authorization server that has taken this client: it is sent to no other one.
    oauth_client_issuer = models.CharField(max_length=2000, blank=True)
    # Whether the server advertises OAuth; None: nobody could look yet (P50).
    oauth_advertised = models.BooleanField(null=True)
    # What was found: `servers.oauth.types.Advertised.as_json()`; empty where nothing was.
    oauth_found = models.JSONField(default=dict, blank=True)
    # Why looking for it failed, each address tried with its answer.
    oauth_error = models.TextField(blank=True)
    # Scopes for the lack of which a call was refused; the next login asks for them as well.
    oauth_wanted = models.CharField(max_length=1000, blank=True)
    # Why the last attempt of a person to log in failed, and when; empty once one succeeds.
    oauth_failure = models.TextField(blank=True)
    oauth_failed_at = models.DateTimeField(null=True)

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


class Login(models.Model):
    """The OAuth login of a server: its tokens, and all that refreshing them needs.

    It goes with the server, at `Log out`, and when an edit makes it another server's (P52, P53).
    """

    class Ended(models.TextChoices):
        # The provider took the refresh token back, or the server takes no fresh token (P47, A36).
        REFUSED = "refused", "Refused"
        # The access token is over and there is no refresh token (P45, P48).
        EXPIRED = "expired", "Expired"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    server = models.OneToOneField(Server, on_delete=models.CASCADE, related_name="login")
    # Encrypted JSON: `servers.oauth.types.LoginSecrets.as_json()`.
    private = models.BinaryField()
    key_id = models.CharField(max_length=32, db_index=True)
    # Counts each change of the tokens: whoever saves names the one that it has read, so that the
    # slower of two never overwrites the faster (A20).
    version = models.PositiveIntegerField(default=1)
    issuer = models.CharField(max_length=2000)
    client_kind = models.CharField(max_length=20)  # `servers.oauth.types.ClientKind`
    scopes = models.CharField(max_length=2000, blank=True)  # as granted
    logged_in_at = models.DateTimeField()
    logged_in_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    # Of the access token; None: unknown, it is used until it is refused (A23).
    expires_at = models.DateTimeField(null=True)
    # Whether a new access token comes without a person.
    can_refresh = models.BooleanField(default=False)
    ended = models.CharField(max_length=10, choices=Ended, blank=True)
    ended_at = models.DateTimeField(null=True)
    # In the provider's or the server's own words.
    ended_reason = models.TextField(blank=True)
    refreshed_at = models.DateTimeField(null=True)
    # Refreshes that failed in a row without ending the login, the last one's reason, and when
    # beat lets a worker try again or refreshes a login that nobody uses; None: never.
    refresh_failures = models.PositiveIntegerField(default=0)
    refresh_error = models.TextField(blank=True)
    refresh_due_at = models.DateTimeField(null=True)
    # Whoever refreshes holds this, one process of all at a time.
    lease_token = models.CharField(max_length=40, blank=True)
    lease_until = models.DateTimeField(null=True)
    # When the audit log was told that it is about to end, or in trouble.
    warned_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            # The sweep asks every second which logins are to be refreshed.
            models.Index(
                fields=["refresh_due_at"],
                name="login_refresh_due",
                condition=models.Q(refresh_due_at__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return f"login of {self.server_id} at {self.issuer}"


class PendingLogin(models.Model):
    """A login that was begun: the person is at the provider. Good once, for ten minutes (P42).

    Bound to the person, the browser session, the server, and the settings that it was begun with.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    state_hash = models.CharField(max_length=64, unique=True)
    session_hash = models.CharField(max_length=64)
    settings_hash = models.CharField(max_length=64)
    # Encrypted JSON: code verifier, provider, client, redirect URI, resource, scopes.
    private = models.BinaryField()
    key_id = models.CharField(max_length=32, db_index=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"pending login of {self.server_id} until {self.expires_at:%Y-%m-%d %H:%M:%S}"


class RegisteredClient(models.Model):
    """A client that an authorization server registered for us (RFC 7591), used again (A30)."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    issuer = models.CharField(max_length=2000)
    redirect_uri = models.CharField(max_length=500)
    # SHA-256 of both: what they may hold is too long for an index.
    digest = models.CharField(max_length=64, unique=True)
    # Encrypted JSON: `servers.oauth.types.Client.as_json()`.
    private = models.BinaryField()
    key_id = models.CharField(max_length=32, db_index=True)
    registered_at = models.DateTimeField()
    # Of its secret; None: it does not end.
    expires_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"client at {self.issuer}"
