"""Builds of environments without a machine and a registry."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from jobs.environments import builds, provide
from jobs.environments.build import Stopped
from jobs.environments.definition import Definition, parse_definition
from jobs.environments.log import BuildLog
from jobs.environments.store import Store
from jobs.models import EnvironmentBuild
from jobs.sandbox import base as sandbox

TEXT = "name: tools\npython: [humanize]\n"
DIGEST = parse_definition(TEXT).digest


class Builder:
    """Stands in for what needs a machine and a registry."""

    def __init__(self) -> None:
        self.built = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    async def __call__(
        self, definition: Definition, store: Store, log: BuildLog, stopping: Callable[[], bool]
    ) -> int:
        self.built += 1
        log.begin("Python packages")
        log.add("Installed")
        self.begun.set()
        assert await asyncio.to_thread(self.go.wait, 10)
        if stopping():
            raise Stopped
        if self.error is not None:
            raise self.error
        with store.making() as new:
            store.keep(new, definition.digest)
        return 4096


@contextmanager
def a_builder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    """One that builds at once, unless its `go` is cleared."""
    found = Builder()
    # All tests of a process share a data directory.
    shutil.rmtree(builds.store().place, ignore_errors=True)
    monkeypatch.setattr(builds, "build_directory", found)
    monkeypatch.setattr(builds, "WRITE_EVERY", 0.02)
    monkeypatch.setattr(builds, "_stopping", threading.Event())
    monkeypatch.setattr(provide, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(sandbox, "problem", lambda: "")
    yield found
    found.go.set()
    builds.wait_until_idle(10)


def ended(row: EnvironmentBuild, status: str) -> EnvironmentBuild:
    """The row of a build when all builds of this process have ended."""
    builds.wait_until_idle(10)
    row.refresh_from_db()
    assert row.status == status
    return row
