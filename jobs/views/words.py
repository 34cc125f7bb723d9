"""What each kind of event says on the timeline: a title, a detail, an outcome.

Reads no database; `jobs.views.lines` puts the lines together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from jobs.models import Job, Run, RunEvent
from jobs.views.json_tree import compact
from jobs.views.panes import Pane, as_sentence, says_more
from umpteenth.core.templatetags.ui import STATES
from umpteenth.core.text import clean, finite_number

PREVIEW = 160
SHORT = 40  # characters of a detail that a line shows on every screen


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


@dataclass(frozen=True)
class Mark:
    """A word beside the title: `2 warnings`, `3 attempts`."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Progress:
    """How far a running call is, in the server's own words and numbers."""

    words: str
    percent: float | None = None

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> Self:
        done, total = finite_number(payload.get("progress")), finite_number(payload.get("total"))
        message = preview(payload.get("message"))
        if done is None:
            return cls(message)
        if total is None or total <= 0:
            return cls(" · ".join(filter(None, (message, f"{done:,.10g} so far"))))
        words = " · ".join(filter(None, (message, f"{done:,.10g} of {total:,.10g}")))
        return cls(words, round(min(100.0, max(0.0, 100 * done / total)), 1))


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
    # The detail is a sentence, whatever the title is.
    is_sentence: bool = False
    marks: list[Mark] = field(default_factory=list)
    progress: Progress | None = None
    # Something new about a line that stands further up; nothing to add where it does not.
    is_update: bool = False
    ms: float | None = None
    # "", "ok", "error", "refused", "running" or "lost"
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
        """Width of the bar in percent: how far a call is, or how long it took.

        Durations are logarithmic; ten minutes fill it.
        """
        if self.progress is not None:
            return self.progress.percent or 0.0
        if self.ms is None:
            return 0.0
        return round(min(100.0, 100 * math.log10(1 + self.ms) / math.log10(600_001)), 1)

    @property
    def until(self) -> int:
        """The last event that this line shows."""
        if self.chunks:
            return self.chunks[-1].seq
        return self.result.seq if self.result else self.seq


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
    status = text_of(payload.get("status"))
    line.icon = _STATUS_ICONS.get(status) or STATES.get(status, STATES["info"]).icon
    line.title = dict(Run.Status.choices).get(status, status)
    line.detail = preview(payload.get("error"))
    if status in _BAD_STATUSES:
        line.outcome = "error"
    elif status == "succeeded":
        line.outcome = "ok"
    line.has_body = len(text_of(payload.get("error"))) > PREVIEW


