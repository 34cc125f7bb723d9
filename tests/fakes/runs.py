"""Jobs, runs and what stands in for the parts of a run that need a machine."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.utils import timezone

from jobs import timeline, triggers
from jobs.effects import Effect
from jobs.media import say_more_than_text
from jobs.models import Job, Run, RunEvent
from jobs.sandbox.base import Exit, SandboxProcess, SandboxSpec
from servers.mcp.types import (
    CallResult,
    ConnectionLost,
    ConnectionSettings,
    Observer,
    ProgressCallback,
    ServerError,
    Tool,
    ToolList,
)
from umpteenth.core.masking import Masker

BASH = "#!/usr/bin/env bash\n"


def make_job(name: str = "digest", script: str = "true\n", **fields: Any) -> Job:
    job: Job = Job.objects.create(name=name, script=BASH + script, **fields)
    return job


def make_run(job: Job, **fields: Any) -> Run:
    """A run started by hand; its hint goes nowhere (see the fixture `no_hints`)."""
    values: dict[str, Any] = {"trigger": Run.Trigger.MANUAL, "trust": Run.Trust.CREATOR}
    return triggers.start_run(job=job, **(values | fields))


def old_run(job: Job, status: str, number: int = 900, **fields: Any) -> Run:
    """A row as it might have been left behind."""
    values: dict[str, Any] = {"trigger": Run.Trigger.MANUAL, "trust": Run.Trust.CREATOR}
    values |= {"queued_at": timezone.now(), "number": number, "status": status}
    run: Run = Run.objects.create(job=job, **(values | fields))
    return run


def kinds(run: Run) -> list[str]:
    return list(RunEvent.objects.filter(run=run).values_list("kind", flat=True))


def payloads_of(run: Run, kind: str) -> list[dict[str, Any]]:
    return list(RunEvent.objects.filter(run=run, kind=kind).values_list("payload", flat=True))


def output_of(run: Run, stream: str = "stdout") -> str:
    return "".join(p["text"] for p in payloads_of(run, "output") if p["stream"] == stream)


@dataclass
class ListRecorder:
    """A recorder that keeps what it is handed; masks like the real one."""

    events: list[timeline.Event] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    masker: Masker = field(default_factory=lambda: Masker({}))
    full: bool = False
    # What a call that waits to be on record hears; None: nothing until `written` has a result.
    answer: bool | None = True
    announced: asyncio.Event = field(default_factory=asyncio.Event)
    written: Future[bool] = field(default_factory=Future)

    def record(self, kind: str, payload: Mapping[str, Any] | None = None, **fields: Any) -> None:
        self.events.append(timeline.Event(kind, payload or {}, **fields))

    def announce(self, effect: Effect) -> Future[bool]:
        self.effects.append(effect)
        self.written = Future()
        if self.answer is not None:
            self.written.set_result(self.answer)
        self.announced.set()
        return self.written

    def record_effect(self, effect: Effect) -> None:
        self.effects.append(effect)

    def keep_media(self, span: str, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """As the real one, but the files go nowhere."""
        return [dict(part) for part in parts] if say_more_than_text(parts) else []

    def stream(self) -> Any:
        return self.masker.stream()

    def mask(self, text: str) -> str:
        return self.masker.mask(text)

    def mask_json(self, value: Any) -> Any:
        return self.masker.mask_json(value)

    def mask_bytes(self, value: bytes) -> bytes:
        return self.masker.mask_bytes(value)

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [event.payload for event in self.events if event.kind == kind]


def tool(name: str, **hints: Any) -> Tool:
    return Tool(name=name, description=f"does {name}", **hints)


@dataclass
class FakeServer:
    """What `connect` leads to; `gate` holds the connection back until it is set.

    `answer` may return what to await. Calls settle when they end, unless `settle` is False: then
    their `settled` callbacks wait in `unsettled`. `change` is what a server announces. `end` is
    why the connection ended; the next one stands again.
    """

    listed: list[Tool] = field(default_factory=lambda: [tool("echo"), tool("look", read_only=True)])
    error: Exception | None = None
    gate: asyncio.Event | None = None
    answer: Callable[[str, dict[str, Any]], Any] | None = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    reports: list[tuple[float, float | None, str | None]] = field(default_factory=list)
    settle: bool = True
    unsettled: list[Callable[[], None]] = field(default_factory=list)
    end: str = ""
    connections: int = 0
    tasks: list[asyncio.Task[Any] | None] = field(default_factory=list)  # that opened and closed
    closed: bool = False
    close_error: Exception | None = None
    transport: str = "http"
    protocol_version: str = "2026-07-28"
    how: str = "It answered server/discover."
    server_name: str = "Fake"
    server_version: str = "1.0"
    instructions: str = ""
    remembered: dict[str, Any] = field(default_factory=lambda: {"mode": "stateless"})
    observer: Observer | None = None
    list_error: ServerError | None = None
    _last: ToolList | None = None

    @property
    def ended(self) -> bool:
        return bool(self.end)

    async def explain_end(self) -> ConnectionLost:
        return ConnectionLost(self.end)

    def change(self, *tools: Tool) -> None:
        self.listed = list(tools)
        self._last = None

    async def list_tools(self) -> ToolList:
        if self.list_error is not None:
            raise self.list_error
        self._last = ToolList(self.listed)
        return self._last

    async def tools(self) -> ToolList:
        return self._last or await self.list_tools()

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        deadline: float | None = None,
        on_progress: ProgressCallback | None = None,
        settled: Callable[[], None] | None = None,
    ) -> CallResult:
        if self.end:
            raise ConnectionLost(self.end)
        self.calls.append((name, arguments))
        self.deadlines.append(deadline)
        try:
            for report in self.reports if on_progress else ():
                await on_progress(*report)  # type: ignore[misc]
            if self.answer is None:
                text = str(arguments.get("message", "done"))
                return CallResult(ok=True, text=text, duration_ms=1.0)
            found = self.answer(name, arguments)
            result: CallResult = await found if inspect.isawaitable(found) else found
            return result
        finally:
            if settled is not None:
                (settled if self.settle else partial(self.unsettled.append, settled))()


class FakeServers(dict[str, FakeServer]):
    """By name; `connect` stands in for `servers.mcp.client.connect`."""

    def __init__(self, **servers: FakeServer) -> None:
        super().__init__(**servers)
        self.connected_with: dict[str, ConnectionSettings] = {}

    @contextlib.asynccontextmanager
    async def connect(
        self, settings: ConnectionSettings, *, observer: Observer | None = None, **_options: Any
    ) -> AsyncIterator[FakeServer]:
        server = self[settings.name]
        server.observer = observer
        self.connected_with[settings.name] = settings
        if server.gate is not None:
            await server.gate.wait()
        if server.error is not None:
            raise server.error
        server.end, server.connections, server.closed = "", server.connections + 1, False
        server.tasks.append(asyncio.current_task())
        try:
            yield server
        finally:
            server.tasks.append(asyncio.current_task())
            server.closed = True
            if server.close_error is not None:
                raise server.close_error


def unavailable(message: str = "Connection refused") -> ServerError:
    return ServerError(message)


@dataclass
class _Control:
    process: asyncio.subprocess.Process
    exit: asyncio.Future[Exit]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        return


async def _exit_of(process: asyncio.subprocess.Process) -> Exit:
    return Exit(await process.wait())


async def start_plainly(
    argv: Sequence[str], spec: SandboxSpec, *, limit: int = 2**16
) -> SandboxProcess:
    """A sandbox that is none: the command in a process group, with the binds' host paths."""
    places = {bind.inside: str(bind.host) for bind in spec.binds}
    env = {name: places.get(value, value) for name, value in spec.env.items()}
    ump = os.path.join(os.path.dirname(timeline.__file__), "ump", "ump.py")
    process = await asyncio.create_subprocess_exec(
        *(places.get(word, word) for word in argv),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=spec.workspace,
        env={"PATH": os.environ["PATH"], "UMP": ump, **env},
        start_new_session=True,
        limit=limit,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    exited = asyncio.ensure_future(_exit_of(process))
    return SandboxProcess(process.stdin, process.stdout, process.stderr, _Control(process, exited))
