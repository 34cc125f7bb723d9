"""People, the link that makes the first of them, and the record of what they changed."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models

from umpteenth.core.ids import new_id


class User(AbstractUser):
    """A person. Administrators manage servers, secrets and people; members jobs and runs."""

    class Role(models.TextChoices):
        MEMBER = "member", "Member"
        ADMINISTRATOR = "administrator", "Administrator"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    role = models.CharField(max_length=20, choices=Role, default=Role.MEMBER)

    # Django's own groups, permissions and admin flags are not used.
    groups = None
    user_permissions = None

    @property
    def is_administrator(self) -> bool:
        return self.is_active and self.role == self.Role.ADMINISTRATOR


class ClaimLink(models.Model):
    """The one-time link that makes the first administrator; only its hash is kept."""

    token_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class AuditEntry(models.Model):
    """Who changed what, when. Never holds a secret value."""

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
