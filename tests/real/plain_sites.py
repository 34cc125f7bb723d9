"""Whole sites for the user who runs the tests and for a plain user without any privilege.

The plain user has a copy of code and packages in a public directory, because a checkout may lie in
a private one. Packages are hard links: nobody writes to them, and half a gigabyte is not copied.
All sites of one process of tests share it, for it takes seconds to make and to remove.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import django
import uv

from jobs.sandbox.places import system_python, visible_certificates
from tests.real.conftest import PROJECT, Site, new_site
from tests.real.sandboxes import PLAIN_ID

PACKAGES = Path(django.__file__).parents[1]
CODE = ("umpteenth", "secrets_vault", "servers", "jobs", "templates", "static", "tests/fakes")
USERS = ("own", "plain")


@contextmanager
def site_of(name: str, variables: dict[str, str] | None = None) -> Iterator[Site]:
    """`own`: whoever runs the tests. `plain`: a user of no rights, which is the same where the
    tests are not run by root. Its sockets lie beside its data, so that they can be counted."""
    wanted = {**visible_certificates(os.environ), **(variables or {})}
    if name == "own" or os.geteuid() != 0:
        with closing(new_site(wanted)) as site:
            _give_sockets_a_place(site)
            yield site
        return
    with closing(_plain_site(public_copy(), wanted)) as site:
        yield site


def _plain_site(public: Path, variables: dict[str, str]) -> Site:
    code = public / "code"
    paths = {"PYTHONPATH": f"{code}:{public / 'packages'}"}
    paths["UMPTEENTH_SANDBOX__READONLY_PATHS"] = str(code / "tests")
    site = new_site({**paths, **variables})
    home = site.data_dir.parent / "home"
    home.mkdir()
    site.variables["HOME"] = str(home)
    site.code, site.python = code, system_python()
    user = str(PLAIN_ID)
    site.prefix = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")
    site.prefix += ("--inh-caps=-all",)
    _give_sockets_a_place(site)
    subprocess.run(["chown", "-R", f"{user}:{user}", home, site.data_dir.parent], check=True)
    return site


@cache
def public_copy() -> Path:
    """Made when it is first asked for; `remove_public_copy` takes it away."""
    public = Path(tempfile.mkdtemp(prefix="ump-plain-"))
    public.chmod(0o755)
    _copy_code(public / "code")
    packages = public / "packages"
    linked = subprocess.run(["cp", "-al", PACKAGES, packages], check=False, capture_output=True)
    if linked.returncode:  # another file system
        shutil.rmtree(packages, ignore_errors=True)
        subprocess.run(["cp", "-a", PACKAGES, packages], check=True)
    # Where the uv package looks for its programs in a directory of packages alone.
    (packages / "bin").mkdir(exist_ok=True)
    for name in ("uv", "uvx"):
        shutil.copy(Path(uv.find_uv_bin()).with_name(name), packages / "bin")
    return public


def remove_public_copy() -> None:
    if public_copy.cache_info().currsize:
        shutil.rmtree(public_copy())
        public_copy.cache_clear()


def _copy_code(code: Path) -> None:
    # With what is compiled of it: the plain user may not keep that himself.
    for part in CODE:
        shutil.copytree(PROJECT / part, code / part)
    (code / "tests/real").mkdir()
    for package in ("tests", "tests/real"):
        (code / package / "__init__.py").touch()
    shutil.copy(PROJECT / "tests/real/site_helper.py", code / "tests/real")
    (code / "docs/examples").mkdir(parents=True)
    subprocess.run(["chmod", "-R", "a+rX", str(code)], check=True)


def _give_sockets_a_place(site: Site) -> None:
    sockets = site.data_dir.parent / "s"
    sockets.mkdir()
    site.variables["XDG_RUNTIME_DIR"] = str(sockets)
