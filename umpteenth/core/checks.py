"""System checks: settings that are valid and yet unwise; `umpteenth doctor` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, Warning, register

from umpteenth.core.config import Options, get_options

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@register(Tags.security)
def check_options(
    app_configs: Sequence[AppConfig] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    options = get_options()
    return [
        *_check_address(options),
        *_check_data_dir(options),
        *_check_storage(options),
        *_check_proxies(options),
    ]


def _check_address(options: Options) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    host = options.app.bind.rpartition(":")[0].strip("[]")
    address = urlsplit(options.app_url)
    if options.app.debug and host not in _LOOPBACK:
        found.append(
            Warning(
                f"Error pages show source code to everybody who reaches {options.app.bind}.",
                hint="Remove app.debug from the configuration.",
                id="umpteenth.W001",
            )
        )
    if options.app.url is None and host not in _LOOPBACK:
        found.append(
            Warning(
                f"Umpteenth listens on {options.app.bind} and believes any host name.",
                hint="Set app.url to the address that people type.",
                id="umpteenth.W002",
            )
        )
    if address.scheme == "http" and options.app.url and address.hostname not in _LOOPBACK:
        found.append(
            Warning(
                f"Passwords travel unencrypted to {options.app_url}.",
                hint="Put a proxy with TLS in front and set app.url to its https address.",
                id="umpteenth.W003",
            )
        )
    return found


def _check_data_dir(options: Options) -> list[CheckMessage]:
    path = options.data_dir
    if not path.exists() or not path.stat().st_mode & 0o077:
        return []
    return [
        Warning(
            f"Other users of this machine can look into the data directory {path}.",
            hint=f"Run: chmod 700 {path}",
            id="umpteenth.W004",
        )
    ]


def _check_storage(options: Options) -> list[CheckMessage]:
    url = options.database.url
    on_postgres = url is not None and url.get_secret_value().startswith("postgres")
    if options.storage.backend != "database" or on_postgres:
        return []
    return [
        Warning(
            "Files of runs are kept in SQLite: while one is written, nothing else can be.",
            hint="Leave storage.backend as it is by default, or use Postgres.",
            id="umpteenth.W007",
        )
    ]


def _check_proxies(options: Options) -> list[CheckMessage]:
    """Where the only way out leads through a proxy, whatever does without it would time out."""
    from urllib.request import getproxies_environment  # not for every process

    if not {"http", "https", "all"} & getproxies_environment().keys():
        return []
    network = options.network
    found: list[CheckMessage] = []
    if not network.allow_private_targets or network.blocked_targets:
        found.append(
            Warning(
                "The proxies that the environment names are not used, because "
                "network.allow_private_targets or network.blocked_targets rules addresses out.",
                hint="A proxy resolves names on its own. Let it rule those addresses out, and "
                "leave both options as they are by default.",
                id="umpteenth.W005",
            )
        )
    if network.sandbox_proxy is None:
        found.append(
            Warning(
                "Jobs do not use the proxies that the environment names: what runs in sandboxes "
                "is connected straight from this machine.",
                hint="If this machine has no other way out, set network.sandbox_proxy.",
                id="umpteenth.W006",
            )
        )
    return found
