"""The YAML job file of the command line (design.md, section 6), read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.definition import AttachmentData, JobData, SecretData
from jobs.models import (
    DEFAULT_CPUS,
    DEFAULT_DISK,
    DEFAULT_MEMORY,
    DEFAULT_TIMEOUT,
    Job,
)
from jobs.network import GUARDED
from umpteenth.core.strict_yaml import YamlError, load_yaml

MAX_BYTES = 2 * 1024 * 1024
KEYS = (
    "name",
    "description",
    "script",
    "servers",
    "secrets",
    "network",
    "domains",
    "allow_private_network",
    "schedule",
    "overlap",
    "timeout",
    "cpus",
    "memory",
    "disk",
    "run_as_root",
    "environment",
    "enabled",
)


class JobFileError(ValueError):
    """A file that is no job; one sentence that names the key."""


def parse_job_file(text: str) -> JobData:
    """Raises `JobFileError`. What the values mean is checked by `jobs.services`."""
    if len(text) > MAX_BYTES:
        raise JobFileError("The job file is larger than 2 MiB.")
    try:
        content = load_yaml(text, "job file")
    except YamlError as error:
        raise JobFileError(str(error)) from None
    if not isinstance(content, dict):
        raise JobFileError("A job file is a mapping with the keys name and script.")
    for key in content:
        if key not in KEYS:
            raise JobFileError(f"{str(key)[:100]}: unknown key; a job has {', '.join(KEYS)}.")
    return _job(content)


def _job(content: Mapping[str, Any]) -> JobData:
    cron, timezone = _schedule(content.get("schedule"))
    network = _text(content, "network", Job.Network.INTERNET.value)
    return JobData(
        name=_text(content, "name"),
        script=_text(content, "script"),
        description=_text(content, "description", ""),
        network=network,
        domains=_domains(content.get("domains"), network),
        allow_private_network=_private(content.get("allow_private_network", False), network),
        overlap=_text(content, "overlap", Job.Overlap.SKIP.value),
        timeout=_whole("timeout", "seconds", content.get("timeout", DEFAULT_TIMEOUT)),
        cpus=_number("cpus", content.get("cpus", DEFAULT_CPUS)),
        memory=_whole("memory", "MiB", content.get("memory", DEFAULT_MEMORY)),
        disk=_whole("disk", "MiB", content.get("disk", DEFAULT_DISK)),
        run_as_root=_flag("run_as_root", content.get("run_as_root", False)),
        environment="" if content.get("environment") is None else _text(content, "environment"),
        enabled=_flag("enabled", content.get("enabled", True)),
        cron=cron,
        timezone=timezone,
        attachments=_servers(content.get("servers")),
        secrets=_secrets(content.get("secrets")),
    )


def _text(content: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = content.get(key, default)
    if value is None:
        raise JobFileError(f"{key}: this key is missing.")
    # A name such as 2024 or `on` is read as a number or a flag by YAML.
    if not isinstance(value, str):
        raise JobFileError(f"{key}: must be text; put it in quotation marks.")
    return value


def _whole(key: str, unit: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise JobFileError(f"{key}: must be a whole number of {unit}.")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise JobFileError(f"{key}: must be a number such as 1 or 0.5.")
    try:
        return float(value)
    except OverflowError:
        raise JobFileError(f"{key}: this number is too large.") from None


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise JobFileError(f"{key}: must be true or false.")
    return value


def _domains(value: Any, network: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(domain, str) for domain in value):
        raise JobFileError('domains: must be a list such as [api.example.org, "*.example.org"].')
    # A list that would be dropped without a word may be meant as a limit.
    if value and network != Job.Network.DOMAINS:
        raise JobFileError(f"domains: belong to network: domains, and this job has {network[:20]}.")
    return tuple(value)


def _private(value: Any, network: str) -> bool:
    if _flag("allow_private_network", value) and network not in GUARDED:
        raise JobFileError(
            f"allow_private_network: belongs to network: {' or '.join(GUARDED)}, and this job "
            f"has {network[:20]}."
        )
    return bool(value)


def _schedule(value: Any) -> tuple[str, str]:
    if value is None:
        return "", "UTC"
    if not isinstance(value, dict):
        raise JobFileError('schedule: must be a mapping such as {cron: "0 9 * * 1-5"}.')
    for key in value:
        if key not in ("cron", "timezone"):
            raise JobFileError(f"schedule.{str(key)[:100]}: unknown key; it has cron and timezone.")
    cron, timezone = value.get("cron"), value.get("timezone", "UTC")
    if not isinstance(cron, str) or not cron.strip():
        raise JobFileError("schedule.cron: must be text such as 0 9 * * 1-5.")
    if not isinstance(timezone, str):
        raise JobFileError("schedule.timezone: must be a name such as Europe/Berlin.")
    return cron, timezone


def _servers(value: Any) -> tuple[AttachmentData, ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise JobFileError("servers: must be a mapping such as {everything: all}.")
    return tuple(
        AttachmentData(_key("servers", name), _tools(name, t)) for name, t in value.items()
    )


def _tools(server: Any, value: Any) -> tuple[str, ...] | None:
    if value == "all":
        return None
    if isinstance(value, list) and all(isinstance(tool, str) for tool in value):
        return tuple(dict.fromkeys(value))
    raise JobFileError(f"servers.{server}: must be all or a list of tools.")


def _secrets(value: Any) -> tuple[SecretData, ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise JobFileError("secrets: must be a mapping of variable to secret.")
    found = []
    for variable, secret in value.items():
        if not isinstance(secret, str):
            raise JobFileError(f"secrets.{variable}: must be the name of a secret.")
        found.append(SecretData(_key("secrets", variable), secret))
    return tuple(found)


def _key(section: str, key: Any) -> str:
    if not isinstance(key, str):
        raise JobFileError(f"{section}.{key}: must be text; put it in quotation marks.")
    return key
