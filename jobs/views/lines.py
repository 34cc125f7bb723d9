"""Events of a run as the lines that people read: a call and its result are one line, output that
follows output is one console, and what follows a step belongs to it.

Reads no database: the page and the live stream fetch events and feed them in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobs.models import Run, RunEvent
from jobs.views.json_tree import compact
from jobs.views.panes import Pane, panes_of
from umpteenth.core.templatetags.ui import STATES
from umpteenth.core.text import clean

# Characters of a console block in a page; the whole output is a download.
CONSOLE_TAIL = 24_000
PREVIEW = 160


def icon_name(name: str) -> str:
    """Marks a name for `make vendor`, which collects the icons in use."""
    return name


# In the record nothing turns any more.
_STATUS_ICONS = {"provisioning": icon_name("box"), "running": icon_name("player-play")}
# Arguments of `ump` whose values speak for themselves.
_PLAIN = ("server", "tool", "key", "name", "value")
_UNITS = {"count": "found"}
_BAD_STATUSES = ("failed", "timed_out")


@dataclass(frozen=True)
class Chunk:
    seq: int
    is_error: bool
    text: str


@dataclass
class Line:
    """One line of the timeline. `into`: the step it stands under, 0 for none."""

    seq: int
    kind: str
    at: datetime
    icon: str
    title: str
    offset_ms: float = 0.0
    detail: str = ""
    server: str = ""
    mono: bool = False
    ms: float | None = None
    # "", "ok", "error" or "running"
    outcome: str = ""
    has_body: bool = False
    into: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    hidden: int = 0
    # The call's result, once it is known.
    result: RunEvent | None = None
    # The event that the line is about; the call where a result completes it.
    event: RunEvent | None = None
    is_open: bool = False
    # The address names this line.
    is_selected: bool = False
    # What the open line shows; otherwise the page fetches it when somebody opens the line.
    panes: list[Pane] = field(default_factory=list)

    @property
    def bar(self) -> float:
        """Width of the duration bar in percent: logarithmic, ten minutes fill it."""
        if self.ms is None:
            return 0.0
        return round(min(100.0, 100 * math.log10(1 + self.ms) / math.log10(600_001)), 1)

    @property
    def until(self) -> int:
        """The last event that this line shows."""
        if self.chunks:
            return self.chunks[-1].seq
        return self.result.seq if self.result else self.seq


@dataclass
class Fold:
    """Feeds on events in order. It remembers what an event may belong to: the step, the console
    block that is open and the calls without a result."""

    origin: datetime
    step: int = 0
    console: int = 0
    open_calls: dict[str, RunEvent] = field(default_factory=dict)

    def feed(
        self, events: Iterable[RunEvent], calls: Mapping[str, RunEvent] | None = None
    ) -> list[Line]:
        """New and changed lines. `calls` holds earlier calls whose results are among `events`."""
        lines: dict[int, Line] = {}
        calls = dict(calls or {})
        for event in events:
            if event.kind == "output":
                self._output(event, lines)
            elif event.kind == "tool.result":
                self._result(event, calls, lines)
            else:
                self.console = 0
                line = self._line(event)
                lines[event.seq] = line
                if event.kind == "tool.call":
                    calls[event.span] = self.open_calls[event.span] = event
                if event.kind == "step":
                    self.step, line.into = event.seq, 0
        return [trimmed(line) for line in lines.values()]

    def _output(self, event: RunEvent, lines: dict[int, Line]) -> None:
        self.console = self.console or event.seq
        line = lines.get(self.console)
        if line is None:
            line = self._line(event)
            line.seq = self.console
            lines[self.console] = line
        text = _text(event.payload.get("text"))
        line.chunks.append(Chunk(event.seq, event.payload.get("stream") == "stderr", text))

    def _result(
        self, event: RunEvent, calls: Mapping[str, RunEvent], lines: dict[int, Line]
    ) -> None:
        self.open_calls.pop(event.span, None)
        call = calls.get(event.span)
        line = lines.get(call.seq) if call else None
        if line is None:
            line = self._line(call or event)
            lines[line.seq] = line
        complete(line, event)

    def _line(self, event: RunEvent) -> Line:
        line = describe(event)
        line.event = event
        line.offset_ms = max(0.0, (event.at - self.origin).total_seconds() * 1000)
        line.into = self.step if event.seq > self.step else 0
        return line


def open_errors(lines: Iterable[Line], *, selected: int = 0, limit: int = 10) -> None:
    """Failed lines and the selected one open by themselves, with their bodies."""
    room = limit
    for line in reversed(list(lines)):
        line.is_selected = selected in (line.seq, line.until)
        if not line.has_body or not (line.is_selected or (line.outcome == "error" and room > 0)):
            continue
        room -= 1
        line.is_open = True
        if line.event:
            line.panes = panes_of(line.event, line.result)


def complete(line: Line, result: RunEvent) -> None:
    """Put a result into the line of its call."""
    line.result = result
    line.ms = result.ms
    line.outcome = "ok" if result.payload.get("ok") else "error"


def trimmed(line: Line) -> Line:
    """Keep the end of a long console block."""
    kept: list[Chunk] = []
    room = CONSOLE_TAIL
    for chunk in reversed(line.chunks):
        if room <= 0:
            line.hidden += len(chunk.text)
            continue
        if len(chunk.text) > room:
            line.hidden += len(chunk.text) - room
            chunk = Chunk(chunk.seq, chunk.is_error, chunk.text[-room:])
        room -= len(chunk.text)
        kept.append(chunk)
    line.chunks = kept[::-1]
    return line


def describe(event: RunEvent) -> Line:
    """A line for one event. An unknown kind is shown by its name with its payload."""
    payload = event.payload if isinstance(event.payload, dict) else {"value": event.payload}
    line = Line(event.seq, event.kind, event.at, icon_name("point"), event.kind, ms=event.ms)
    writer = _WRITERS.get(event.kind)
    if writer is None:
        line.has_body = bool(payload)
        return line
    writer(line, payload)
    return line


def _status(line: Line, payload: Mapping[str, Any]) -> None:
    status = _text(payload.get("status"))
    line.icon = _STATUS_ICONS.get(status) or STATES.get(status, STATES["info"]).icon
    line.title = dict(Run.Status.choices).get(status, status)
    line.detail = preview(payload.get("error"))
    if status in _BAD_STATUSES:
        line.outcome = "error"
    elif status == "succeeded":
        line.outcome = "ok"
    line.has_body = len(_text(payload.get("error"))) > PREVIEW


def _connected(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "plug-connected"
    line.title, line.outcome = "Connected", "ok"
    line.server = _text(payload.get("server"))
    tools = payload.get("tools")
    count = len(tools) if isinstance(tools, list) else tools
    words = [f"{count} tool{'' if count == 1 else 's'}"] if isinstance(count, int) else []
    words += [_text(payload[key]) for key in ("transport", "protocol_version") if payload.get(key)]
    line.detail = preview(" · ".join(words))
    line.has_body = bool(payload.get("warnings"))


def _unavailable(line: Line, payload: Mapping[str, Any]) -> None:
    server = _text(payload.get("server"))
    line.icon = "plug-connected-x"
    line.outcome = "error"
    # P71: these words.
    line.title = _text(payload.get("message")) or f"MCP server {server} is unavailable"
    line.detail = preview(payload.get("reason"))
    line.has_body = True


def _skipped(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "plug-off"
    line.title = "Server skipped"
    line.server = _text(payload.get("server"))
    line.detail = preview(payload.get("reason"))


def _call(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "tool"
    line.mono, line.has_body = True, True
    line.server = _text(payload.get("server"))
    line.title = _text(payload.get("tool")) or "call"
    line.detail = preview(payload.get("arguments"))
    line.outcome = "running"


def _orphan_result(line: Line, payload: Mapping[str, Any]) -> None:
    _call(line, payload)
    line.detail = "Result of a call that was not recorded"


def _broker(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "terminal"
    # `state_set` is what the script wrote as `ump state set`.
    line.title, line.mono = f"ump {_text(payload.get('command')).replace('_', ' ')}", True
    rest = {
        key: _text(value)
        for key, value in payload.items()
        if key not in ("command", "ok", "error", "found") and not key.startswith("_")
    }
    words = (
        text if key in _PLAIN else f"{text} {_UNITS.get(key, key)}" for key, text in rest.items()
    )
    if payload.get("found") is False:
        line.detail = preview(f"{rest.get('key', '')}: no such key")
    else:
        line.detail = preview(payload.get("error") or " ".join(words))
    line.outcome = "error" if payload.get("ok") is False else "ok"
    line.has_body = bool(rest) or bool(payload.get("error"))


def _step(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "chevron-right"
    line.title = _text(payload.get("name")) or "Step"


def _output(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "terminal-2"
    line.title = "Output"


def _exit(line: Line, payload: Mapping[str, Any]) -> None:
    code = payload.get("code")
    line.icon = "terminal-2"
    if payload.get("timed_out"):
        line.title, line.outcome = "Script stopped at the time limit", "error"
    elif code is None:
        line.title = "Script stopped"
    else:
        line.title = f"Script ended with exit code {_text(code)}"
        line.outcome = "ok" if code == 0 else "error"


def _output_value(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "package-export"
    line.title = f"Output {_text(payload.get('name'))}"
    line.detail, line.has_body = preview(payload.get("value")), True


def _summary(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "file-text"
    line.title = "Summary"
    line.detail, line.has_body = preview(payload.get("text")), True


def _fail(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "alert-circle"
    line.title, line.outcome = "Script reported a failure", "error"
    line.detail, line.has_body = preview(payload.get("reason")), True


def _artifact(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "paperclip"
    line.title = "Artifact"
    line.detail = preview(payload.get("name"))


def _message(line: Line, payload: Mapping[str, Any]) -> None:
    is_error = line.kind == "error"
    line.icon = icon_name("alert-circle") if is_error else icon_name("info-circle")
    text = _text(payload.get("message"))
    line.title = preview(text) or line.kind
    line.outcome = "error" if is_error else ""
    line.has_body = len(text) > PREVIEW or len(payload) > 1


_WRITERS = {
    "run.status": _status,
    "server.connected": _connected,
    "server.unavailable": _unavailable,
    "server.skipped": _skipped,
    "tool.call": _call,
    "tool.result": _orphan_result,
    "broker.call": _broker,
    "step": _step,
    "output": _output,
    "script.exit": _exit,
    "outputs.set": _output_value,
    "summary": _summary,
    "fail": _fail,
    "artifact": _artifact,
    "error": _message,
    "log": _message,
}


def preview(value: object, limit: int = PREVIEW) -> str:
    """One line of a value, cut at `limit` characters."""
    # A cut before joining: a megabyte need not be split to show a line of it.
    text = " ".join(clean(_text(value)[: limit * 4]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else compact(value)


@dataclass
class Group:
    """Lines under a step, or before the first one."""

    step: Line | None
    lines: list[Line]
    # The step itself stands on an earlier page.
    is_continued: bool = False


def grouped(lines: Sequence[Line], earlier_step: Line | None = None) -> list[Group]:
    """Lines as nested groups for the first load; live lines say where they go by `into`."""
    groups = [Group(earlier_step, [], is_continued=earlier_step is not None)]
    for line in lines:
        if line.kind == "step":
            groups.append(Group(line, []))
        else:
            groups[-1].lines.append(line)
    return [group for group in groups if group.lines or (group.step and not group.is_continued)]
