"""Users to try sandboxes as, and eyes for what they leave behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyseccomp

from jobs.sandbox.places import system_python, visible_certificates

PROJECT = Path(__file__).parents[2]
# An id that no user has: a plain user with nothing of his own.
PLAIN_ID = 33_333


@dataclass(frozen=True)
class User:
    """Somebody who runs a worker: how to start Python as him, from which code."""

    name: str
    prefix: tuple[str, ...]
    python: str
    code: Path
    data_dir: Path
    # Options of an engine that makes the sandboxes in place of bubblewrap.
    engine: dict[str, str] | None = None
    # Trials under way, by their prefix.
    trials: dict[tuple[str, ...], Trial] = field(default_factory=dict)

    def trial(self, *arguments: str) -> list[str]:
        return [
            *self.prefix,
            self.python,
            str(self.code / "tests/real/sandbox_trial.py"),
            *arguments,
        ]

    @property
    def environment(self) -> dict[str, str]:
        return {
            **visible_certificates(os.environ),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.code),
            "PYTHONWARNINGS": "error",
        }

    def run(self, argv: list[str], **request: Any) -> dict[str, Any]:
        """Run a command in a sandbox; `{code, out, err}`.

        One process makes them all, as a worker does, but for those that are told of their limits,
        or in which the process itself is another one.
        """
        request = {"argv": argv, "engine": self.engine, **request}
        if {"limits", "unfiltered"} & set(request):
            with closing(Trial(self)) as trial:
                return trial.run(request)
        if self.prefix not in self.trials:
            self.trials[self.prefix] = Trial(self)
        return self.trials[self.prefix].run(request)

    def end_trials(self) -> None:
        for trial in self.trials.values():
            trial.close()


class Trial:
    """A process of `sandbox_trial.py`, which says nothing but its results."""

    def __init__(self, user: User) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(
            user.trial("run", str(user.data_dir)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=user.environment,
            cwd="/",
        )

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert self._said() == ""
        result: dict[str, Any] = json.loads(line)
        assert "problem" not in result, result
        return result

    def close(self) -> None:
        with self._errors:
            self._process.communicate(timeout=60)
            assert (self._process.returncode, self._said()) == (0, "")

    def _said(self) -> str:
        number = self._errors.fileno()  # whose place is the process's, too
        return os.pread(number, 65536, 0).decode(errors="replace")


@contextmanager
def user_who(name: str) -> Iterator[User]:
    """`own`: whoever runs the tests. `plain`: without any privilege, from a copy of the code."""
    public = Path(tempfile.mkdtemp(prefix="ump-plain-"))
    try:
        data_dir = public / "data"
        data_dir.mkdir(mode=0o700)
        (data_dir / "secret").write_text("the-key-of-everything")
        if name == "own" or os.geteuid() != 0:
            with _trying(User(name, (), sys.executable, PROJECT, data_dir)) as user:
                yield user
            return
        code = _copy_code(public)
        os.chown(data_dir, PLAIN_ID, PLAIN_ID)
        os.chown(data_dir / "secret", PLAIN_ID, PLAIN_ID)
        number = str(PLAIN_ID)
        drop = (
            "setpriv",
            "--reuid",
            number,
            "--regid",
            number,
            "--clear-groups",
            "--inh-caps=-all",
        )
        with _trying(User(name, drop, system_python(), code, data_dir)) as user:
            yield user
    finally:
        shutil.rmtree(public)


@contextmanager
def _trying(user: User) -> Iterator[User]:
    try:
        yield user
    finally:
        user.end_trials()


def _copy_code(public: Path) -> Path:
    code = public / "code"
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("jobs/sandbox", "jobs/ump"):
        shutil.copytree(PROJECT / package, code / package, ignore=ignored)
    (code / "tests/real").mkdir(parents=True)
    shutil.copy(PROJECT / "tests/real/sandbox_trial.py", code / "tests/real")
    shutil.copy(pyseccomp.__file__, code)
    (code / "jobs/__init__.py").touch()
    (code / "umpteenth/core").mkdir(parents=True)
    shutil.copy(PROJECT / "umpteenth/core/deadlines.py", code / "umpteenth/core")
    subprocess.run(["chmod", "-R", "a+rX", str(public)], check=True)
    return code


def processes_with(marker: str) -> list[str]:
    """Command lines that hold the marker. Zombies have none, and are only waiting for PID 1."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            if marker in line:
                found.append(line)
    return found


def wait_until_gone(marker: str, seconds: float = 5.0) -> list[str]:
    """What is left after at most that time."""
    deadline = time.monotonic() + seconds
    while (left := processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def wait_until_there(marker: str, seconds: float = 5.0) -> list[str]:
    """What has been started within at most that time."""
    deadline = time.monotonic() + seconds
    while not (found := processes_with(marker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found
