"""What a sandbox's user could read as one of this machine's, tried from inside (P3; issue 5,
section 6): accounts and keys that a group of the worker's opens, what /proc tells of others, and
the certificate authorities that it is to read.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.real.sandboxes import User, user_who

pytestmark = pytest.mark.real

SHADOW = Path("/etc/shadow")
PRIVATE = Path("/etc/ssl/private")


@pytest.fixture(scope="module", params=["own", "plain"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    with user_who(request.param) as user:
        yield user


@pytest.fixture(scope="module")
def grouped() -> Iterator[User]:
    """A plain user who is in the groups that may read them, and one more."""
    with user_who("plain") as user:
        groups = {path.stat().st_gid for path in (SHADOW, PRIVATE) if path.exists()} | {44_444}
        numbers = ",".join(map(str, sorted(groups - {0})))
        kept = [word for word in user.prefix if word != "--clear-groups"]
        yield replace(user, prefix=(*kept, "--groups", numbers))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give somebody groups")
@pytest.mark.parametrize("root", [False, True])
def test_accounts_are_closed_to_the_groups_of_the_worker(grouped: User, root: bool) -> None:
    """Which a plain user cannot put down; without a sandbox they do open it."""
    outside = subprocess.run([*grouped.prefix, "head", "-c1", SHADOW], check=False)
    assert outside.returncode == 0
    script = f"grep ^Groups /proc/self/status; head -c 40 {SHADOW}; ls -A {PRIVATE}"
    result = grouped.run(["bash", "-c", script], root=root)
    assert "65534" in result["out"]
    assert len(result["out"].splitlines()) == 1
    assert f"{SHADOW}' for reading: Permission denied" in result["err"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give somebody groups")
def test_the_groups_of_the_worker_are_told(grouped: User) -> None:
    gaps = grouped.run(["true"], limits={})["gaps"]
    [said] = [gap for gap in gaps if "groups" in gap and "Programs in sandboxes" in gap]
    assert "44444" in said
    assert not any("is the account" in gap for gap in gaps)


def test_who_has_no_groups_is_told_of_none(user: User) -> None:
    if user.prefix or not {*os.getgroups()} - {os.getegid()}:
        gaps = user.run(["true"], limits={})["gaps"]
        assert not any("Programs in sandboxes" in gap for gap in gaps)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("name", ["keys", "key-users", "kallsyms"])
def test_proc_tells_nothing_of_other_users_and_of_the_kernel(
    user: User, name: str, root: bool
) -> None:
    """Of others' keys the kernel shows a list to whoever has their number."""
    path = Path("/proc", name)
    if not path.exists():  # a kernel without it
        assert name == "kallsyms"
        return
    result = user.run(["head", "-c1", str(path)], root=root)
    assert (result["code"], result["out"]) == (1, "")
    assert "Permission denied" in result["err"]


@pytest.mark.parametrize("root", [False, True])
def test_certificate_authorities_are_seen_wherever_they_are(user: User, root: bool) -> None:
    """A file beside what else is of the worker's, and a directory; nothing else of that place."""
    place = user.data_dir.parent
    bundle, folder = place / "ca.pem", place / "authorities"
    bundle.write_text("an authority")
    folder.mkdir(exist_ok=True)
    (folder / "one.pem").write_text("another authority")
    named = ("env", f"SSL_CERT_FILE={bundle}", f"SSL_CERT_DIR={folder}")
    worker = replace(user, prefix=(*user.prefix, *named))
    script = f"cat $SSL_CERT_FILE $SSL_CERT_DIR/*; ls {place}; echo x >> $SSL_CERT_FILE"
    result = worker.run(["bash", "-c", script], root=root)
    assert result["out"] == "an authorityanother authorityauthorities\nca.pem\n"
    assert result["code"] == 1


def test_authorities_that_are_not_there_are_told(user: User) -> None:
    worker = replace(user, prefix=(*user.prefix, "env", "PIP_CERT=/nowhere/ca.pem"))
    gaps = worker.run(["true"], limits={})["gaps"]
    assert any("Sandboxes do not see what PIP_CERT names" in gap for gap in gaps)
    assert not any("Sandboxes do" in gap for gap in user.run(["true"], limits={})["gaps"])
