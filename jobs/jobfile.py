"""The YAML job file of the command line (design.md, section 6), read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from jobs.definition import AttachmentData, JobData, SecretData
from jobs.models import DEFAULT_TIMEOUT, Job
from jobs.network import GUARDED

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
    "enabled",
)


class JobFileError(ValueError):
    """A file that is no job; one sentence that names the key."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice: YAML would silently keep the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool | None):
            raise JobFileError("A key of the job file must be a word.")
        if key in seen:
            raise JobFileError(f"{str(key)[:100]}: this key stands twice.")
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_job_file(text: str) -> JobData:
    """Raises `JobFileError`. What the values mean is checked by `jobs.services`."""
    if len(text) > MAX_BYTES:
        raise JobFileError("The job file is larger than 2 MiB.")
    if "&" in text and _has_alias(text):
        raise JobFileError("A job file has no anchors and aliases (& and *).")
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise JobFileError(_yaml_sentence(error)) from None
    except JobFileError:
        raise
    except Exception:  # the loader's own for a tag whose value does not fit, such as `!!bool x`
        raise JobFileError("The job file is not YAML that can be read.") from None
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
        timeout=_seconds(content.get("timeout", DEFAULT_TIMEOUT)),
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


def _seconds(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise JobFileError("timeout: must be a whole number of seconds.")
    return value


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


def _has_alias(text: str) -> bool:
    """Aliases can blow a small file up to gigabytes; a job has no use for them."""
    try:
        return any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
    except yaml.YAMLError:
        return False


def _yaml_sentence(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1})" if mark is not None else ""
    problem = getattr(error, "problem", None) or "it cannot be read"
    return f"The job file is not YAML{where}: {problem}."
