"""Tells the rooms below which jobs use a secret or a server."""

from __future__ import annotations

import re
from collections.abc import Collection

from django.urls import reverse

from jobs.models import Attachment, Job, JobSecret
from secrets_vault.usage import Usage as SecretUsage
from secrets_vault.usage import register_usage as register_secret_usage
from servers.models import Server
from servers.usage import Usage as ServerUsage
from servers.usage import register_mentions
from servers.usage import register_usage as register_server_usage

# What stands between the words of a command: blanks in a shell script, quotes and commas in a
# program's list of arguments, a backslash before a line's end.
_GAP = r"[\s\"',\[\]()\\]+"


def register() -> None:
    register_secret_usage(jobs_of_secrets)
    register_server_usage(jobs_of_server)
    register_mentions(scripts_naming_server)


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


def scripts_naming_server(server: Server) -> list[ServerUsage]:
    """Jobs whose script calls `ump mcp call|tools` with the server's name (U38)."""
    likely = Job.objects.filter(script__contains=server.name).only("name", "script")
    return [
        ServerUsage(
            "script of job",
            job.name,
            reverse("jobs:settings", args=[job.pk]),
            f"Calls {server.name} by name: change the script as well.",
        )
        for job in likely.order_by("name")
        if names_server(job.script, server.name)
    ]


def names_server(script: str, name: str) -> bool:
    """Whether the script hands the name to `ump` as it stands; variables are not looked into."""
    words = (r"\bump", "mcp", "(?:call|tools)", f"(?:--json{_GAP})?{re.escape(name)}")
    return re.search(_GAP.join(words) + r"(?![\w-])", script) is not None
