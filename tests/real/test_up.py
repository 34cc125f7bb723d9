"""`umpteenth up` on this machine: it starts, mends itself, and leaves nothing behind.

Issue 2, section 1: address and claim link, a lock on the data directory, children that start
again and that end with it by whatever signal, everything gone in under five seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from umpteenth.cli.up import running_address
from umpteenth.supervisor import umpteenth_command

START_LIMIT = 40.0  # seconds; two cores that other tests use, too


def eventually(condition: Callable[[], bool], seconds: float = START_LIMIT) -> bool:
    """Whether it becomes true in time; processes tell nobody what they are doing."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


_numbers = itertools.count()


class Site:
    """An `umpteenth up` with a data directory of its own."""

    def __init__(self, data_dir: Path, *options: str, **variables: str) -> None:
        self.data_dir = data_dir
        # Two on one data directory keep their words apart.
        self.log = data_dir.parent / f"{data_dir.name}-{next(_numbers)}.log"
        environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environ |= {"UMPTEENTH_DATA_DIR": str(data_dir), **variables}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                umpteenth_command("up", "--port=0", *options),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
            )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.read()

    @property
    def address(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.greeting)
        assert found, self.greeting + self.log.read_text()
        return found[0]

    def health(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.address}/healthz", timeout=5) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except OSError:
            return {}

    def children(self) -> dict[str, psutil.Process]:
        """web, worker and beat by name."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie counts as none
                words = child.cmdline()
                found.update({name: child for name in ("web", "worker", "beat") if name in words})
        return found

    def everything(self) -> list[psutil.Process]:
        processes: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return processes

    def wait_until_ready(self) -> None:
        assert eventually(lambda: self.health().get("worker") is True), self.log.read_text()

    def kill(self) -> None:
        """For the end of a test, however it went."""
        if self.process.poll() is None:
            processes = self.everything()
            self.process.kill()
            psutil.wait_procs(processes, timeout=5)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def _start(*options: str, name: str = "data", **variables: str) -> Site:
        sites.append(Site(tmp_path / name, *options, **variables))
        return sites[-1]

    yield _start
    for site in sites:
        site.kill()


def gone(processes: list[psutil.Process], seconds: float = 5.0) -> bool:
    """A zombie has ended; who should take it away does not matter here."""
    return eventually(
        lambda: (
            not any(
                process.is_running() and process.status() != psutil.STATUS_ZOMBIE
                for process in processes
            )
        ),
        seconds,
    )


def test_it_prints_address_and_claim_link_and_serves_until_it_is_told_to_stop(
    start: Callable[..., Site],
) -> None:
    site = start()
    lines = site.greeting.splitlines()
    assert lines[0] == f"Umpteenth is at {site.address}"
    assert re.fullmatch(rf"  {re.escape(site.address)}/claim/\S{{20,}}", lines[2])
    site.wait_until_ready()
    with urllib.request.urlopen(f"{site.address}/sign-in/", timeout=10) as response:
        assert response.status == 200

    processes = site.everything()
    began = time.monotonic()
    site.process.send_signal(signal.SIGINT)
    assert site.process.wait(10) == 0
    assert time.monotonic() - began < 5
    assert gone(processes, 1)
    # Celery's own words about itself, and the made-up address of the embedded queue.
    assert "shutdown" not in site.log.read_text()
    assert "directory://" not in site.log.read_text()


def test_what_it_makes_is_for_its_owner_alone(start: Callable[..., Site]) -> None:
    site = start()
    site.wait_until_ready()
    assert stat.S_IMODE(site.data_dir.stat().st_mode) == 0o700
    others = [path for path in site.data_dir.rglob("*") if not path.is_socket()]
    assert len(others) > 4
    assert [path for path in others if path.stat().st_mode & 0o077] == []


def test_its_children_end_when_it_is_killed(start: Callable[..., Site]) -> None:
    site = start()
    site.wait_until_ready()
    processes = site.everything()
    assert len(processes) >= 3
    site.process.kill()
    assert gone(processes)


def test_a_child_that_is_killed_starts_again_on_the_same_address(
    start: Callable[..., Site],
) -> None:
    site = start()
    site.wait_until_ready()
    before = site.children()
    for child in before.values():
        child.kill()
    assert eventually(lambda: set(site.children()) == {"web", "worker", "beat"})
    assert eventually(lambda: site.health() != {})
    assert {child.pid for child in site.children().values()}.isdisjoint(
        {child.pid for child in before.values()}
    )


def test_other_commands_know_its_address(start: Callable[..., Site]) -> None:
    site = start()
    assert running_address(site.data_dir) == site.address


def test_a_second_one_on_the_same_data_directory_is_refused(start: Callable[..., Site]) -> None:
    first = start()
    second = start()
    assert second.process.wait(20) == 1
    sentence = f"Umpteenth already runs on the data directory {first.data_dir} "
    assert second.log.read_text() == f"{sentence}(process {first.process.pid}).\n"


def test_after_a_kill_it_starts_again_on_the_same_data_directory(
    start: Callable[..., Site],
) -> None:
    first = start()
    first.wait_until_ready()
    first.process.kill()
    first.process.wait()
    second = start()
    second.wait_until_ready()
    assert "/claim/" in second.greeting


def test_a_port_in_use_is_one_sentence(start: Callable[..., Site]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site = start(f"--port={port}")
        assert site.process.wait(20) == 1
    sentence = f"Port {port} is in use by another program; choose another with --port.\n"
    assert site.log.read_text() == sentence


def test_a_bad_option_is_one_sentence(start: Callable[..., Site]) -> None:
    site = start(UMPTEENTH_RUNS__MAX_CONCURRENT="0")
    assert site.process.wait(20) == 1
    assert site.log.read_text().startswith("runs.max_concurrent: ")
    assert len(site.log.read_text().splitlines()) == 1


def test_a_key_file_that_others_can_read_is_one_sentence(
    start: Callable[..., Site], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir(0o700)
    (tmp_path / "data" / "django.key").write_text("k" * 50)
    (tmp_path / "data" / "django.key").chmod(0o644)
    site = start()
    assert site.process.wait(20) == 1
    assert "can be read by others; run: chmod 600" in site.log.read_text()
    assert len(site.log.read_text().splitlines()) == 1


def test_a_lost_key_ring_stops_the_start_and_is_named(
    start: Callable[..., Site], tmp_path: Path
) -> None:
    first = start()
    first.wait_until_ready()
    first.kill()
    with sqlite3.connect(first.data_dir / "umpteenth.sqlite3") as database:
        ((key_id,),) = database.execute("SELECT key_id FROM secrets_vault_key").fetchall()
    ring = first.data_dir / "keyring"
    ring.unlink()
    second = start()
    assert second.process.wait(20) == 1
    sentence = second.log.read_text()
    assert key_id in sentence
    assert len(sentence.splitlines()) == 1
    assert not ring.exists()
