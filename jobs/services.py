"""What people do to jobs: create, change, pause, delete, and edit their memory.

Every change is checked here, whichever page, file or command it comes from, and leaves an
audit entry that names what changed and never a value.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, Sum
from django.utils import timezone

from jobs import lifecycle, payloads, schedule
from jobs.broker.protocol import (
    MAX_STATE_KEY,
    MAX_STATE_KEYS,
    MAX_STATE_TOTAL,
    MAX_STATE_VALUE,
)
from jobs.definition import (
    AttachmentData,
    InvalidJob,
    JobData,
    NotAllowed,
    SecretData,
    check,
    tidy,
)
from jobs.models import Artifact, Attachment, Blob, Environment, Job, JobSecret, Run, StateEntry
from jobs.storage.removal import delete_files
from secrets_vault.models import Secret
from secrets_vault.services import may_use
from servers.models import Server, Tool
from umpteenth.accounts.models import User
from umpteenth.accounts.services import changed_meanwhile, record_audit
from umpteenth.core.clock import database_now
from umpteenth.core.text import MAX_JSON_DEPTH, clean, is_too_deep, storable_json

__all__ = [
    "AttachmentData",
    "InvalidJob",
    "JobBusy",
    "JobData",
    "JobGone",
    "NotAllowed",
    "OutdatedEdit",
    "SecretData",
    "StateError",
    "create_job",
    "current_data",
    "delete_job",
    "delete_state",
    "set_enabled",
    "set_state",
    "unlisted_tools",
    "update_job",
]


MAX_AUDITED = 20  # domains that an audit entry names


class OutdatedEdit(Exception):
    """Somebody else changed the job since the form was opened.

    `current` is the stored job, `theirs` its values in the shape of what was submitted, so that
    a page can show both.
    """

    def __init__(self, current: Job) -> None:
        super().__init__(changed_meanwhile("job", current.updated_by))
        self.current = current
        self.theirs = current_data(current)


class JobGone(Exception):
    """The job was deleted meanwhile."""


class JobBusy(Exception):
    """The job has a run in progress, so that it cannot be deleted."""


class StateError(ValueError):
    """A key or value that the job's memory does not take; one sentence."""


def create_job(*, actor: User | None, data: JobData) -> Job:
    """Make a job; `actor` None is the operator. Raises `InvalidJob` or `NotAllowed`."""
    data = _checked(data)
    _check_rights(data, actor)
    servers, mapped = _find_servers(data), _find_secrets(data, actor, kept=set())
    job = Job(updated_by=actor, **_columns(data))
    job.next_run_at = _next_run(data.cron, data.timezone, data.enabled)
    try:
        with transaction.atomic():
            job.environment = _find_environment(data.environment)
            job.save(force_insert=True)
            _replace_attachments(job, data, servers)
            _replace_secrets(job, mapped)
            _audit(actor, "job.create", job, network=_network_words(data))
    except IntegrityError:
        raise _name_taken(data.name) from None
    return job


def update_job(job: Job, *, actor: User | None, data: JobData, version: int) -> Job:
    """Store an edit that was begun on `version`; the job as it is now.

    Editing a schedule fires nothing. Raises `InvalidJob`, `NotAllowed`, `JobGone`, or
    `OutdatedEdit` if the job has changed since.
    """
    data = _checked(data)
    current = _reload(job.pk)
    if current.version != version:
        raise OutdatedEdit(current)
    theirs = current_data(current)
    _check_rights(data, actor, theirs)
    kept = {(item.variable, item.secret) for item in theirs.secrets}
    servers, mapped = _find_servers(data), _find_secrets(data, actor, kept)
    columns = _columns(data) | {"version": F("version") + 1, "updated_by": actor}
    columns["updated_at"] = timezone.now()
    if (data.cron, data.timezone, data.enabled) != (theirs.cron, theirs.timezone, theirs.enabled):
        columns["next_run_at"] = _next_run(data.cron, data.timezone, data.enabled)
    try:
        with transaction.atomic():
            columns["environment"] = _find_environment(data.environment)
            if not Job.objects.filter(pk=job.pk, version=version).update(**columns):
                raise OutdatedEdit(_reload(job.pk))
            _replace_attachments(current, data, servers)
            _replace_secrets(current, mapped)
            _audit(actor, "job.update", current, **_changes(theirs, data))
    except IntegrityError:
        raise _name_taken(data.name) from None
    return _reload(job.pk)


