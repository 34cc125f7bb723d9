"""What an installed package holds besides its modules."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from jobs.sandbox.programs import NAMES

PROJECT = Path(__file__).parents[2]
# Packages of Debian that are called otherwise than their program.
DEBIAN = {"node": "nodejs", "rg": "ripgrep"}


def test_every_file_that_the_code_reads_is_installed_with_it() -> None:
    """Node of a sandbox loads one: without it no run with a guarded network would start."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    declared = {
        str(Path(package, name))
        for package, names in project["tool"]["setuptools"]["package-data"].items()
        for name in names
    }
    found = {
        str(path.relative_to(PROJECT))
        for package in ("jobs", "secrets_vault", "servers", "umpteenth")
        for path in (PROJECT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert found == declared


@pytest.mark.parametrize("file", ["Dockerfile", "docs/sandbox.Dockerfile"])
def test_images_hold_what_scripts_expect(file: str) -> None:
    """uv comes with the worker's own packages."""
    words = (PROJECT / file).read_text().split()
    packages = {DEBIAN.get(name, name) for name in NAMES} - {"uv"}
    assert packages | {"openssh-client", "procps"} <= set(words)
