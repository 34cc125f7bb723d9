"""Postgres, Redis and whole sites for the tests of this directory; everything ends with them."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

PROJECT = Path(__file__).parents[2]
PATIENCE = 40.0  # seconds; two cores that other tests use, too


def eventually(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for other processes; the first true answer."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)
    return answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Redis:
    """A Redis server of its own, which can be stopped and started again."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        options += ["--appendonly", "no", "--dir", str(self.folder)]
        self.process = subprocess.Popen(
            ["redis-server", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(self._answers, "Redis")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    folder = Path(tempfile.mkdtemp(prefix="ump-redis-"))
    server = Redis(free_port(), folder)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_port() -> Iterator[int]:
    """A Postgres cluster of its own. Root may not run one, so another user does."""
    folder = Path(tempfile.mkdtemp(prefix="ump-pg-", dir="/tmp"))
    prefix: list[str] = []
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))
    port, cluster = free_port(), folder / "cluster"

    def run(name: str, *arguments: str) -> None:
        subprocess.run(
            [*prefix, str(programs / name), *arguments],
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )

    run("initdb", "-D", str(cluster), "-A", "trust", "-U", "postgres", "--no-sync")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    run("pg_ctl", "-D", str(cluster), "-l", str(folder / "log"), "-o", options, "-w", "start")
    yield port
    run("pg_ctl", "-D", str(cluster), "-m", "immediate", "-w", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def public_copy_removed() -> Iterator[None]:
    yield
    from tests.real.plain_sites import remove_public_copy  # which needs this module

    remove_public_copy()


@dataclass
class Site:
    """A data directory with its options; workers and beats are started as a test needs them.

    `prefix`, `python` and `code` say who runs them, with what, from where.
    """

    data_dir: Path
    variables: dict[str, str]
    redis: Redis | None = None
    prefix: tuple[str, ...] = ()
    python: str = sys.executable
    code: Path = PROJECT
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    helper: subprocess.Popen[str] | None = None

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {**kept, "UMPTEENTH_DATA_DIR": str(self.data_dir), **self.variables}

    def command(self, *words: str) -> list[str]:
        return [*self.prefix, self.python, *words]

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """`worker` or `beat`, as containers start them."""
        with (self.data_dir.parent / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.command("-P", "-m", "umpteenth", name),
                env=self.environ,
                cwd=self.code,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
        process.send_signal(number)
        process.wait(20)
        self.processes.remove(process)

    def run(self, *words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """An `umpteenth` command."""
        return subprocess.run(
            self.command("-P", "-m", "umpteenth", *words),
            env=self.environ,
            cwd=self.code,
            input=input,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def migrate(self) -> None:
        """`umpteenth migrate`; in a file, what it made for another site is as good."""
        if "UMPTEENTH_DATABASE__URL" in self.variables:
            done = self.run("migrate")
            assert done.returncode == 0, done.stderr
            return
        owner = self.data_dir.parent.stat()
        self.data_dir.mkdir(mode=0o700, exist_ok=True)
        for name, content in migrated_files().items():
            path = self.data_dir / name
            path.write_bytes(content)
            path.chmod(0o600)
            os.chown(path, owner.st_uid, owner.st_gid)
        os.chown(self.data_dir, owner.st_uid, owner.st_gid)

    def json(self, *words: str, input: str | None = None) -> Any:
        done = self.run(*words, "--json", input=input)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def ask(self, function: str, *arguments: object) -> Any:
        """Call a function of `site_helper` in a process that stays."""
        if self.helper is None:
            self.helper = subprocess.Popen(
                self.command("-m", "tests.real.site_helper"),
                env=self.environ,
                cwd=self.code,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.helper.stdin is not None
        assert self.helper.stdout is not None
        self.helper.stdin.write(json.dumps([function, *arguments]) + "\n")
        self.helper.stdin.flush()
        answer = json.loads(self.helper.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def close(self) -> None:
        if self.helper is not None:
            self.helper.communicate()
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.data_dir.parent, ignore_errors=True)


def new_database(port: int) -> str:
    """The address of an empty database in the cluster: each site has keys of its own."""
    import psycopg

    name = f"site_{uuid4().hex[:12]}"
    address = f"postgresql://postgres@127.0.0.1:{port}/"
    with psycopg.connect(f"{address}postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return address + name


def new_site(variables: dict[str, str], redis: Redis | None = None) -> Site:
    folder = Path(tempfile.mkdtemp(prefix="ump-site-"))
    shown = f"{PROJECT / 'tests'},{PROJECT / 'docs' / 'examples'}"
    variables = {"UMPTEENTH_SANDBOX__READONLY_PATHS": shown, **variables}
    return Site(folder / "data", variables, redis)


@cache
def migrated_files() -> dict[str, bytes]:
    """The database of a site that keeps it in a file, with its keys."""
    with contextlib.closing(new_site({})) as site:
        done = site.run("migrate")
        assert done.returncode == 0, done.stderr
        return {path.name: path.read_bytes() for path in site.data_dir.iterdir()}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """SQLite with the embedded broker, then Postgres with Redis; one worker and one beat."""
    if request.param == "sqlite":
        made = new_site({})
    else:
        port: int = request.getfixturevalue("postgres_port")
        redis: Redis = request.getfixturevalue("redis_server")
        url = new_database(port)
        made = new_site({"UMPTEENTH_DATABASE__URL": url, "UMPTEENTH_REDIS__URL": redis.url}, redis)
    made.migrate()
    made.start("worker")
    made.start("beat")
    eventually(lambda: made.ask("workers"), "the worker's report")
    yield made
    made.close()