def current_data(job: Job) -> JobData:
    """The stored job in the shape of an edit."""
    attached = job.attachments.select_related("server")
    mapped = job.secrets.select_related("secret")
    return JobData(
        name=job.name,
        description=job.description,
        script=job.script,
        network=job.network,
        domains=tuple(job.domains),
        allow_private_network=job.allow_private_network,
        timeout=job.timeout,
        cpus=job.cpus,
        memory=job.memory,
        disk=job.disk,
        run_as_root=job.run_as_root,
        environment=job.environment.name if job.environment else "",
        overlap=job.overlap,
        enabled=job.enabled,
        cron=job.cron,
        timezone=job.timezone,
        attachments=tuple(
            AttachmentData(row.server.name, _tuple(row.allowed_tools)) for row in attached
        ),
        secrets=tuple(SecretData(row.variable, row.secret.name) for row in mapped),
    )


def set_enabled(job: Job, *, actor: User | None, enabled: bool) -> bool:
    """Pause or resume the schedule; resuming fires nothing. False if it was so already."""
    current = _reload(job.pk)
    next_run = _next_run(current.cron, current.timezone, enabled)
    with transaction.atomic():
        # The version stays: a pause must not refuse an edit that is open meanwhile.
        changed = Job.objects.filter(pk=job.pk, enabled=not enabled).update(
            enabled=enabled, next_run_at=next_run, updated_at=timezone.now(), updated_by=actor
        )
        if changed:
            _audit(actor, "job.resume" if enabled else "job.pause", current)
    return bool(changed)


def unlisted_tools(job: Job) -> list[tuple[str, str]]:
    """Allowed tools, as (server, tool), that the last successful test of their server missed."""
    rows = job.attachments.exclude(allowed_tools=None).exclude(server__tested_at=None)
    listed: dict[UUID, set[str]] = {}
    tools = Tool.objects.filter(server__in=rows.values("server"))
    for server_id, name in tools.values_list("server_id", "name"):
        listed.setdefault(server_id, set()).add(name)
    return [
        (row.server.name, name)
        for row in rows.select_related("server")
        for name in row.allowed_tools or ()
        if name not in listed.get(row.server_id, ())
    ]


def delete_job(job: Job, *, actor: User | None) -> None:
    """Delete it with its runs and files; waiting runs are dropped. Raises `JobBusy`."""
    with transaction.atomic():
        current = Job.objects.select_for_update(no_key=True).filter(pk=job.pk).first()
        if current is None:
            return
        live = Run.objects.filter(job=current, status__in=Run.LIVE).order_by("number").first()
        if live is not None:
            raise JobBusy(f"Run #{live.number} of this job is in progress; cancel it first.")
        paths = [
            *Blob.objects.filter(run__job=current).values_list("path", flat=True),
            *Artifact.objects.filter(run__job=current).values_list("path", flat=True),
        ]
        _audit(actor, "job.delete", current)
        current.delete()
        transaction.on_commit(lambda: delete_files(paths))


def set_state(
    job: Job, key: str, value: Any, *, actor: User | None = None, run: Run | None = None
) -> None:
    """Write one key of the job's memory. Raises `StateError`."""
    if is_too_deep(value):
        raise StateError(f"A state value is nested at most {MAX_JSON_DEPTH} levels deep.")
    key, value = clean(key), storable_json(value)
    if not key or len(key) > MAX_STATE_KEY:
        raise StateError(f"A state key has 1 to {MAX_STATE_KEY} characters.")
    size = len(payloads.encode(value))
    if size > MAX_STATE_VALUE:
        raise StateError("A state value may have at most 1 MiB as JSON.")
    with transaction.atomic():
        lifecycle.lock_job(job.pk)
        others = StateEntry.objects.filter(job=job).exclude(key=key)
        if others.count() >= MAX_STATE_KEYS:
            raise StateError(f"A job keeps at most {MAX_STATE_KEYS:,} state keys.")
        if (others.aggregate(total=Sum("size"))["total"] or 0) + size > MAX_STATE_TOTAL:
            raise StateError("A job keeps at most 16 MiB of state.")
        StateEntry.objects.update_or_create(
            job=job, key=key, defaults={"value": value, "size": size, "run": run}
        )
        if run is None:
            _audit(actor, "job.state", job, key=key)


def delete_state(job: Job, key: str, *, actor: User | None = None) -> bool:
    """Forget one key; False if there was none."""
    with transaction.atomic():
        deleted, _ = StateEntry.objects.filter(job=job, key=key).delete()
        if deleted:
            _audit(actor, "job.state", job, key=key, deleted=True)
    return bool(deleted)


def _checked(data: JobData) -> JobData:
    data = tidy(data)
    if errors := check(data):
        raise InvalidJob(errors)
    return data


def _columns(data: JobData) -> dict[str, Any]:
    names = set(JobData.FIELDS) - {"attachments", "secrets", "domains", "environment"}
    return {name: getattr(data, name) for name in names} | {"domains": list(data.domains)}


def _find_environment(name: str) -> Environment | None:
    """It is not deleted before the transaction has ended."""
    if not name:
        return None
    found = Environment.objects.select_for_update(no_key=True).filter(name=name).first()
    if found is None:
        raise InvalidJob({"environment": f"There is no environment named {name[:100]}."})
    return found


