"""A job's form as a browser posts it."""

from __future__ import annotations

from typing import Any

from django.test import Client

from jobs.definition import JobData
from jobs.models import Attachment, Job
from jobs.services import create_job

SCRIPT = "#!/usr/bin/env bash\ntrue\n"


def make(**values: Any) -> Job:
    return create_job(actor=None, data=JobData(**({"name": "digest", "script": SCRIPT} | values)))


def fields(**values: Any) -> dict[str, Any]:
    """What a browser posts."""
    base = {
        "name": "digest",
        "description": "",
        "timeout": "900",
        "cpus": "1",
        "memory": "1024",
        "disk": "2048",
        "network": "none",
        "overlap": "skip",
        "enabled": "on",
        "script": SCRIPT,
        "cron": "",
        "timezone": "UTC",
        "version": "1",
    }
    return {key: value for key, value in (base | values).items() if value is not None}


def posted(client: Client, job: Job, **values: Any) -> Any:
    return client.post(f"/jobs/{job.pk}/settings/", fields(**values))


def card(client: Client, job: Job) -> str:
    """The MCP servers card of the settings."""
    html = client.get(f"/jobs/{job.pk}/settings/").content.decode()
    return html.split('id="servers"')[1].split('id="secrets"')[0]


def allowed(job: Job) -> Any:
    return Attachment.objects.get(job=job).allowed_tools
