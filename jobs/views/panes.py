"""What an open line of the timeline shows: arguments and result, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from jobs.models import RunEvent
from jobs.views.json_tree import json_tree, pretty

# Fields that hold text for people; the other ones are shown together as JSON.
_TEXTS = {
    "message": "Message",
    "reason": "Reason",
    "error": "Error",
    "text": "Text",
    "hint": "What to do",
    "stderr_tail": "End of standard error",
}
_ALARMING = ("error", "reason")
# What the line itself says already.
_SAID = {
    "server.unavailable": {"server", "message"},
    "broker.call": {"command", "ok", "found"},
    "run.status": {"status"},
    "server.connected": {"server", "tools", "transport", "protocol_version"},
}
# Longer texts are shown as text even if they are JSON.
MAX_PARSED = 64_000


@dataclass(frozen=True)
class Pane:
    """A value with its heading. `raw` is what the copy button copies."""

    label: str
    raw: str
    tree: SafeString | None = None
    is_error: bool = False
    # The whole value, where the event keeps only its head and tail.
    blob: str = ""
    size: int = 0
    # The value was cut and no whole copy exists.
    is_cut: bool = False


def panes_of(event: RunEvent, result: RunEvent | None = None) -> list[Pane]:
    """Panes for one event, or for a call and its result."""
    if event.kind == "tool.result":
        return _result_panes(event)
    if event.kind == "tool.call":
        call = [_pane("Arguments", event.payload, "arguments")]
        return call + (_result_panes(result) if result else [])
    return _plain_panes(event)


def _result_panes(result: RunEvent) -> list[Pane]:
    payload = result.payload
    panes = []
    structured, text = payload.get("structured"), payload.get("text")
    # A tool's error is its text: show it once.
    if payload.get("error") and str(payload["error"]).strip() not in str(text or ""):
        panes.append(_pane("Error", payload, "error", is_error=True))
    if structured is not None:
        panes.append(_pane("Result", payload, "structured"))
    if text and not _says_the_same(text, structured, payload):
        failed = payload.get("ok") is False
        label = "Error" if failed and not panes else "Text" if structured is not None else "Result"
        panes.append(_pane(label, payload, "text", failed))
    return panes or [Pane("Result", "", json_tree("Nothing was returned"))]


def _says_the_same(text: str, structured: Any, payload: Mapping[str, Any]) -> bool:
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
        _pane(label, payload, key, key in _ALARMING)
        for key, label in _TEXTS.items()
        if payload.get(key) and key not in said
    ]
    rest = {
        key: value
        for key, value in payload.items()
        if key not in {*_TEXTS, *said} and not key.startswith("_") and value not in (None, "")
    }
    if event.kind == "outputs.set":
        return [_pane("Value", payload, "value")]
    if rest and event.kind == "broker.call":
        return [Pane("Arguments", pretty(rest), json_tree(rest)), *panes]
    if rest:
        panes.append(Pane("Details", pretty(rest), json_tree(rest)))
    return panes


def _pane(label: str, payload: Mapping[str, Any], key: str, is_error: bool = False) -> Pane:
    value = payload.get(key)
    blobs = payload.get("_blobs")
    stored = blobs.get(key) if isinstance(blobs, dict) else None
    blob, size = "", 0
    if isinstance(stored, dict):
        blob, size = str(stored.get("id") or ""), int(stored.get("size") or 0)
    tree = None
    if not isinstance(value, str):
        tree = json_tree(value)
    elif stored is None and key in ("text", "value") and (parsed := _parsed(value)) is not None:
        tree = json_tree(parsed)
    raw = value if isinstance(value, str) else pretty(value)
    return Pane(label, raw, tree, is_error, blob, size, stored is not None and not blob)


def _parsed(text: str) -> dict[str, Any] | list[Any] | None:
    """The object or list that the text is as JSON; None for anything else."""
    if len(text) > MAX_PARSED or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None
