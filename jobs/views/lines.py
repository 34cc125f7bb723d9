"""Events of a run as the lines that people read: a call and its result are one line, output that
follows output is one console, and what follows a step belongs to it.

Reads no database: the page and the live stream fetch events and feed them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from jobs.models import RunEvent
from jobs.views.panes import as_sentence, panes_of
from jobs.views.words import Chunk, Line, Progress, describe, marks_of, preview, text_of

# Characters of a console block in a page; the whole output is a download.
CONSOLE_TAIL = 24_000


@dataclass
class Fold:
    """Feeds on events in order. It remembers what an event may belong to: the step, the console
    block that is open and the calls without a result."""

    origin: datetime
    step: int = 0
    console: int = 0
    open_calls: dict[str, RunEvent] = field(default_factory=dict)
    # Of calls that were refused right before they would have been sent.
    refused: dict[str, RunEvent] = field(default_factory=dict)

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
            elif event.kind == "tool.progress":
                self._progress(event, lines)
            elif event.kind == "tool.refused" and event.span in self.open_calls:
                self.refused[event.span] = event
                refuse(self._again(event.span, lines), event)
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
        text = text_of(event.payload.get("text"))
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
        if (refusal := self.refused.pop(event.span, None)) is not None:
            refuse(line, refusal)

    def _progress(self, event: RunEvent, lines: dict[int, Line]) -> None:
        """The newest progress stands on its call's line; it is no line of its own."""
        if event.span in self.open_calls:
            report(self._again(event.span, lines), event)

    def _again(self, span: str, lines: dict[int, Line]) -> Line:
        """The line of a call that has no result yet."""
        call = self.open_calls[span]
        line = lines.get(call.seq)
        if line is None:
            line = lines[call.seq] = self._line(call)
            line.is_update = True
        return line

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
    line.marks, line.progress = marks_of(result.payload), None


def refuse(line: Line, refusal: RunEvent) -> None:
    """The call was recorded already when it turned out that it may not be sent."""
    line.outcome, line.is_sentence = "refused", True
    line.detail = preview(as_sentence(refusal.payload.get("reason")))


def report(line: Line, progress: RunEvent) -> None:
    """Show on the line of a call how far it is."""
    if line.result is None:
        line.progress = Progress.read(progress.payload)


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