def _connected(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "plug-connected"
    line.title = "Connected again" if payload.get("after") else "Connected"
    line.outcome = "ok"
    line.server = text_of(payload.get("server"))
    tools = payload.get("tools")
    count = len(tools) if isinstance(tools, list) else tools
    words = [f"{count} tool{'' if count == 1 else 's'}"] if isinstance(count, int) else []
    transport = text_of(payload.get("transport"))
    if payload.get("socket"):
        transport += " over a Unix socket"
    words += [transport, text_of(payload.get("protocol_version"))]
    line.detail = preview(" · ".join(filter(None, words)))
    line.marks = marks_of(payload)
    line.has_body = says_more(line.kind, payload)


def _unavailable(line: Line, payload: Mapping[str, Any]) -> None:
    server = text_of(payload.get("server"))
    line.icon = "plug-connected-x"
    line.outcome = "error"
    # P71: these words.
    line.title = text_of(payload.get("message")) or f"MCP server {server} is unavailable"
    line.detail = preview(payload.get("reason"))
    line.has_body = True


def _skipped(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "plug-off"
    line.title = "Server skipped"
    line.server = text_of(payload.get("server"))
    reason = text_of(payload.get("reason"))
    line.detail, line.has_body = preview(as_sentence(reason)), len(reason) > SHORT


def _call(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "tool"
    line.mono, line.has_body = True, True
    line.server = text_of(payload.get("server"))
    line.title = text_of(payload.get("tool")) or "call"
    line.detail = preview(payload.get("arguments"))
    line.outcome = "running"


def _refused(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "ban"
    line.mono = line.is_sentence = True
    line.server = text_of(payload.get("server"))
    line.title = text_of(payload.get("tool")) or "call"
    line.detail, line.outcome = preview(as_sentence(payload.get("reason"))), "refused"
    line.has_body = len(text_of(payload.get("reason"))) > PREVIEW or says_more(line.kind, payload)


def _progress(line: Line, payload: Mapping[str, Any]) -> None:
    """Only where the call itself is not known."""
    _call(line, payload)
    line.detail, line.is_sentence = Progress.read(payload).words, True
    line.outcome, line.has_body = "", False


def _notice(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = icon_name("message-2")
    line.title = "Notice"
    line.server = text_of(payload.get("server"))
    message = text_of(payload.get("message"))
    line.detail = preview(message)
    line.has_body = len(message) > PREVIEW or says_more(line.kind, payload)


def _tools_changed(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = icon_name("refresh")
    line.title = "Tools changed"
    line.server = text_of(payload.get("server"))
    counts = ((name, payload.get(name)) for name in ("added", "removed", "changed"))
    words = [f"{len(names)} {name}" for name, names in counts if isinstance(names, list) and names]
    line.detail = " · ".join(words)
    line.has_body = bool(words)


def marks_of(payload: Mapping[str, Any]) -> list[Mark]:
    """Warnings of a server or result, and how often a call was tried."""
    warnings, attempts = payload.get("warnings"), payload.get("attempts")
    marks = []
    if isinstance(attempts, int) and attempts > 1:
        marks.append(Mark(f"{attempts} attempts"))
    if isinstance(warnings, list) and warnings:
        count = len(warnings)
        marks.append(Mark(f"{count} warning{'' if count == 1 else 's'}", is_warning=True))
    return marks


def _orphan_result(line: Line, payload: Mapping[str, Any]) -> None:
    _call(line, payload)
    line.detail = "Result of a call that was not recorded"


def _broker(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "terminal"
    # `state_set` is what the script wrote as `ump state set`.
    line.title, line.mono = f"ump {text_of(payload.get('command')).replace('_', ' ')}", True
    rest = {
        key: text_of(value)
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
    line.title = text_of(payload.get("name")) or "Step"


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
    elif limit := payload.get("limit"):
        line.title, line.outcome = f"Script ended at its limit of {text_of(limit)}", "error"
    else:
        line.title = f"Script ended with exit code {text_of(code)}"
        line.outcome = "ok" if code == 0 else "error"


def _output_value(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "package-export"
    line.title = f"Output {text_of(payload.get('name'))}"
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
    text = text_of(payload.get("message"))
    line.title = preview(text) or line.kind
    line.outcome = "error" if is_error else ""
    line.has_body = len(text) > PREVIEW or len(payload) > 1


def _network_connected(line: Line, payload: Mapping[str, Any]) -> None:
    """The first connection of a sandbox to a host; `server`: of the sandbox of that server."""
    line.icon = "plug-connected"
    line.title, line.detail = _address(payload), "First connection to this host"
    line.server = text_of(payload.get("server"))
    line.outcome = "ok"
    line.has_body = says_more(line.kind, payload)


def _network_refused(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon = "ban"
    line.title = _address(payload)
    line.server = text_of(payload.get("server"))
    line.is_sentence = True
    # As it is: it may begin with the name of the host.
    line.detail, line.outcome = preview(payload.get("reason")), "refused"
    count = payload.get("count")
    if isinstance(count, int) and count > 1:
        line.marks = [Mark(f"{count} times")]
    # A line is too narrow for most reasons.
    line.has_body = bool(line.detail) or says_more(line.kind, payload)


def _network_failed(line: Line, payload: Mapping[str, Any]) -> None:
    """The rules allow the connection, and it did not come about."""
    _network_refused(line, payload)
    line.icon, line.outcome = "plug-connected-x", "error"


def _waiting(line: Line, payload: Mapping[str, Any]) -> None:
    """The run's environment is not on its machine yet."""
    line.icon = "package"
    line.title = f"Environment {preview(payload.get('environment'))}".strip()
    line.is_sentence = True
    line.detail = preview(payload.get("message"))
    if payload.get("done"):
        line.detail, line.outcome = "Ready", "ok"
        seconds = finite_number(payload.get("seconds"))
        line.ms = None if seconds is None else seconds * 1000


def _sandbox_started(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon, line.title = "box", "Sandbox started"
    words = [text_of(payload.get(key)) for key in ("adapter", "image", "environment")]
    if payload.get("user") == "root":
        words.append("as root")
    network = text_of(payload.get("network"))
    words.append(dict(Job.Network.choices).get(network, network))
    line.detail = preview(" · ".join(filter(None, words)))
    line.has_body = True


def _sandbox_ended(line: Line, payload: Mapping[str, Any]) -> None:
    line.icon, line.title = "box", "Sandbox ended"


def _address(payload: Mapping[str, Any]) -> str:
    host, port = text_of(payload.get("host")), text_of(payload.get("port"))
    host = preview(f"[{host}]" if ":" in host else host) or "Network"
    return f"{host}:{port}" if port else host


_WRITERS = {
    "run.status": _status,
    "server.connected": _connected,
    "server.unavailable": _unavailable,
    "server.skipped": _skipped,
    "sandbox.image_wait": _waiting,
    "sandbox.create": _sandbox_started,
    "sandbox.destroy": _sandbox_ended,
    "tool.call": _call,
    "tool.result": _orphan_result,
    "tool.refused": _refused,
    "tool.progress": _progress,
    "server.notice": _notice,
    "server.tools_changed": _tools_changed,
    "network.connected": _network_connected,
    "network.refused": _network_refused,
    "network.failed": _network_failed,
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
    text = " ".join(clean(text_of(value)[: limit * 4]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def text_of(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else compact(value)
