"""Tells the rooms below which jobs use a secret or a server."""

from __future__ import annotations

from collections.abc import Collection

from django.urls import reverse

from jobs.models import Attachment, JobSecret
from secrets_vault.usage import Usage as SecretUsage
from secrets_vault.usage import register_usage as register_secret_usage
from servers.models import Server
from servers.usage import Usage as ServerUsage
from servers.usage import register_usage as register_server_usage


def register() -> None:
    register_secret_usage(jobs_of_secrets)
    register_server_usage(jobs_of_server)


def jobs_of_secrets(names: Collection[str]) -> dict[str, list[SecretUsage]]:
    """By the secret's name; a job that maps one twice stands once."""
    found: dict[str, list[SecretUsage]] = {name: [] for name in names}
    mapped = JobSecret.objects.filter(secret__name__in=names).order_by("job__name")
    for row in mapped.select_related("job", "secret"):
        usage = SecretUsage("job", row.job.name, reverse("jobs:settings", args=[row.job_id]))
        if usage not in found[row.secret.name]:
            found[row.secret.name].append(usage)
    return found


def jobs_of_server(server: Server) -> list[ServerUsage]:
    attached = Attachment.objects.filter(server=server).select_related("job").order_by("job__name")
    return [
        ServerUsage(
            "job",
            row.job.name,
            reverse("jobs:settings", args=[row.job_id]),
            "All tools"
            if row.allowed_tools is None
            else f"{len(row.allowed_tools)} tool{'' if len(row.allowed_tools) == 1 else 's'}",
        )
        for row in attached
    ]
