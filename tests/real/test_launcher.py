"""Whatever dies, at whatever moment: nothing of a sandbox stays (C09; feasibility, section 17)."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from jobs.sandbox.launcher_client import KILLED, LAUNCHER, LauncherClient
from tests.real.sandboxes import (
    User,
    processes_with,
    user_who,
    wait_until_gone,
    wait_until_there,
)

pytestmark = pytest.mark.real

ROUNDS = 30


@pytest.fixture
def marker() -> str:
    """An argument of `sleep` that nobody else uses."""
    return f"9{uuid4().int % 10**12}"


@pytest.fixture
def client() -> Iterator[LauncherClient]:
    client = LauncherClient()
    yield client
    client.close()


class Exits:
    """Collects what the launcher reports."""

    def __init__(self) -> None:
        self._reports: queue.Queue[tuple[int, str]] = queue.Queue()

    def __call__(self, code: int, error: str) -> None:
        self._reports.put((code, error))

    def next(self) -> tuple[int, str]:
        return self._reports.get(timeout=10)


@pytest.fixture
def nothing() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def start(client: LauncherClient, nothing: int, *argv: str) -> tuple[str, Exits]:
    exits = Exits()
    return client.start(list(argv), [nothing] * 3, exits), exits


@pytest.mark.parametrize("name", ["own", "plain"])
def test_a_worker_killed_at_any_moment_leaves_no_process(name: str, marker: str) -> None:
    chance = random.Random(marker)
    with user_who(name) as user:
        for number in range(ROUNDS):
            guarded = ("guarded",) if number % 2 else ()
            _kill_in_the_middle(user, [marker, *guarded], chance.uniform(0, 0.15))
            assert wait_until_gone(marker) == []


def _kill_in_the_middle(user: User, arguments: list[str], seconds: float) -> None:
    worker = subprocess.Popen(
        user.trial("storm", *arguments), stdout=subprocess.PIPE, env=user.environment, cwd="/"
    )
    assert worker.stdout is not None
    with worker.stdout:
        assert worker.stdout.readline() == b"ready\n"
        # The moment is what is tried here: from before the launcher is up to the tenth sandbox.
        time.sleep(seconds)
        worker.kill()
        worker.wait()


def test_a_worker_that_ends_in_order_takes_its_sandboxes_along(marker: str) -> None:
    program = f"""
import os
from jobs.sandbox.launcher_client import shared
n = os.open(os.devnull, os.O_RDWR)
shared().start(["/bin/sleep", "{marker}"], [n, n, n], print)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    assert processes_with(marker) == []


def test_a_launcher_that_dies_is_replaced(
    client: LauncherClient, nothing: int, marker: str
) -> None:
    _, exits = start(client, nothing, "/bin/sleep", marker)
    assert client._connection is not None
    client._connection.process.kill()
    assert exits.next()[0] == KILLED
    assert wait_until_gone(marker) == []
    _, exits = start(client, nothing, "/bin/true")
    assert exits.next() == (0, "")


def test_a_kill_ends_one_sandbox_and_no_other(
    client: LauncherClient, nothing: int, marker: str
) -> None:
    first, exits = start(client, nothing, "/bin/sleep", marker)
    second, others = start(client, nothing, "/bin/sleep", f"{marker}1")
    client.kill(first)
    client.kill(first)
    client.kill("unknown")
    assert exits.next() == (KILLED, "")
    assert wait_until_there(f"{marker}1") != []
    client.kill(second)
    assert others.next() == (KILLED, "")


def test_a_program_that_cannot_be_executed_is_an_exit(client: LauncherClient, nothing: int) -> None:
    _, exits = start(client, nothing, "/no/such/program")
    assert exits.next() == (127, "")


def test_a_command_line_that_is_too_long_is_refused(client: LauncherClient, nothing: int) -> None:
    with pytest.raises(ValueError, match="120 KiB"):
        start(client, nothing, "/bin/true", "x" * 130_000)


def test_a_forked_child_neither_uses_nor_keeps_the_launcher(
    client: LauncherClient, nothing: int, marker: str
) -> None:
    """A copy of the socket in a child would keep the launcher alive after the worker's death."""
    program = f"""
import os, sys
from jobs.sandbox.launcher_client import shared
n = os.open(os.devnull, os.O_RDWR)
shared().start(["/bin/sleep", "{marker}"], [n, n, n], print)
if os.fork() == 0:
    assert not shared().running
    sys.stdin.read()
    os._exit(0)
print("forked", flush=True)
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"forked\n"
        worker.wait()
        # The child lives on until its standard input is closed, at the end of the block.
        assert wait_until_gone(f"/bin/sleep {marker}") == []


@pytest.fixture
def raw() -> Iterator[socket.socket]:
    """A launcher spoken to directly."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-ISE", str(LAUNCHER), str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    ours.settimeout(10)
    assert json.loads(ours.recv(1000))["event"] == "ready"
    yield ours
    ours.close()
    assert process.wait(timeout=10) == 0


@pytest.mark.parametrize(
    "message",
    [
        b"not json",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"op": "explode", "id": "1"}',
        b'{"op": "start", "id": "1"}',
        b'{"op": "start", "id": "1", "argv": []}',
        b'{"op": "start", "id": "1", "argv": ["/bin/true"], "limits": 3}',
        b'{"op": "start", "id": "1", "argv": ["/bin/true"]}',
    ],
)
def test_a_malformed_message_harms_nobody_else(
    raw: socket.socket, nothing: int, message: bytes
) -> None:
    raw.send(message)
    refused = json.loads(raw.recv(5000))
    assert refused["code"] == 126
    assert refused["error"]
    good = {"op": "start", "id": "good", "argv": ["/bin/true"], "limits": []}
    socket.send_fds(raw, [json.dumps(good).encode()], [nothing] * 3)
    assert json.loads(raw.recv(5000)) == {"event": "exit", "id": "good", "code": 0, "error": ""}


def test_signals_of_the_terminal_are_the_workers_business(
    client: LauncherClient, nothing: int
) -> None:
    client.ensure()
    assert client._connection is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        client._connection.process.send_signal(number)
    _, exits = start(client, nothing, "/bin/true")
    assert exits.next() == (0, "")


def test_a_hundred_at_once_all_end(client: LauncherClient, nothing: int) -> None:
    started = [start(client, nothing, "/bin/sh", "-c", f"exit {n % 7}") for n in range(100)]
    assert [exits.next()[0] for _, exits in started] == [n % 7 for n in range(100)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root enters a network that is not its own")
def test_a_listener_does_not_wait_for_the_loopback_of_a_sandbox_that_is_being_made() -> None:
    """bwrap tells of its child before it has given the loopback its address."""
    program = """
import sys, subprocess
from jobs.sandbox.launcher import listener_in
child = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(listener_in({"child-pid": child.pid}, 3128).getsockname())
child.kill()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("('127.0.0.1', 3128)\n", "")