def _next_run(cron: str, zone: str, enabled: bool) -> datetime | None:
    """From now on, never in the past (G13)."""
    if not cron or not enabled:
        return None
    return schedule.parse(cron, zone).next(database_now())


def _find_servers(data: JobData) -> dict[str, Server]:
    names = [item.server for item in data.attachments]
    found = {server.name: server for server in Server.objects.filter(name__in=names)}
    for name in names:
        if name not in found:
            raise InvalidJob({"servers": f"There is no server named {name}."})
    return found


def _find_secrets(
    data: JobData, actor: User | None, kept: set[tuple[str, str]]
) -> list[tuple[str, Secret]]:
    """The secrets to map. Members map only those open to them; what was mapped may stay."""
    names = [item.secret for item in data.secrets]
    found = {secret.name: secret for secret in Secret.objects.filter(name__in=names)}
    mapped = []
    for item in data.secrets:
        secret = found.get(item.secret)
        if secret is None:
            raise InvalidJob({"secrets": f"There is no secret named {item.secret}."})
        if not may_use(secret, actor) and (item.variable, item.secret) not in kept:
            raise NotAllowed(
                f"Only administrators can map the secret {item.secret} into a job. "
                "Ask one of them, or ask them to open it to members.",
                field="secrets",
            )
        mapped.append((item.variable, secret))
    return mapped


def _check_rights(data: JobData, actor: User | None, theirs: JobData | None = None) -> None:
    """What leads around the proxy or behind it, and root, administrators decide; what they gave
    may stay."""
    if actor is None or actor.is_administrator:
        return
    if data.run_as_root and not (theirs and theirs.run_as_root):
        raise NotAllowed(
            "Only administrators can let a job run as root. Ask one of them, or take the tick "
            "away.",
            field="run_as_root",
        )
    if data.network == Job.Network.UNRESTRICTED and (
        theirs is None or theirs.network != Job.Network.UNRESTRICTED
    ):
        raise NotAllowed(
            "Only administrators can give a job the unrestricted network. Ask one of them.",
            field="network",
        )
    if data.allow_private_network and not (theirs and _is_no_wider(data, theirs)):
        raise NotAllowed(
            "Only administrators can let a job into the private network, or change where it may "
            "go there. Ask one of them, or take the tick away.",
            field="allow_private_network",
        )


def _is_no_wider(data: JobData, theirs: JobData) -> bool:
    """Whether all private addresses of `data` are those of `theirs`, too."""
    if not theirs.allow_private_network:
        return False
    if theirs.network == Job.Network.INTERNET:
        return True
    return data.network == theirs.network and set(data.domains) <= set(theirs.domains)


def _replace_attachments(job: Job, data: JobData, servers: dict[str, Server]) -> None:
    wanted = {servers[item.server].pk: item.allowed_tools for item in data.attachments}
    Attachment.objects.filter(job=job).exclude(server__in=wanted).delete()
    for server_id, allowed in wanted.items():
        Attachment.objects.update_or_create(
            job=job,
            server_id=server_id,
            defaults={"allowed_tools": None if allowed is None else list(allowed)},
        )


def _replace_secrets(job: Job, mapped: list[tuple[str, Secret]]) -> None:
    variables = [variable for variable, _ in mapped]
    JobSecret.objects.filter(job=job).exclude(variable__in=variables).delete()
    for variable, secret in mapped:
        JobSecret.objects.update_or_create(job=job, variable=variable, defaults={"secret": secret})


def _changes(before: JobData, after: JobData) -> dict[str, Any]:
    """Names only, but for the network: where a job may go is what an audit is read for."""
    changed = [name for name in JobData.FIELDS if getattr(before, name) != getattr(after, name)]
    if not {"network", "domains", "allow_private_network"} & set(changed):
        return {"changed": changed}
    return {
        "changed": changed,
        "network_before": _network_words(before),
        "network": _network_words(after),
    }


def _network_words(data: JobData) -> str:
    words = data.network
    if data.domains:
        words += f" ({', '.join(data.domains[:MAX_AUDITED])}"
        more = len(data.domains) - MAX_AUDITED
        words += f" and {more} more)" if more > 0 else ")"
    return words + (" with private networks" if data.allow_private_network else "")


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _reload(pk: UUID) -> Job:
    job = Job.objects.select_related("updated_by").filter(pk=pk).first()
    if job is None:
        raise JobGone("The job was deleted meanwhile.")
    return job


def _name_taken(name: str) -> InvalidJob:
    return InvalidJob({"name": f"A job named {name} exists already; choose another name."})


def _audit(actor: User | None, action: str, job: Job, **details: Any) -> None:
    record_audit(
        actor=actor,
        action=action,
        kind="job",
        object_id=str(job.pk),
        object_name=job.name,
        details=details,
    )
