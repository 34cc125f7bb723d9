"""Whole runs whose sandbox is a plain process and whose servers are fakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from jobs import runner, triggers
from jobs.models import Attachment, Job, Run
from jobs.sandbox import base as sandbox
from servers.definition import ServerData
from servers.services import create_server
from tests.fakes.runs import FakeServer, FakeServers, make_run, start_plainly
from umpteenth.core.config import get_options

UMP = 'ump() { python3 "$UMP" "$@"; }\n'


def without_a_machine(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    """Replace what needs a machine; the servers, of which `good` is there."""
    from secrets_vault.services import ensure_key_ring
    from servers.mcp import client

    ensure_key_ring()
    fakes = FakeServers(good=FakeServer())
    monkeypatch.setattr(client, "connect", fakes.connect)
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)
    monkeypatch.setattr(sandbox, "problem", lambda: "")
    monkeypatch.setattr(sandbox, "start", start_plainly)
    monkeypatch.setattr(runner, "LOOK_INTERVAL", 0.05)
    return fakes


def execute(job: Job, **fields: Any) -> Run:
    run = make_run(job, **fields)
    assert runner.execute(run.pk, "test-worker")
    run.refresh_from_db()
    return run


def attach(
    job: Job, name: str = "good", allowed: list[str] | None = None, **fields: Any
) -> Attachment:
    data = ServerData(name=name, transport="http", url="http://127.0.0.1:9/mcp", **fields)
    server = create_server(actor=None, data=data)
    row: Attachment = Attachment.objects.create(job=job, server=server, allowed_tools=allowed)
    return row


def start(run: Run) -> threading.Thread:
    thread = threading.Thread(target=runner.execute, args=(run.pk, "test-worker"))
    thread.start()
    return thread


def let_go(run: Run) -> None:
    """Make the file `go` that a script waits for."""
    (get_options().data_dir / "runs" / str(run.pk) / "workspace" / "go").touch()


def wait_for(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        # Another thread executes the run; nothing tells this one when it gets on.
        time.sleep(0.02)
