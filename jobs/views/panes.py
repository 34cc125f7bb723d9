"""What an open line of the timeline shows: arguments and result, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.safestring import SafeString

from jobs.models import RunEvent
from jobs.views.json_tree import json_tree, pretty
from jobs.views.parts import Part, parts_of
from umpteenth.core.text import with_full_stop

# Fields that hold text for people; the other ones are shown together as JSON.
_TEXTS = {
    "message": "Message",
    "reason": "Reason",
    "error": "Error",
    "text": "Text",
    "hint": "What to do",
    "how": "How it was reached",
    "after": "Connected again after",
    "stderr_tail": "End of standard error",
}
# Fields that hold a list of sentences or names, one a line.
_LISTS = {
    "warnings": "Warnings",
    "added": "Added",
    "removed": "Removed",
    "changed": "Changed",
    "unenforced": "Limits that are not held",
}
_ALARMING = ("error", "reason")
# What the line itself says already.
_SAID = {
    "server.unavailable": {"server", "message"},
    "server.notice": {"server"},
    "server.skipped": {"server"},
    "server.tools_changed": {"server"},
    "tool.refused": {"server", "tool"},
    "broker.call": {"command", "ok", "found"},
    "run.status": {"status"},
    "network.connected": {"host", "port", "server"},
    "network.refused": {"host", "port", "server"},
    "network.failed": {"host", "port", "server"},
    "server.connected": {"server", "tools", "transport", "protocol_version", "socket"},
}
# Said whole on the line unless they are long.
_PREVIEWED = {"message", "reason"}
# Longer texts are shown as text even if they are JSON.
MAX_PARSED = 64_000


@dataclass(frozen=True)
class Pane:
    """A value with its heading. `raw` is what the copy button copies."""

    label: str
    raw: str
    tree: SafeString | None = None
    is_error: bool = False
    is_warning: bool = False
    parts: list[Part] = field(default_factory=list)
    # The event and its field, where a page of its own shows more of it.
    seq: int = 0
    key: str = ""
    # The whole value, where the event keeps only its head and tail.
    blob: str = ""
    size: int = 0
    # The value was cut and no whole copy exists.
    is_cut: bool = False

    @property
    def has_more(self) -> bool:
        """Whether the pane leaves out anything that is stored."""
        return bool(self.blob) or "json-more" in (self.tree or "")

    @property
    def is_long(self) -> bool:
        """Whether its box scrolls, so that the keyboard must reach it."""
        return len(self.raw) > 1000 or self.raw.count("\n") > 15


def panes_of(
    event: RunEvent,
    result: RunEvent | None = None,
    progress: RunEvent | None = None,
    refusal: RunEvent | None = None,
) -> list[Pane]:
    """Panes for one event, or for a call with what came of it.

    `progress` is the last one of a call without a good result; `refusal` says why the call was
    not sent.
    """
    if event.kind == "tool.result":
        return _result_panes(event)
    if event.kind != "tool.call":
        return _plain_panes(event)
    panes = [_pane("Arguments", event, "arguments")]
    if refusal is not None:
        return [
            *panes,
            Pane("Refused", as_sentence(refusal.payload.get("reason")), is_warning=True),
        ]
    panes += _result_panes(result) if result else []
    return panes + ([_progress_pane(progress)] if progress else [])


def says_more(kind: str, payload: Mapping[str, Any]) -> bool:
    """Whether an open line would show what the line itself does not."""
    said = _SAID.get(kind, set()) | _PREVIEWED
    return any(
        value not in (None, "", [])
        for key, value in payload.items()
        if key not in said and not key.startswith("_")
    )


def as_sentence(reason: object) -> str:
    """A reason that was written to continue one, by itself."""
    text = reason.strip() if isinstance(reason, str) else ""
    if not text:
        return ""
    return with_full_stop(f"{text[:1].upper()}{text[1:]}")


def _result_panes(result: RunEvent) -> list[Pane]:
    payload = result.payload
    structured, text = payload.get("structured"), payload.get("text")
    panes = []
    # A tool's error is its text: show it once.
    if payload.get("error") and str(payload["error"]).strip() not in str(text or ""):
        panes.append(_pane("Error", result, "error", is_error=True))
    words = _words_panes(result, structured, has_error=bool(panes))
    shape = [] if structured is None else [_pane("Result", result, "structured")]
    # Of a failure the tool's own words come first (D13).
    panes += words + shape if payload.get("ok") is False else shape + words
    panes = panes or [Pane("Result", "", json_tree("Nothing was returned"))]
    return panes + _list_panes(result, ("warnings",))


def _words_panes(result: RunEvent, structured: Any, *, has_error: bool) -> list[Pane]:
    """The parts of a result, or its text where there are none beyond it."""
    payload = result.payload
    failed = payload.get("ok") is False
    if isinstance(payload.get("content"), list) and payload["content"]:
        label = "Result" if structured is None else "Content"
        return [_parts_pane("Error" if failed and not has_error else label, result, structured)]
    text = payload.get("text")
    if not text or _says_the_same(text, structured):
        return []
    label = "Result" if structured is None else "Text"
    return [_text_pane("Error" if failed and not has_error else label, result, failed)]


def _parts_pane(label: str, result: RunEvent, structured: Any) -> Pane:
    """Parts in the server's order, but for the text that repeats the structured result."""
    content = [
        item
        for item in result.payload["content"]
        if not (
            isinstance(item, dict)
            and item.get("type") == "text"
            and isinstance(item.get("text"), str)
            and _says_the_same(item["text"], structured)
        )
    ]
    pane = _pane(label, result, "content", result.payload.get("ok") is False)
    return replace(pane, tree=None, parts=parts_of(content))


