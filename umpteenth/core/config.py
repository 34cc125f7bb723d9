"""Typed options: `config.yml`, then `UMPTEENTH_<SECTION>__<OPTION>`, each also as `…_FILE`.

The environment wins over the file. Whatever is unknown or out of range raises `ConfigError`
with one sentence that names the option, so that a start stops before anything is half done.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

PREFIX = "UMPTEENTH_"
# Read before any option: where the options themselves and everything else live.
DATA_DIR_VARIABLE = "UMPTEENTH_DATA_DIR"
CONFIG_VARIABLE = "UMPTEENTH_CONFIG"
PROJECT_ROOT = Path(__file__).resolve().parents[2]
_EVERYWHERE = ("0.0.0.0", "[::]")
_LISTS = (
    ("app", "trusted_proxies"),
    ("network", "blocked_targets"),
    ("network", "own_targets"),
    ("sandbox", "readonly_paths"),
)


class ConfigError(Exception):
    """An option that cannot be used; the message is one sentence for the operator."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_networks(value: tuple[str, ...]) -> tuple[str, ...]:
    for item in value:
        try:
            ipaddress.ip_network(item, strict=False)
        except ValueError:
            raise ValueError(f"{item!r} is not an IP address or network") from None
    return value


class AppOptions(_Section):
    url: str | None = None
    bind: str = "127.0.0.1:8080"
    trusted_proxies: tuple[str, ...] = ()
    debug: bool = False
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http or https address such as https://ump.example.org")
        if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise ValueError("must be only scheme, host and port, without a path")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("must have a port between 1 and 65535, or none") from None
        return value.rstrip("/")

    @field_validator("bind")
    @classmethod
    def _check_bind(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError("must be host:port such as 127.0.0.1:8080")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _check_networks(value)


def _has_ports(url: str) -> bool:
    """Whether each port that it names is one."""
    try:
        parts = urlsplit(url)
        named = dict(parse_qsl(parts.query)).get("port") or str(parts.port or "")
        return all(not port or 0 < int(port) < 65536 for port in named.split(","))
    except ValueError:
        return False


class DatabaseOptions(_Section):
    url: SecretStr | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(
            ("postgres://", "postgresql://", "sqlite:////")
        ):
            raise ValueError("must begin with postgresql:// or sqlite://// and an absolute path")
        if value is not None and not _has_ports(value.get_secret_value()):
            raise ValueError(
                "must have ports between 1 and 65535, or none; several hosts stand behind a "
                "question mark: postgresql:///name?host=one,two&port=5432,5433"
            )
        return value


class RedisOptions(_Section):
    url: SecretStr | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(
            ("redis://", "rediss://", "unix://")
        ):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        if value is not None and not _has_ports(value.get_secret_value()):
            raise ValueError("must have a port between 1 and 65535, or none")
        return value


class SecurityOptions(_Section):
    # Both live as files in the data directory unless given here (several machines share them).
    secret_key: SecretStr | None = None
    key_ring: SecretStr | None = None


class RunsOptions(_Section):
    max_concurrent: Annotated[int, Field(ge=1, le=256)] = 4


class EngineOptions(_Section):
    # The socket of Docker or Podman; it has to be on the worker's machine.
    url: str = "unix:///var/run/docker.sock"
    # What sandboxes without an environment of their own are made of.
    image: Annotated[str, Field(min_length=1, max_length=255)] = "umpteenth-sandbox"
    # A runtime that the engine knows, such as runsc; empty for its default.
    runtime: str = ""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if not value.startswith("unix:///"):
            raise ValueError("must be a socket of this machine such as unix:///run/docker.sock")
        return value


class SandboxOptions(_Section):
    # What makes sandboxes.
    adapter: Literal["bubblewrap", "engine"] = "bubblewrap"
    engine: EngineOptions = EngineOptions()
    # None: the project's own environment and docs/examples (see jobs.sandbox).
    readonly_paths: tuple[Path, ...] | None = None
    allow_unrestricted_network: bool = True
    # MiB that the home of one stdio server may hold.
    server_home_limit: Annotated[int, Field(ge=16, le=1024 * 1024)] = 2048
    # MiB that one environment may take, seconds that building it may take, and days after
    # which one that no run has used is removed.
    environment_size: Annotated[int, Field(ge=16, le=1024 * 1024)] = 4096
    environment_time_limit: Annotated[int, Field(ge=10, le=86_400)] = 1800
    environment_days: Annotated[int, Field(ge=1, le=3650)] = 30

    @field_validator("readonly_paths")
    @classmethod
    def _check_paths(cls, value: tuple[Path, ...] | None) -> tuple[Path, ...] | None:
        for path in value or ():
            if not path.is_absolute():
                raise ValueError(f"{path} is not an absolute path")
        return value


def _is_proxy(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class NetworkOptions(_Section):
    # Whether what runs here may reach private addresses and local sockets (P77, U12).
    allow_private_targets: bool = True
    # Addresses and networks that nothing here may reach, whatever else is allowed.
    blocked_targets: tuple[str, ...] = ()
    # Services of this installation that guarded sandboxes never reach, besides those known.
    own_targets: tuple[str, ...] = ()
    # The HTTP proxy through which guarded sandboxes get out; None: straight from this machine.
    sandbox_proxy: SecretStr | None = None
    # Whether it gets names and resolves them itself, which gives up that addresses are checked.
    sandbox_proxy_resolves: bool = False

    @field_validator("blocked_targets")
    @classmethod
    def _check_blocked(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _check_networks(value)

    @field_validator("own_targets")
    @classmethod
    def _check_own(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for item in value:
            host, _, port = item.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{item!r} is not host:port such as web:8080")
        return value

    @field_validator("sandbox_proxy")
    @classmethod
    def _check_proxy(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _is_proxy(value.get_secret_value()):
            raise ValueError("must be an http or https address such as http://proxy:3128")
        return value


class S3Options(_Section):
    bucket: str = ""
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    # None: what the environment, the machine's role or AWS's own files give.
    access_key: str | None = None
    secret_key: SecretStr | None = None
    addressing: Literal["auto", "virtual", "path"] = "auto"

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        parts = urlsplit(value) if value else None
        if parts and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("must be an http or https address such as https://s3.example.org")
        return value

    @model_validator(mode="after")
    def _check_keys(self) -> S3Options:
        if bool(self.access_key) != bool(self.secret_key):
            raise ValueError("give both access_key and secret_key, or neither")
        return self


class StorageOptions(_Section):
    # Where the files of runs lie: artifacts, and values too large for their event.
    backend: Literal["directory", "database", "s3"] = "directory"
    s3: S3Options = S3Options()

    @model_validator(mode="after")
    def _check_bucket(self) -> StorageOptions:
        if self.backend == "s3" and not self.s3.bucket:
            raise ValueError("the backend s3 needs storage.s3.bucket")
        return self


class McpOptions(_Section):
    # Check enabled servers at start and then regularly (U2).
    auto_connect: bool = True


class Options(_Section):
    app: AppOptions = AppOptions()
    database: DatabaseOptions = DatabaseOptions()
    redis: RedisOptions = RedisOptions()
    security: SecurityOptions = SecurityOptions()
    runs: RunsOptions = RunsOptions()
    sandbox: SandboxOptions = SandboxOptions()
    network: NetworkOptions = NetworkOptions()
    storage: StorageOptions = StorageOptions()
    mcp: McpOptions = McpOptions()
    data_dir: Path

    @property
    def app_url(self) -> str:
        """The address people type, without a trailing slash."""
        if self.app.url:
            return self.app.url
        host, _, port = self.app.bind.rpartition(":")
        # Nobody can open the address that means "all of this machine's".
        return f"http://{'localhost' if host in _EVERYWHERE else host}:{port}"


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """`./data` in a checkout, else the platform's place for application data."""
    if running_in_checkout():
        return PROJECT_ROOT / "data"
    base = environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "umpteenth"


def load_options(environ: Mapping[str, str] | None = None) -> Options:
    """Read all options. Raises `ConfigError`."""
    environ = os.environ if environ is None else environ
    data_dir = Path(environ.get(DATA_DIR_VARIABLE) or default_data_dir(environ)).absolute()
    values: dict[str, Any] = dict(_read_file(environ, data_dir))
    for section, option, value, source in _from_environment(environ):
        if section not in Options.model_fields or section == "data_dir":
            raise ConfigError(f"{source} names no section of the configuration.")
        _put(values.setdefault(section, {}), option.split("__"), value)
    values["data_dir"] = data_dir
    try:
        return Options.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_one_sentence(error)) from None


def _read_file(environ: Mapping[str, str], data_dir: Path) -> dict[str, dict[str, Any]]:
    path = _find_file(environ, data_dir)
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(f"The configuration file {path} cannot be read: {reason}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"The configuration file {path} must be a mapping of sections.")
    for section, options in content.items():
        if section not in Options.model_fields or section == "data_dir":
            raise ConfigError(f"{path}: {section!r} names no section of the configuration.")
        if options is not None and not isinstance(options, dict):
            raise ConfigError(f"{path}: section {section!r} must be a mapping of options.")
    if _holds_keys(content) and path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} holds keys and can be read by others; run: chmod 600 {path}")
    return {
        section: {str(option): value for option, value in (options or {}).items()}
        for section, options in content.items()
    }


def _holds_keys(content: Mapping[str, Any]) -> bool:
    s3 = (content.get("storage") or {}).get("s3")
    proxy = (content.get("network") or {}).get("sandbox_proxy")
    return (
        bool(content.get("security"))
        or (isinstance(s3, dict) and "secret_key" in s3)
        or "@" in str(proxy)
    )


def _find_file(environ: Mapping[str, str], data_dir: Path) -> Path | None:
    """The named file, which must exist, else config.yml in the data directory or a checkout."""
    named = environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    places = (data_dir / "config.yml", PROJECT_ROOT / "config.yml")
    return next((path for path in places if path.exists() or path.is_symlink()), None)


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, Any, str]]:
    """(section, option, value, variable) of each variable that is set and not empty."""
    found = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in (DATA_DIR_VARIABLE, CONFIG_VARIABLE):
            continue
        section, separator, option = name[len(PREFIX) :].lower().partition("__")
        if not separator:
            raise ConfigError(f"{name} is no option of Umpteenth; see config.example.yml.")
        value = environ[name]
        if not value:
            continue  # compose files pass unset variables on as empty ones
        if option.endswith("_file"):
            option = option.removesuffix("_file")
            if environ.get(name.removesuffix("_FILE")):
                raise ConfigError(f"Set only one of {name.removesuffix('_FILE')} and {name}.")
            value = _read_value_file(name, value)
        found.append((section, option, _split_list(section, option, value), name))
    return found


def _put(options: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the option at `path`: the last is its name, those before it are its sections."""
    for name in path[:-1]:
        inner = options.get(name)
        options[name] = options = dict(inner) if isinstance(inner, dict) else {}
    options[path[-1]] = value


def _read_value_file(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"The file {path} that {name} names cannot be read: {reason}.") from None


def _split_list(section: str, option: str, value: str) -> Any:
    """Lists are comma-separated in variables."""
    if (section, option) in _LISTS:
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def _one_sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    if first["type"] == "extra_forbidden":
        return f"{where} is no option of Umpteenth; see config.example.yml."
    if first["type"] == "tuple_type":  # the library's word for a list
        return f"{where}: must be a list such as [one, two]."
    reason = first["msg"].removeprefix("Value error, ")
    return f"{where}: {reason[0].lower()}{reason[1:]}."


@lru_cache(maxsize=1)
def get_options() -> Options:
    """The options of this process, read once."""
    return load_options()


def running_in_checkout() -> bool:
    return (PROJECT_ROOT / "manage.py").exists()


def python_environment() -> tuple[Path, ...]:
    """Directories that this interpreter and its packages need, outside of /usr."""
    prefixes = dict.fromkeys([Path(sys.prefix), Path(sys.base_prefix)])
    return tuple(path for path in prefixes if not path.is_relative_to("/usr"))
