"""Run as root, tried from inside, as the user who runs the tests and as a plain user (P26).

Root inside its own namespaces only: nobody outside, and behind the same filter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.sandboxes import PLAIN_ID, PROJECT, User, user_who
from tests.real.test_escapes import OTHER_OUTCOMES, attempt

pytestmark = pytest.mark.real

FILE_CAPABILITIES = 0b11011  # chown, dac_override, fowner, fsetid


@pytest.fixture(scope="module", params=["own", "plain"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    with user_who(request.param) as user:
        yield user


def run(user: User, script: str, **request: Any) -> dict[str, Any]:
    return user.run(["bash", "-c", script], root=True, **request)


def test_it_is_root_inside(user: User) -> None:
    said = run(user, "id -un; id -u; id -G; echo $HOME $USER; touch ~/file && stat -c %u ~/file")
    assert said == {"code": 0, "out": "root\n0\n0\n/root root\n0\n", "err": ""}


def test_it_is_nobody_of_importance_outside(user: User) -> None:
    """Root of this machine is no user inside, whoever runs the worker."""
    inside, outside, count = run(user, "cat /proc/self/uid_map")["out"].split()
    assert (inside, count) == ("0", "1")
    # A plain user's launcher has a user namespace of its own in between, with one user in it.
    if user.name == "own" and os.geteuid() == 0:
        assert outside == "1000"


def test_it_may_do_with_its_own_files_as_it_likes_and_nothing_else(user: User) -> None:
    said = run(user, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")["out"]
    held = dict(line.split(":\t") for line in said.splitlines())
    assert (held.pop("NoNewPrivs"), held.pop("Seccomp")) == ("1", "2")
    assert {int(value, 16) for value in held.values()} == {FILE_CAPABILITIES}
    script = "echo mine > f; chmod 0 f; cat f; chown root:root f; chown 1000 f"
    own = run(user, script)
    assert own["out"] == "mine\n"
    assert "Invalid argument" in own["err"]


def test_what_could_lead_out_is_refused(user: User) -> None:
    outcomes = attempt(user, root=True)
    assert len(outcomes) >= 38
    assert outcomes == {name: OTHER_OUTCOMES.get(name, "EPERM") for name in outcomes}


@pytest.mark.parametrize(
    "place", ["/usr/x", "/etc/x", "/etc/passwd", "/dev/x", "/ump/x", "/proc/sys/kernel/hostname"]
)
def test_the_system_stays_as_it_is(user: User, place: str) -> None:
    assert run(user, f"echo x >> {place}")["code"] == 1


def test_files_of_others_stay_closed(user: User) -> None:
    """Of root of this machine as well: it stands for another user."""
    said = run(user, "cat /etc/shadow; cat " + str(user.data_dir / "secret"))
    assert said["out"] == ""


def test_no_process_without_the_filter_can_be_looked_into(user: User) -> None:
    """As root a second bwrap waits inside, which the filter comes after."""
    script = """
        for process in /proc/[0-9]*; do
            grep -q 'Seccomp:.*0' $process/status || continue
            echo unfiltered
            for file in mem environ; do cat $process/$file && echo open; done
            (exec 3<> $process/mem) && echo writable
        done
    """
    said = run(user, script)
    assert set(said["out"].split()) <= {"unfiltered"}
    expected = 2 if user.name == "own" and os.geteuid() == 0 else 0
    assert said["out"].count("unfiltered") == expected


def test_other_parties_are_out_of_its_sight(user: User) -> None:
    """P7, P26: root of a run's sandbox is not root of its servers'."""
    other = {
        "party": "mcp",
        "env": {"BRAVE_API_KEY": "key-of-the-server"},
        "argv": ["bash", "-c", "echo up; read", "argument-of-the-server"],
    }
    said = run(user, "cat /proc/*/environ /proc/*/cmdline /proc/*/maps", others=[other])
    assert "of-the-server" not in said["out"]


def test_its_files_belong_to_the_worker_or_its_user(user: User) -> None:
    workspace = user.data_dir.parent / f"workspace-{user.name}"
    workspace.mkdir(mode=0o711, exist_ok=True)
    owner = PLAIN_ID if user.name == "plain" else 1000
    if os.geteuid() == 0:
        os.chown(workspace, owner, owner)
    else:
        owner = os.geteuid()
    said = run(user, "mkdir d && echo x > d/f && chmod 0 d/f && ls -ln d", workspace=str(workspace))
    assert said["out"].split()[4:6] == ["0", "0"]
    assert Path(workspace, "d/f").stat().st_uid == owner


@pytest.mark.parametrize("root", [False, True])
def test_nothing_that_starts_the_command_obeys_its_variables(user: User, root: bool) -> None:
    """Else a package's library would run in a program that is root of this machine still, or that
    has no filter yet. The loader names each program that it starts."""
    env = {"LD_SHOW_AUXV": "1", "LD_LIBRARY_PATH": '/tmp/my "$libs"', "name": "kept"}
    said = user.run(["/usr/bin/env"], root=root, env=env)
    programs = [line.split()[1] for line in said["out"].splitlines() if "AT_EXECFN" in line]
    assert programs == ["/usr/bin/env"]
    held = dict(line.split("=", 1) for line in said["out"].splitlines() if "=" in line)
    assert {name: held[name] for name in env} == env
    assert not any("HELD_BACK" in name or name == "ump" for name in held)


def test_exit_codes_and_signals_are_told_as_ever(user: User) -> None:
    assert run(user, "exit 7")["code"] == 7
    assert run(user, "kill -9 $$")["code"] == 137
    assert user.run(["nothing-of-this-name"], root=True)["code"] == 127


def test_what_it_leaves_behind_ends_with_it(user: User) -> None:
    """C24."""
    from tests.real.sandboxes import wait_until_gone

    marker = f"{os.getpid()}7{len(user.name)}.25"
    said = run(user, f"setsid sleep {marker} > /dev/null 2>&1 & exit 0")
    assert said["code"] == 0
    assert wait_until_gone(f"sleep {marker}") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make such a machine")
def test_where_the_kernel_gives_no_user_namespaces_it_is_said_with_the_remedy() -> None:
    """P26: other sandboxes start there, and nothing runs as root of the machine instead."""
    done = subprocess.run(
        [sys.executable, str(PROJECT / "tests/real/closed_namespaces.py")],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT)},
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert found["problem"] == ""
    assert "allow it with sysctl user.max_user_namespaces=15000" in found["root_problem"]
    assert "ENOSPC" in found["root_problem"]


def test_a_guarded_network_goes_with_it(user: User) -> None:
    said = run(user, "curl -sS http://refused.example/; exit 0", egress={})
    assert said["events"] == [
        ["refused", "refused.example", "refused.example is not among the known ones."]
    ]
