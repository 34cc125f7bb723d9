"""One party of a run beside another: what it sees of it, and what it can do to it (P7, P8, P26).

As the user who runs the tests and as a plain user; in both directions, and as root of a sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from jobs.sandbox.base import USER_IDS
from tests.real.sandboxes import User, user_who

pytestmark = pytest.mark.real

# It holds its mark in its environment, arguments, memory, files, a message queue's key and shared
# memory, and listens by an abstract name, on the loopback and in its own places.
VICTIM = r"""
import ctypes, os, socket, sys
mark = sys.argv[1]
kept = (mark + "-memory").encode()
for place in ("/tmp", "/dev/shm", "/var/tmp", "/workspace", os.environ["HOME"]):
    with open(f"{place}/{mark}", "w") as file:
        file.write(mark)
ctypes.CDLL(None).shmget(0x7075, 4096, 0o1666)
listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
listeners[0].bind("\0" + mark)
listeners[1].bind("/tmp/" + mark + ".sock")
listeners.append(socket.create_server(("127.0.0.1", 34567)))
for listener in listeners:
    listener.listen()
print("up", flush=True)
input()
"""
# Prints a word for each thing that it finds; the other's mark is cut in two, not to find itself.
PRYING = r"""
import ctypes, glob, os, signal, socket, subprocess, sys
mark = sys.argv[1] + sys.argv[2]
def found(word, act):
    try:
        if act():
            print(word)
    except OSError:
        pass
def anywhere(name):
    for path in glob.glob(f"/proc/[0-9]*/{name}"):
        try:
            if mark.encode() in open(path, "rb").read(1 << 20):
                return True
        except OSError:
            pass
def files():
    roots = ["/", *glob.glob("/proc/[0-9]*/root/"), *glob.glob("/proc/[0-9]*/cwd/")]
    for root in roots:
        said = subprocess.run(
            ["find", root, "-xdev", "-name", mark + "*"], capture_output=True, text=True
        )
        if mark in said.stdout:
            return True
    for place in ("/tmp", "/dev/shm", "/var/tmp", "/workspace", "/home", "/root"):
        if any(mark in name for _, _, names in os.walk(place) for name in names):
            return True
def connects(family, address):
    with socket.socket(family) as sock:
        sock.settimeout(2)
        return sock.connect_ex(address) == 0
for name in ("environ", "cmdline", "maps", "comm"):
    found(name, lambda: anywhere(name))
found("files", files)
found("shared memory", lambda: ctypes.CDLL(None).shmget(0x7075, 4096, 0o666) >= 0)
found("abstract socket", lambda: connects(socket.AF_UNIX, "\0" + mark))
found("socket", lambda: connects(socket.AF_UNIX, "/tmp/" + mark + ".sock"))
found("loopback", lambda: connects(socket.AF_INET, ("127.0.0.1", 34567)))
processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
found("processes", lambda: len(processes) > 8)
print("done", flush=True)
# Everything that it may signal: itself last, and of the other nothing.
for number in (signal.SIGSTOP, signal.SIGKILL):
    for pid in range(2, 400):
        if pid != os.getpid():
            try:
                os.kill(pid, number)
            except OSError:
                pass
os.kill(-1, signal.SIGKILL)
"""


@pytest.fixture(scope="module", params=["own", "plain"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    with user_who(request.param) as user:
        yield user


def place_of(user: User, party: str) -> Path:
    """A directory on the disk that is the party's."""
    place = user.data_dir.parent / f"place-{uuid4().hex[:8]}"
    place.mkdir(mode=0o711)
    if os.geteuid() == 0:
        owner = USER_IDS[party] if user.name == "own" else user.data_dir.stat().st_uid  # type: ignore[index]
        os.chown(place, owner, owner)
    return place


def beside(user: User, mine: str, others: str, *, root: bool = False) -> dict[str, Any]:
    """What party `mine` finds of a sandbox of party `others`, and whether that one outlives it."""
    mark = uuid4().hex
    other = {
        "argv": ["python3", "-c", VICTIM, mark],
        "party": others,
        "env": {"KEY": mark},
        "home": str(place_of(user, others)),
        "workspace": str(place_of(user, others)),
    }
    return user.run(
        ["python3", "-c", PRYING, mark[:10], mark[10:]],
        party=mine,
        root=root,
        workspace=str(place_of(user, mine)),
        others=[other],
        others_end=True,
    )


@pytest.mark.parametrize(
    ("mine", "others", "root"),
    [
        ("agent", "mcp", False),
        ("mcp", "agent", False),
        ("mcp", "mcp", False),
        ("agent", "agent", False),
        ("agent", "mcp", True),
        ("agent", "agent", True),
    ],
)
def test_a_party_neither_sees_nor_harms_another(
    user: User, mine: str, others: str, root: bool
) -> None:
    """P7: not even one of the same user, which is another server or another run."""
    result = beside(user, mine, others, root=root)
    assert result["out"] == "done\n", result
    assert result["others"] == [0]


def test_what_it_looks_for_would_be_found(user: User) -> None:
    """In one sandbox, where nothing keeps them apart."""
    mark = uuid4().hex
    both = f"""
        python3 -c '{VICTIM.replace("'", "'" + '"' + "'" + '"' + "'")}' {mark} < <(sleep 60) &
        until [ -e /tmp/{mark}.sock ]; do sleep 0.05; done
        exec python3 -c '{PRYING.replace("'", "'" + '"' + "'" + '"' + "'")}' {mark[:10]} {mark[10:]}
    """
    result = user.run(["bash", "-c", both], env={"KEY": mark})
    found = result["out"].splitlines()
    for word in ("environ", "cmdline", "files", "shared memory", "abstract socket", "socket"):
        assert word in found, result
    assert "loopback" in found
