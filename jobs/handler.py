"""What a run's script gets when it calls `ump`: the broker's commands, done and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from jobs import services
from jobs.broker.protocol import BrokerError
from jobs.models import Job, Run, StateEntry
from jobs.toolbox import CallMeter, Toolbox, ToolNotFound, ToolRefused
from servers.mcp.types import CallResult, ServerError
from umpteenth.core.connections import Database

if TYPE_CHECKING:
    from jobs.timeline import Recorder

WITHOUT_MCP = "This run goes without MCP servers."


class RunHandler:
    """Implements `jobs.broker.BrokerHandler` for one run; `toolbox` None: without MCP (U6)."""

    def __init__(
        self,
        run: Run,
        toolbox: Toolbox | None,
        recorder: Recorder,
        meter: CallMeter,
        database: Database,
    ) -> None:
        self.outputs: dict[str, Any] = {}
        self.summary_text = ""
        self.failure = ""
        self._run = run
        self._toolbox = toolbox
        self._recorder = recorder
        self._meter = meter
        self._database = database
        self._state_written = False

    async def mcp_tools(self, server: str | None) -> list[dict[str, Any]]:
        details = {"server": server} if server else {}
        async with _Noted(self, "mcp_tools", details) as noted:
            try:
                found = await self._tools().list_tools(server)
            except (ToolNotFound, ServerError) as error:
                raise BrokerError(str(error)) from None
            noted.details["count"] = len(found)
            return [_tool_entry(item.server, item.tool) for item in found]

    async def mcp_call(self, server: str, tool: str, arguments: dict[str, Any]) -> CallResult:
        try:
            return await self._tools().call(server, tool, arguments)
        except ToolRefused as error:  # on the timeline already
            raise BrokerError(str(error)) from None
        except (ToolNotFound, ServerError) as error:
            if self._meter.admit(side_effects=False):
                call = {"command": "mcp_call", "server": server, "tool": tool}
                outcome = {"ok": False, "error": str(error)}
                self._recorder.record("broker.call", {**call, **outcome})
            raise BrokerError(str(error)) from None

    def _tools(self) -> Toolbox:
        if self._toolbox is None:
            raise ToolNotFound(WITHOUT_MCP)
        return self._toolbox

    async def state_get(self, key: str) -> Any:
        async with _Noted(self, "state_get", {"key": key}) as noted:
            entry = await self._database(partial(_read_state, self._run.job_id, key))
            if entry is None:
                noted.details["found"] = False
        # A first run finds nothing: an answer like any other, and no failed call.
        if entry is None:
            raise KeyError(key)
        return entry[0]

    async def state_set(self, key: str, value: Any) -> None:
        # A value that is a secret stays one: state is stored and shown on a page.
        key, value = self._recorder.mask(key), self._recorder.mask_json(value)
        first, self._state_written = not self._state_written, True
        async with _Noted(self, "state_set", {"key": key, "value": value}, keep=first):
            try:
                await self._database(partial(_write_state, self._run, key, value))
            except (services.StateError, Job.DoesNotExist) as error:
                raise BrokerError(str(error)) from None

    async def state_list(self) -> list[str]:
        async with _Noted(self, "state_list", {}) as noted:
            keys: list[str] = await self._database(partial(_state_keys, self._run.job_id))
            noted.details["count"] = len(keys)
            return keys

    async def output_set(self, name: str, value: Any) -> None:
        self.outputs[name] = value
        self._record("outputs.set", {"name": name, "value": value})

    async def step(self, name: str) -> None:
        # Not counted with the calls: steps have a limit of their own, and what follows hangs on it.
        self._recorder.record("step", {"name": name})

    async def summary(self, text: str) -> None:
        self.summary_text = text
        self._record("summary", {"text": text})

    async def fail(self, reason: str) -> None:
        self.failure = reason
        self._record("fail", {"reason": reason})

    def _record(self, kind: str, payload: dict[str, Any]) -> None:
        """One of those that a script may repeat for ever; the last one counts in any case.

        It takes no place of a call with side effects, which a flood must not hide.
        """
        if self._meter.admit(side_effects=False):
            self._recorder.record(kind, payload)

    def note(self, command: str, details: Mapping[str, Any], error: str, *, keep: bool) -> None:
        """`keep`: also where only side effects are recorded; so is the first state write."""
        if self._meter.admit(side_effects=keep):
            payload = {"command": command, **details, "ok": not error}
            self._recorder.record("broker.call", payload | ({"error": error} if error else {}))


class _Noted:
    """Records a command once it is over, with its error if it has one."""

    def __init__(
        self, handler: RunHandler, command: str, details: dict[str, Any], *, keep: bool = False
    ) -> None:
        self.details = details
        self._handler = handler
        self._command = command
        self._keep = keep

    async def __aenter__(self) -> _Noted:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        reason = "" if error is None else str(error) or type(error).__name__
        if isinstance(error, asyncio.CancelledError):
            reason = "the script or its run ended before the answer came"
        self._handler.note(self._command, self.details, reason, keep=self._keep)


def _tool_entry(server: str, tool: Any) -> dict[str, Any]:
    return {
        "server": server,
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "read_only": tool.read_only,
        "destructive": tool.destructive,
        "open_world": tool.open_world,
    }


def _read_state(job_id: UUID, key: str) -> tuple[Any] | None:
    entry = StateEntry.objects.filter(job_id=job_id, key=key).first()
    return None if entry is None else (entry.value,)


def _write_state(run: Run, key: str, value: Any) -> None:
    services.set_state(run.job, key, value, run=run)


def _state_keys(job_id: UUID) -> list[str]:
    return sorted(StateEntry.objects.filter(job_id=job_id).values_list("key", flat=True))
