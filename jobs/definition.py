"""A job as somebody wants it, and everything that can be wrong with it. No database here."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import ClassVar, Self

from jobs import network, schedule, scripts
from jobs.models import (
    DEFAULT_CPUS,
    DEFAULT_DISK,
    DEFAULT_MEMORY,
    DEFAULT_TIMEOUT,
    MAX_CPUS,
    MAX_DISK,
    MAX_MEMORY,
    MAX_TIMEOUT,
    MIN_CPUS,
    MIN_DISK,
    MIN_MEMORY,
    MIN_TIMEOUT,
    Job,
)
from umpteenth.core.config import get_options
from umpteenth.core.text import clean

MAX_NAME = 100
MAX_DESCRIPTION = 500
MAX_SCRIPT = 1024 * 1024  # bytes
MAX_SERVERS = 100
MAX_TOOLS = 512
MAX_SECRETS = 100
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# Set by the sandbox itself; a secret there would break the run.
_RESERVED = {"PATH", "HOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "TMPDIR", "PWD", "SHELL"}

CPUS = f"A sandbox has {MIN_CPUS:g} to {MAX_CPUS:g} processors."
MEMORY = f"The memory is {MIN_MEMORY} to {MAX_MEMORY:,} MiB."
DISK = f"The room on the disk is {MIN_DISK} to {MAX_DISK:,} MiB."

# Sentences by field: name, description, script, network, domains, allow_private_network, timeout,
# cpus, memory, disk, run_as_root, environment, overlap, cron, timezone, servers, secrets.
Errors = dict[str, str]


class InvalidJob(Exception):
    """The data cannot be stored; `errors` holds sentences by field."""

    def __init__(self, errors: Errors) -> None:
        super().__init__(next(iter(errors.values())))
        self.errors = errors


class NotAllowed(Exception):
    """The person may not do this; the message says who may, `field` what it is about."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class AttachmentData:
    """A server by name; `allowed_tools` None allows all, also ones added later (P64, P66)."""

    server: str
    allowed_tools: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SecretData:
    """A secret, by name, as an environment variable of the script."""

    variable: str
    secret: str


@dataclass(frozen=True)
class JobData:
    """Everything about a job that people edit. `timeout` is in seconds; empty `cron`: none.

    `environment` is a name; empty is the default environment.

    `cpus`, `memory` and `disk` (MiB) are what each of its sandboxes may use.

    `domains` belong to Allowed domains only, `allow_private_network` to that and Internet access;
    elsewhere both are dropped.
    """

    name: str
    script: str
    description: str = ""
    network: str = Job.Network.INTERNET
    domains: tuple[str, ...] = ()
    allow_private_network: bool = False
    timeout: int = DEFAULT_TIMEOUT
    cpus: float = DEFAULT_CPUS
    memory: int = DEFAULT_MEMORY
    disk: int = DEFAULT_DISK
    run_as_root: bool = False
    environment: str = ""
    overlap: str = Job.Overlap.SKIP
    enabled: bool = True
    cron: str = ""
    timezone: str = "UTC"
    attachments: tuple[AttachmentData, ...] = ()
    secrets: tuple[SecretData, ...] = ()

    FIELDS: ClassVar[tuple[str, ...]] = (
        "name",
        "script",
        "description",
        "network",
        "domains",
        "allow_private_network",
        "timeout",
        "cpus",
        "memory",
        "disk",
        "run_as_root",
        "environment",
        "overlap",
        "enabled",
        "cron",
        "timezone",
        "attachments",
        "secrets",
    )

    def replace(self, **changes: object) -> Self:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def tidy(data: JobData) -> JobData:
    """Without blanks that come along when people paste, and with one kind of line end."""
    return data.replace(
        name=" ".join(clean(data.name).split()),
        description=clean(data.description).strip(),
        script=scripts.normalise(data.script),
        domains=_tidy_domains(data),
        environment=clean(data.environment),
        allow_private_network=data.allow_private_network and data.network in network.GUARDED,
        cron=" ".join(data.cron.split()),
        timezone=data.timezone.strip() or "UTC",
        attachments=tuple(sorted(data.attachments, key=lambda item: item.server.lower())),
        secrets=tuple(sorted(data.secrets, key=lambda item: item.variable)),
    )


def _tidy_domains(data: JobData) -> tuple[str, ...]:
    if data.network != Job.Network.DOMAINS:
        return ()
    try:
        return network.normalise_domains(data.domains)
    except network.DomainError:
        return data.domains  # which `check` looks at


