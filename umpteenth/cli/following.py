"""Follows a run on the terminal until it ends, and executes it here if no worker takes it."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

if TYPE_CHECKING:
    from jobs.models import Run, RunEvent

POLL = 0.2  # seconds
PATIENCE = 3.0  # seconds that a worker has to claim the run
MAX_LINE = 200  # characters of a value on one line
MAX_REASON = 1_000  # of what went wrong, whose end says what to do


def follow(
    run_id: UUID, *, quiet: bool = False, patience: float = PATIENCE, poll: float = POLL
) -> Run:
    """Wait for the end and return the run; prints its events as they come unless `quiet`.

    What no worker claims within `patience` seconds (at once where none lives) this process
    claims and executes, once the job's other runs allow it. Ctrl-C cancels the run and waits
    for its end.
    """
    from jobs.models import Run

    run = Run.objects.select_related("job").get(pk=run_id)
    show: Callable[[], None] = _Printer(run) if not quiet else lambda: None
    helper = _Helper(run_id)
    waited_until = time.monotonic() + (patience if _worker_lives() else 0)
    previous = _on_interrupt(run_id)
    try:
        while not run.is_finished:
            show()
            if run.status == Run.Status.QUEUED and time.monotonic() >= waited_until:
                helper.start()
            time.sleep(poll)
            run.refresh_from_db()
        helper.join()
        show()
    finally:
        signal.signal(signal.SIGINT, previous)
        helper.end()
    return run


def print_event(event: RunEvent, since: datetime) -> None:
    """One event as a line: seconds since the start, kind, what matters of it."""
    offset = (event.at - since).total_seconds()
    took = f"  ({event.ms:,.0f} ms)" if event.ms is not None else ""
    click.echo(f"{offset:8.2f}  {event.kind:<18}  {describe(event.kind, event.payload)}{took}")


def describe(kind: str, payload: dict[str, Any]) -> str:
    """What a person wants to know of an event, on one line."""
    describer = _DESCRIBERS.get(kind)
    text = describer(payload) if describer else ", ".join(map(str, payload.values()))
    line = " ⏎ ".join(text.rstrip().splitlines())
    most = MAX_REASON if kind in _REASONS else MAX_LINE
    return line if len(line) <= most else line[: most - 1] + "…"


def _tool_result(payload: dict[str, Any]) -> str:
    text = payload.get("error") or payload.get("text") or ""
    outcome = "" if payload.get("ok") else "failed: "
    return f"{payload.get('server')} {payload.get('tool')}: {outcome}{text}"


def _amount(payload: dict[str, Any]) -> str:
    done, total = payload.get("progress") or 0, payload.get("total")
    return f"{done:g}" if total is None else f"{done:g} of {total:g}"


def _ump(payload: dict[str, Any]) -> str:
    """A call of `ump` other than those to tools, about as the script wrote it."""
    about = {"command": "", **payload}
    words = str(about.pop("command")).split("_")
    ok, error = about.pop("ok", True), about.pop("error", "")
    missing = about.pop("found", True) is False
    words += [value if isinstance(value, str) else _json(value) for value in about.values()]
    outcome = ": no such key" if missing else "" if ok else f": failed: {error}"
    return " ".join(words) + outcome


def _address(payload: dict[str, Any]) -> str:
    """Where a sandbox went, with the server whose it was."""
    server = f"{payload['server']}: " if payload.get("server") else ""
    return f"{server}{payload.get('host')} port {payload.get('port')}"


def _sandbox(payload: dict[str, Any]) -> str:
    keys = ("adapter", "image", "environment", "user", "network")
    words = [str(payload[key]) for key in keys if payload.get(key)]
    return ", ".join([*words, *payload.get("unenforced", ())])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


_REASONS = frozenset(
    {
        "run.status",
        "server.unavailable",
        "server.skipped",
        "network.refused",
        "network.failed",
        "tool.refused",
    }
)
_DESCRIBERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "run.status": lambda p: p.get("status", "") + (f": {p['error']}" if p.get("error") else ""),
    "server.connected": lambda p: (
        f"{p.get('server')}: {p.get('tools')} tools"
        + (f", connected again after: {p['after']}" if p.get("after") else "")
    ),
    "server.unavailable": lambda p: (
        f"{p.get('message')}: {p.get('reason')}" + (f" {p['hint']}" if p.get("hint") else "")
    ),
    "server.skipped": lambda p: f"{p.get('server')}: {p.get('reason')}",
    "server.notice": lambda p: f"{p.get('server')}: {p.get('message')}",
    "server.tools_changed": lambda p: f"{p.get('server')}: its tools have changed",
    "network.connected": lambda p: _address(p),
    "network.refused": lambda p: f"{_address(p)}: {p.get('reason')}",
    "network.failed": lambda p: f"{_address(p)}: {p.get('reason')}",
    "tool.refused": lambda p: f"{p.get('server')} {p.get('tool')}: {p.get('reason')}",
    "tool.progress": lambda p: f"{p.get('tool')}: {p.get('message') or _amount(p)}",
    "tool.call": lambda p: f"{p.get('server')} {p.get('tool')} {_json(p.get('arguments'))}",
    "tool.result": _tool_result,
    "broker.call": _ump,
    "sandbox.image_wait": lambda p: (
        f"{p.get('environment')}: " + ("ready" if p.get("done") else str(p.get("message", "")))
    ),
    "sandbox.create": _sandbox,
    "output": lambda p: str(p.get("text", "")),
    "script.exit": lambda p: (
        f"{p.get('limit', 'time')} limit reached"
        if p.get("timed_out") or "limit" in p
        else f"exit {p.get('code')}"
    ),
    "outputs.set": lambda p: f"{p.get('name')} = {_json(p.get('value'))}",
    "artifact": lambda p: f"{p.get('name')} ({p.get('size'):,} bytes)",
}


def _worker_lives() -> bool:
    from jobs import presence
    from umpteenth.core.clock import database_now

    return bool(presence.live_workers(database_now()))


class _Printer:
    """Prints the events that are new since the last call."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = 0

    def __call__(self) -> None:
        from jobs.models import RunEvent

        for event in RunEvent.objects.filter(run_id=self._run.pk, seq__gt=self._seen):
            print_event(event, self._run.queued_at)
            self._seen = event.seq


class _Helper:
    """Executes the run in a thread of this process, if asked to."""

    def __init__(self, run_id: UUID) -> None:
        self._run_id = run_id
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Try to claim the run; a run that waits for others of its job is tried again."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="run", daemon=True)
            self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(30)

    def end(self) -> None:
        """Stop what still runs here, whatever made us leave."""
        if self._thread is not None and self._thread.is_alive():
            from jobs import runner

            runner.interrupt_all()
            self._thread.join(10)

    def _work(self) -> None:
        from django.db import connection

        from jobs.runner import execute

        try:
            execute(self._run_id)
        finally:
            connection.close()


def _on_interrupt(run_id: UUID) -> Any:
    """Ctrl-C asks for a cancel and stays to see the end; a second one leaves at once."""
    from jobs import lifecycle

    def cancel(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        click.echo("Cancelling the run; press Ctrl-C again to leave.", err=True)
        try:
            lifecycle.request_cancel(run_id)
        except lifecycle.AlreadyFinished:
            return

    return signal.signal(signal.SIGINT, cancel)
