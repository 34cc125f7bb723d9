"""Named secrets, encrypted, and the ids of the keys that encrypt them."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Lower

from umpteenth.core.ids import new_id


class Key(models.Model):
    """The id of a key of the ring. The material is in the key file, never here."""

    key_id = models.CharField(primary_key=True, max_length=32)
    # Derived from the key, says nothing about it; tells it from another of the same id.
    fingerprint = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.key_id


class Secret(models.Model):
    """A value that people use by its name and never see again."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    description = models.CharField(max_length=500, blank=True)
    ciphertext = models.BinaryField()
    key_id = models.CharField(max_length=32, db_index=True)
    # Whether members may map it into a job; otherwise administrators only.
    open_to_members = models.BooleanField(default=False)
    # What it is for. All three empty: anything. Otherwise one of them must name the use.
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

    @property
    def is_limited(self) -> bool:
        return bool(self.allowed_hosts or self.allowed_servers or self.allowed_jobs)

    def is_for(self, *, host: str | None, server: str | None, job: str | None) -> bool:
        """Whether it may be used there: anywhere, or where one of its lists names the place."""
        return not self.is_limited or (
            (server is not None and server in self.allowed_servers)
            or (job is not None and job in self.allowed_jobs)
            or (host is not None and any(_is_host(host, entry) for entry in self.allowed_hosts))
        )


def _is_host(host: str, entry: str) -> bool:
    """`*.example.org` stands for every host below example.org, not for example.org itself."""
    host = host.lower().rstrip(".")
    return host.endswith(entry[1:]) if entry.startswith("*.") else host == entry