def check(data: JobData) -> Errors:
    """What is wrong with tidied data; empty if nothing is."""
    errors: Errors = {}
    if not 0 < len(data.name) <= MAX_NAME:
        errors["name"] = f"A job's name has 1 to {MAX_NAME} characters."
    if len(data.description) > MAX_DESCRIPTION:
        errors["description"] = f"A description has at most {MAX_DESCRIPTION} characters."
    errors |= _check_script(data.script)
    errors |= _check_network(data)
    errors |= _check_choices(data)
    errors |= _check_limits(data)
    errors |= _check_schedule(data)
    errors |= _check_attachments(data.attachments)
    errors |= _check_secrets(data.secrets)
    return errors


def _check_script(script: str) -> Errors:
    if not script.strip():
        return {"script": "A job needs a script."}
    if "\0" in script:
        return {"script": "The script holds a NUL character; a script is text."}
    try:
        size = len(script.encode())
        scripts.interpreter(script)
    except UnicodeEncodeError:
        return {"script": "The script holds half a character (a lone surrogate); a script is text."}
    except scripts.ScriptError as error:
        return {"script": str(error)}
    return {"script": "A script has at most 1 MiB."} if size > MAX_SCRIPT else {}


def _check_network(data: JobData) -> Errors:
    errors: Errors = {}
    if data.network not in Job.Network.values:
        errors["network"] = f"The network is one of {', '.join(Job.Network.values)}."
    elif data.network == Job.Network.UNRESTRICTED and not unrestricted_allowed():
        errors["network"] = (
            "The unrestricted network is switched off on this installation "
            "(sandbox.allow_unrestricted_network); choose another."
        )
    if data.network == Job.Network.DOMAINS:
        errors |= _check_domains(data.domains)
    if data.allow_private_network and not private_allowed():
        errors["allow_private_network"] = (
            "Private networks are switched off on this installation "
            "(network.allow_private_targets is false)."
        )
    return errors


def _check_domains(domains: tuple[str, ...]) -> Errors:
    if not domains:
        return {"domains": "Name at least one domain, such as api.example.org or *.example.org."}
    if len(domains) > network.MAX_DOMAINS:
        return {"domains": f"A job has at most {network.MAX_DOMAINS} allowed domains."}
    try:
        network.normalise_domains(domains)
    except network.DomainError as error:
        return {"domains": str(error)}
    return {}


def _check_choices(data: JobData) -> Errors:
    errors: Errors = {}
    if data.overlap not in Job.Overlap.values:
        errors["overlap"] = f"The overlap is one of {', '.join(Job.Overlap.values)}."
    if not MIN_TIMEOUT <= data.timeout <= MAX_TIMEOUT:
        errors["timeout"] = f"The time limit is {MIN_TIMEOUT} to {MAX_TIMEOUT:,} seconds."
    return errors


def _check_limits(data: JobData) -> Errors:
    errors: Errors = {}
    # Not a number is in no range either.
    if not MIN_CPUS <= data.cpus <= MAX_CPUS:
        errors["cpus"] = CPUS
    if not MIN_MEMORY <= data.memory <= MAX_MEMORY:
        errors["memory"] = MEMORY
    if not MIN_DISK <= data.disk <= MAX_DISK:
        errors["disk"] = DISK
    return errors


def unrestricted_allowed() -> bool:
    return get_options().sandbox.allow_unrestricted_network


def private_allowed() -> bool:
    return get_options().network.allow_private_targets


def _check_schedule(data: JobData) -> Errors:
    try:
        schedule.parse(data.cron or "@daily", data.timezone)
    except schedule.ScheduleError as error:
        return {error.field: error.message}
    return {}


def _check_attachments(attachments: tuple[AttachmentData, ...]) -> Errors:
    names = [item.server for item in attachments]
    if len(names) > MAX_SERVERS:
        return {"servers": f"A job has at most {MAX_SERVERS} servers."}
    for name in names:
        if names.count(name) > 1:
            return {"servers": f"The server {name} is attached twice."}
    for item in attachments:
        if item.allowed_tools is not None and len(item.allowed_tools) > MAX_TOOLS:
            return {"servers": f"{item.server}: at most {MAX_TOOLS} tools can be picked."}
    return {}


def _check_secrets(mapped: tuple[SecretData, ...]) -> Errors:
    variables = [item.variable for item in mapped]
    if len(variables) > MAX_SECRETS:
        return {"secrets": f"A job has at most {MAX_SECRETS} secrets."}
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            return {
                "secrets": f"{name[:100]!r} is no name of an environment variable; use letters, "
                "digits and _, and no digit first."
            }
        if name in _RESERVED or name.startswith("UMP_"):
            return {"secrets": f"The variable {name} is set by the sandbox; use another name."}
        if variables.count(name) > 1:
            return {"secrets": f"The variable {name} is mapped twice."}
    return {}
