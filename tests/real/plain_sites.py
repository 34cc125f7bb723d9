"""Whole sites for the user who runs the tests and for a plain user without any privilege.

The plain user has a copy of code and packages in a public directory, because a checkout may lie in
a private one. Packages are hard links: nobody writes to them, and half a gigabyte is not copied.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
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
    public = Path(tempfile.mkdtemp(prefix="ump-plain-"))
    try:
        with closing(_plain_site(public, wanted)) as site:
            yield site
    finally:
        shutil.rmtree(public)


def _plain_site(public: Path, variables: dict[str, str]) -> Site:
    public.chmod(0o755)
    code, home = public / "code", public / "home"
    _copy_code(code)
    home.mkdir()
    packages = public / "packages"
    linked = subprocess.run(["cp", "-al", PACKAGES, packages], check=False, capture_output=True)
    if linked.returncode:  # another file system
        shutil.rmtree(packages, ignore_errors=True)
        subprocess.run(["cp", "-a", PACKAGES, packages], check=True)
    paths = {"HOME": str(home), "PYTHONPATH": f"{code}:{packages}"}
    paths["UMPTEENTH_SANDBOX__READONLY_PATHS"] = str(code / "tests")
    site = new_site({**paths, **variables})
    # Where the uv package looks for its programs in a directory of packages alone.
    (packages / "bin").mkdir(exist_ok=True)
    for name in ("uv", "uvx"):
        shutil.copy(Path(uv.find_uv_bin()).with_name(name), packages / "bin")
    site.code, site.python = code, system_python()
    user = str(PLAIN_ID)
    site.prefix = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")
    site.prefix += ("--inh-caps=-all",)
    _give_sockets_a_place(site)
    subprocess.run(["chown", "-R", f"{user}:{user}", home, site.data_dir.parent], check=True)
    return site


def _copy_code(code: Path) -> None:
    for part in CODE:
        shutil.copytree(PROJECT / part, code / part, ignore=shutil.ignore_patterns("__pycache__"))
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
