"""Everything that a run needs to know before it starts, read from the database at once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db import connection

from jobs.connections import AttachedServer
from jobs.definition import private_allowed, unrestricted_allowed
from jobs.environments.provide import Wanted
from jobs.models import Attachment, Environment, Job, Run
from jobs.network import NetworkRules
from jobs.permission import DETACHED, DISABLED, Permission
from jobs.sandbox.base import Limits
from jobs.skipping import ROOT_SKIPS, skipped_as_root
from secrets_vault import services as vault
from servers.mcp.types import ServerError
from servers.models import Server
from servers.policy import Policy
from servers.services import connection_settings


class PlanError(Exception):
    """The run cannot start; one sentence. `secrets` are to be masked all the same."""

    def __init__(self, message: str, secrets: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.secrets = dict(secrets or {})


@dataclass(frozen=True)
class Plan:
    """`deadline` is on the monotonic clock; `env` and `secrets` hold values, never print them."""

    run: Run
    script: str
    network: NetworkRules
    timeout: int
    deadline: float
    env: Mapping[str, str] = field(repr=False)
    servers: tuple[AttachedServer, ...] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)
    # None: the default environment. `base` is where it is, once it has been provided.
    environment: Wanted | None = None
    base: str = ""
    # Of the script's sandbox, and of each stdio server's own.
    limits: Limits = field(default_factory=Limits)


def make_plan(run_id: UUID) -> Plan:
    """Raises `PlanError`."""
    run = Run.objects.select_related("job__environment").get(pk=run_id)
    job = run.job
    if job.network == Job.Network.UNRESTRICTED and not unrestricted_allowed():
        raise PlanError(
            "The unrestricted network is switched off on this installation; choose another "
            "network in the job's settings."
        )
    secrets: dict[str, str] = {}
    env = _environment(run, secrets)
    servers = () if run.disable_mcp else _servers(run, secrets)
    return Plan(
        run=run,
        script=job.script,
        environment=_wanted(job.environment),
        network=_network(job),
        limits=_limits(job),
        timeout=job.timeout,
        deadline=time.monotonic() + job.timeout,
        env=env,
        servers=servers,
        secrets=secrets,
    )


def _wanted(environment: Environment | None) -> Wanted | None:
    if environment is None:
        return None
    return Wanted(environment.name, environment.definition, environment.digest)


def _limits(job: Job) -> Limits:
    return Limits(cpus=job.cpus, memory=job.memory * 1024**2, disk=job.disk * 1024**2)


def _network(job: Job) -> NetworkRules:
    private = job.allow_private_network and private_allowed()
    return NetworkRules(job.network, tuple(job.domains), private)


def _environment(run: Run, secrets: dict[str, str]) -> dict[str, str]:
    env = {
        "UMP_JOB": run.job.name,
        "UMP_RUN_ID": str(run.pk),
        "UMP_RUN_NUMBER": str(run.number),
        "UMP_INPUT": "/ump/input.json",
        "UMP_OUTPUTS": "/ump/outputs",
        "UMP_LOGS": "/ump/logs",
    }
    target = vault.Target(host=None, server=None, job=run.job.name)
    for mapped in run.job.secrets.select_related("secret"):
        name = mapped.secret.name
        try:
            value = vault.secret_value(mapped.secret, target=target)
        except vault.SecretError as error:
            raise PlanError(f"{mapped.variable}: {error}", secrets) from None
        if "\0" in value:
            raise PlanError(f"The secret {name} holds a NUL and cannot be a variable.", secrets)
        env[mapped.variable] = secrets[name] = value
    return env


def _servers(run: Run, secrets: dict[str, str]) -> tuple[AttachedServer, ...]:
    attachments = Attachment.objects.filter(job=run.job_id).select_related("server")
    return tuple(_server(row, run, secrets) for row in attachments)


def _server(row: Attachment, run: Run, secrets: dict[str, str]) -> AttachedServer:
    server = row.server
    attached = AttachedServer(
        id=server.pk,
        name=server.name,
        transport=server.transport,
        enabled=server.enabled,
        version=server.connection_version,
        permission=_permission(run.trust, row.allowed_tools, server.policy),
    )
    if not server.enabled:
        return attached
    try:
        if run.job.run_as_root and skipped_as_root(server):
            return replace(attached, skipped=ROOT_SKIPS)
        # U61-U64: the person who started the run, where the server wants to know.
        settings, mask = connection_settings(server, job_name=run.job.name, actor=run.actor_name)
    except (vault.SecretError, vault.UnknownKey, vault.DecryptionFailed, ServerError) as error:
        return replace(attached, problem=str(error))
    secrets.update(mask)
    return replace(attached, settings=settings)


# Asked right before every call; our own SQL takes a tenth of the time.
_PERMISSION = (
    "SELECT a.allowed_tools, s.enabled, s.policy"
    f" FROM {Attachment._meta.db_table} a JOIN {Server._meta.db_table} s ON s.id = a.server_id"
    " WHERE a.job_id = %s AND a.server_id = %s"
)


def permission_now(job_id: UUID, trust: str, server_id: UUID) -> Permission:
    """What a run may do with a server, as it stands in the database at this moment."""
    to_column = Server._meta.pk.get_db_prep_value
    with connection.cursor() as cursor:
        keys = [to_column(key, connection) for key in (job_id, server_id)]
        cursor.execute(_PERMISSION, keys)
        row = cursor.fetchone()
    if row is None:
        return Permission(trust, problem=DETACHED)
    allowed, enabled, policy = row
    if not enabled:
        return Permission(trust, problem=DISABLED)
    return _permission(trust, json.loads(allowed or "null"), json.loads(policy))


def _permission(trust: str, allowed: list[str] | None, policy: Mapping[str, Any]) -> Permission:
    tools = None if allowed is None else tuple(allowed)
    return Permission(trust, tools, Policy.from_json(policy))
