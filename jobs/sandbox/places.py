"""Which places of this machine a sandbox sees, and which it never sees."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umpteenth.core.config import Options

# Bundles of certificate authorities that clients look for.
CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
)


@dataclass(frozen=True)
class Places:
    """Host paths that matter to every sandbox of this installation.

    `readonly` is shown read-only at the same path; `hidden` is covered wherever a shown
    directory would reveal it.
    """

    data_dir: Path
    readonly: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    uv: Path | None = None
    certificates: Mapping[str, str] | None = None

    @classmethod
    def from_options(cls, options: Options) -> Places:
        from umpteenth.core.config import PROJECT_ROOT, python_environment

        shown = options.sandbox.readonly_paths
        if shown is None:
            shown = (*python_environment(), PROJECT_ROOT / "docs" / "examples")
        hidden = (options.data_dir, *_own_files(os.environ))
        return cls(
            data_dir=options.data_dir,
            readonly=_existing(shown),
            hidden=hidden,
            uv=find_uv(),
            certificates=visible_certificates(os.environ, hidden),
        )

    def bundles(self) -> Iterator[Path]:
        """What `certificates` names, and what that links to."""
        for name, value in (self.certificates or {}).items():
            yield from _existing(_named(name, value))

    def gaps(self) -> tuple[str, ...]:
        """A sentence with the remedy where sandboxes lack certificates that the worker has."""
        held = self.certificates or {}
        lost = [n for n in CERTIFICATE_VARIABLES if os.environ.get(n) and n not in held]
        if not lost:
            return ()
        return (
            f"Sandboxes do not see what {', '.join(lost)} names: let it be the whole path of what "
            "is there, outside of the data directory (docs/network.md).",
        )


def _existing(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths that exist, each followed by what it links to."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.exists():
            found[path] = found[path.resolve()] = None
    return tuple(found)


def _own_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Files with options and secrets of ours, wherever the operator keeps them."""
    from umpteenth.core.config import CONFIG_VARIABLE, PREFIX, PROJECT_ROOT

    named = [
        value
        for name, value in environ.items()
        if value and name.startswith(PREFIX) and (name.endswith("_FILE") or name == CONFIG_VARIABLE)
    ]
    return (*(Path(value).absolute() for value in named), PROJECT_ROOT / "config.yml")


def visible_certificates(environ: Mapping[str, str], hidden: Iterable[Path] = ()) -> dict[str, str]:
    """The worker's settings of certificate authorities, which hold inside a sandbox too: what they
    name is shown there, but for what is hidden."""
    ours = [path.resolve() for path in hidden]
    found = {}
    for name in CERTIFICATE_VARIABLES:
        named = _named(name, environ.get(name, ""))
        if shown := [str(path) for path in named if _may_be_shown(path, ours)]:
            found[name] = ":".join(shown)
    return found


def _named(name: str, value: str) -> list[Path]:
    """What such a variable names: OpenSSL takes several directories."""
    return [Path(part) for part in (value.split(":") if name == "SSL_CERT_DIR" else [value])]


def _may_be_shown(path: Path, hidden: Iterable[Path]) -> bool:
    real = path.resolve()
    is_there = path.is_absolute() and os.path.exists(real) and real != Path("/")
    return is_there and not any(real.is_relative_to(place) for place in hidden)


def find_uv() -> Path | None:
    """The uv program of the wheel, or of the system where the wheel brings none."""
    try:
        import uv

        return Path(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
        return Path(found) if found else None


def system_python() -> str:
    """A Python that every sandbox sees: the system's, else the one that runs this."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.access(path, os.X_OK):
            return path
    return sys.executable