def _text_pane(label: str, result: RunEvent, failed: bool) -> Pane:
    pane = _pane(label, result, "text", failed)
    repeats = pane.blob and result.payload.get("structured") is not None
    if repeats and pane.raw.lstrip()[:1] in ("{", "["):
        # Both are cut, so nobody can compare them here; all but certainly they say the same.
        return replace(pane, label="Result as text", raw="")
    return pane


def _progress_pane(progress: RunEvent) -> Pane:
    shown = {
        key: value
        for key, value in progress.payload.items()
        if key not in ("server", "tool") and value not in (None, "")
    }
    return Pane("Last progress", pretty(shown), json_tree(shown))


def _says_the_same(text: str, structured: Any) -> bool:
    """Servers repeat a structured result as text, for clients that know only text."""
    if structured is None:
        return False
    parsed = _parsed(text)
    return parsed == structured or parsed == {"result": structured}


def _plain_panes(event: RunEvent) -> list[Pane]:
    payload = event.payload
    if not isinstance(payload, dict):
        return [Pane("Payload", pretty(payload), json_tree(payload))]
    said = _SAID.get(event.kind, set())
    panes = [
        _pane(label, event, key, key in _ALARMING)
        for key, label in _TEXTS.items()
        if payload.get(key) and key not in said
    ]
    lists = _list_panes(event, [key for key in _LISTS if key not in said])
    rest = {
        key: value
        for key, value in payload.items()
        if key not in {*_TEXTS, *said}
        and not (key in _LISTS and _is_list(value))
        and not key.startswith("_")
        and value not in (None, "")
    }
    if event.kind == "outputs.set":
        return [_pane("Value", event, "value")]
    if rest and event.kind == "broker.call":
        return [Pane("Arguments", pretty(rest), json_tree(rest)), *panes]
    if rest:
        panes.append(Pane("Details", pretty(rest), json_tree(rest)))
    return panes + lists


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _list_panes(event: RunEvent, keys: Any) -> list[Pane]:
    panes = []
    for key in keys:
        values = event.payload.get(key)
        if isinstance(values, list) and values:
            lines = "\n".join(item if isinstance(item, str) else pretty(item) for item in values)
            panes.append(Pane(_LISTS[key], lines, is_warning=key == "warnings"))
    return panes


def _pane(label: str, event: RunEvent, key: str, is_error: bool = False) -> Pane:
    payload = event.payload
    value = payload.get(key)
    blob, size, is_stored = blob_of(payload, key)
    tree = None
    if not isinstance(value, str):
        tree = json_tree(value, is_cut=is_stored)
    elif not is_stored and key in ("text", "value") and (parsed := _parsed(value)) is not None:
        tree = json_tree(parsed)
    raw = value if isinstance(value, str) else pretty(value)
    return Pane(
        label,
        raw,
        tree,
        is_error,
        seq=event.seq,
        key=key,
        blob=blob,
        size=size,
        is_cut=is_stored and not blob,
    )


def blob_of(payload: Mapping[str, Any], key: str) -> tuple[str, int, bool]:
    """The id of a field's stored body, its bytes, and whether the field was cut at all."""
    blobs = payload.get("_blobs")
    stored = blobs.get(key) if isinstance(blobs, dict) else None
    if not isinstance(stored, dict):
        return "", 0, False
    return str(stored.get("id") or ""), int(stored.get("size") or 0), True


def _parsed(text: str) -> dict[str, Any] | list[Any] | None:
    """The object or list that the text is as JSON; None for anything else."""
    if len(text) > MAX_PARSED or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None
