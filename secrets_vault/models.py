"""Named secrets, encrypted, and the ids of the keys that encrypt them."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Lower

from umpteenth.core.ids import new_id


class Key(models.Model):
    """The id of a key of the ring. The material is in the key file, never here."""

    key_id = models.CharField(primary_key=True, max_length=32)
    created_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(null=True)


class Secret(models.Model):
    """A value that people use by its name and never see again."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    description = models.CharField(max_length=500, blank=True)
    ciphertext = models.BinaryField()
    key_id = models.CharField(max_length=32, db_index=True)
    # Whether members may map it into a job; otherwise administrators only.
    open_to_members = models.BooleanField(default=False)
    # Empty lists mean: anywhere.
    allowed_hosts = models.JSONField(default=list, blank=True)
    allowed_servers = models.JSONField(default=list, blank=True)
    allowed_jobs = models.JSONField(default=list, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField()
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        ordering = [Lower("name")]

    def __str__(self) -> str:
        return self.name
