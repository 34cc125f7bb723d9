"""People, the link that makes the first of them, their API tokens, and what they changed."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from django.contrib.auth.models import AbstractUser, UserManager
from django.db import models
from django.db.models.functions import Lower
from django.utils.crypto import salted_hmac

from umpteenth.core.ids import new_id


class PersonManager(UserManager["User"]):
    def get_by_natural_key(self, username: str | None) -> User:
        """Sign-in takes a name in any case; the constraint keeps names apart that differ in it."""
        return self.get(username__iexact=username)


class User(AbstractUser):
    """A person. Administrators manage servers, secrets and people; members jobs and runs."""

    class Role(models.TextChoices):
        MEMBER = "member", "Member"
        ADMINISTRATOR = "administrator", "Administrator"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    role = models.CharField(max_length=20, choices=Role, default=Role.MEMBER)
    # An administrator typed it; its owner must choose another one at the next sign-in.
    password_is_temporary = models.BooleanField(default=False)
    # Part of every session's hash: raising it ends all sessions of the person at once.
    session_epoch = models.PositiveIntegerField(default=0)

    # Django's own groups, permissions and admin flags are not used.
    groups = None  # type: ignore[assignment]
    user_permissions = None  # type: ignore[assignment]

    objects: ClassVar[PersonManager] = PersonManager()

    class Meta:
        constraints = [models.UniqueConstraint(Lower("username"), name="person_name_any_case")]

    @property
    def is_administrator(self) -> bool:
        return self.is_active and self.role == self.Role.ADMINISTRATOR

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        material = f"{self.password}:{self.session_epoch}"
        salt = "umpteenth.accounts.session"
        return salted_hmac(salt, material, secret=secret, algorithm="sha256").hexdigest()


class ClaimLink(models.Model):
    """The one-time link that makes the first administrator; only its hash is kept."""

    token_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"claim link until {self.expires_at:%Y-%m-%d %H:%M}"


class SignInAttempt(models.Model):
    """One attempt to sign in, kept for the minute in which it counts (see `limits`)."""

    address = models.CharField(max_length=45)
    at = models.DateTimeField()

    class Meta:
        indexes = [
            # Each attempt counts its address and drops what is old.
            models.Index(fields=["address", "at"], name="attempt_address"),
            models.Index(fields=["at"], name="attempt_age"),
        ]

    def __str__(self) -> str:
        return f"{self.address} at {self.at:%Y-%m-%d %H:%M:%S}"


class ApiToken(models.Model):
    """A key to the REST API with the role that its owner has at that moment; only its hash is kept.

    A revoked one stays in the list, so that its owner sees what has stopped working.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    token_hash = models.CharField(max_length=64, unique=True)
    # Its first characters, by which people tell which one they hold.
    hint = models.CharField(max_length=12)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)  # None: it does not
    last_used_at = models.DateTimeField(null=True)  # to the minute
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            # A form that is sent twice makes one token; a revoked name is free again.
            models.UniqueConstraint(
                "owner",
                Lower("name"),
                condition=models.Q(revoked_at__isnull=True),
                name="token_name_per_person",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}…)"

    def state_at(self, now: datetime) -> Literal["active", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        is_over = self.expires_at is not None and self.expires_at <= now
        return "expired" if is_over else "active"


# The words of the audit page for the verb in an entry's `kind.verb`; others stand as they are.
AUDIT_WORDS = {
    "create": "created",
    "update": "changed",
    "delete": "deleted",
    "enable": "enabled",
    "disable": "disabled",
    "rotate": "rotated to",
    "forget": "forgot",
    "pause": "paused",
    "resume": "resumed",
    "state": "changed the state of",
    "role": "changed the role of",
    "password": "set the password of",
    "one_time_password": "set a one-time password for",
    "deactivate": "deactivated",
    "activate": "activated",
    "revoke": "revoked",
    "login": "logged in to",
    "logout": "logged out of",
    "login_ending": "warned of the login of",
    "login_ended": "lost the login of",
}


class AuditEntry(models.Model):
    """Who changed what, when; `action` is `kind.verb`. Never holds a secret value."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)
    action = models.CharField(max_length=60)
    kind = models.CharField(max_length=30)
    object_id = models.CharField(max_length=40)
    object_name = models.CharField(max_length=200)
    details = models.JSONField(default=dict)

    class Meta:
        # The audit page reads newest first.
        indexes = [models.Index(fields=["-at"], name="audit_newest")]

    def __str__(self) -> str:
        return f"{self.actor_name} {self.action} {self.kind} {self.object_name}"

    @property
    def words(self) -> str:
        verb = self.action.removeprefix(f"{self.kind}.")
        return AUDIT_WORDS.get(verb, verb.replace("_", " "))

    @property
    def facts(self) -> list[str]:
        """The details as `name: value`, lists with commas."""
        return [f"{key.replace('_', ' ')}: {_plain(value)}" for key, value in self.details.items()]


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
