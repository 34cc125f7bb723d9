"""Threads that everything else depends on outlive what goes wrong in them."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from jobs import worker
from jobs.environments import keeper
from jobs.sandbox import launcher_client
from jobs.sandbox.base import Exit, Limits
from jobs.sandbox.cgroups import Group
from jobs.sandbox.launcher_client import LauncherClient, LauncherUnusable
from jobs.sandbox.process import _End


class FakeLauncher:
    """The other side of a client: answers as it is told to."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen(["true"])
        self.connection = launcher_client._Connection(ours, process, True, {}, {}, {})

    def exited(self, name: str) -> None:
        message = {"event": "exit", "id": name, "code": 3, "error": ""}
        self.sock.send(json.dumps(message).encode())


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLauncher]:
    fake = FakeLauncher()
    monkeypatch.setattr(launcher_client, "_connect", lambda: fake.connection)
    yield fake
    fake.sock.close()


def broken(code: int, error: str) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_an_exit_that_comes_to_nothing_is_not_the_last(launcher: FakeLauncher) -> None:
    client = LauncherClient()
    heard: queue.Queue[int] = queue.Queue()
    client.start(["x"], (), broken)
    second = client.start(["x"], (), lambda code, error: heard.put(code))
    client.start(["x"], (), broken)
    client.start(["x"], (), lambda code, error: heard.put(code))
    launcher.exited("1")
    launcher.sock.send(b"no JSON")
    launcher.exited(second)
    assert heard.get(timeout=5) == 3
    launcher.sock.close()  # the rest hear of its end, whoever breaks
    assert heard.get(timeout=5) == launcher_client.KILLED


@pytest.mark.usefixtures("no_threads")
def test_a_launcher_that_nobody_can_listen_to_is_not_used(launcher: FakeLauncher) -> None:
    client = LauncherClient()
    with pytest.raises(LauncherUnusable, match="new thread"):
        client.ensure()
    assert not client.running
    assert launcher.sock.recv(1) == b""


async def test_whoever_waits_hears_of_the_end_whatever_becomes_of_the_group() -> None:
    class Broken(Group):
        def remove(self) -> None:
            raise OSError(5, "Input/output error")

    loop = asyncio.get_running_loop()
    end = _End(loop, exited := loop.create_future(), Broken([], ()), Limits())
    with pytest.raises(OSError, match="Input"):
        end.report(7, "")
    found: Exit = await asyncio.wait_for(exited, 5)
    assert found.code == 7


class Stopping(threading.Event):
    """Stops after the second look."""

    waited = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waited += 1
        return self.waited == 2


@pytest.mark.parametrize(
    ("work", "place"),
    [
        (worker.tidy, "jobs.leftovers.remove_leftovers"),
        (keeper.keep, "jobs.environments.keeper.Keeper.look"),
    ],
)
def test_a_look_of_the_worker_that_breaks_is_not_the_last(
    work: Callable[[threading.Event], None],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def look(*_: object) -> None:
        raise KeyError("what nobody thought of")

    monkeypatch.setattr(place, look)
    monkeypatch.setattr("jobs.worker.connection.close", lambda: None)
    stopping = Stopping()
    with caplog.at_level(logging.WARNING):
        work(stopping)
    assert stopping.waited == 2
    assert caplog.text.count("what nobody thought of") >= 2
