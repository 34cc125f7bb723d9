"""One value of an event, whole: text in pages, JSON as a tree that opens further.

The timeline keeps head and tail of what is large; its stored body is read here piece by piece,
so that sixteen megabytes cost what one page costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET

from jobs.models import Blob, Run, RunEvent
from jobs.payloads import body_of
from jobs.views.files import check_stored, read_stored
from jobs.views.json_tree import Path, json_tree
from jobs.views.panes import blob_of
from umpteenth.core.htmx import Request, render_page

PAGE = 64 * 1024  # bytes of text on one page
SLACK = 4096  # a page ends at a line's end, if one is so near
MAX_TREE = 4 * 1024 * 1024  # bytes of JSON that become a tree; in memory it is much more
ROWS = 200  # entries of the opened value on one page
NODES = 2000

LABELS = {
    "arguments": "Arguments",
    "structured": "Result",
    "text": "Text",
    "content": "Content",
    "error": "Error",
    "value": "Value",
    "message": "Message",
    "reason": "Reason",
    "stderr_tail": "End of standard error",
}


class ValueForm(forms.Form):
    """Where in the value the reader is; what makes no sense is left out."""

    page = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    start = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    at = forms.CharField(required=False, max_length=8000, strip=False)
    view = forms.ChoiceField(required=False, choices=[("tree", "Tree"), ("text", "Text")])

    @classmethod
    def read(cls, request: Request) -> dict[str, Any]:
        form = cls(request.GET)
        form.is_valid()
        return {name: form.cleaned_data.get(name) for name in form.fields}


class Body(Protocol):
    @property
    def size(self) -> int: ...

    def read(self, start: int, length: int) -> bytes: ...


@dataclass(frozen=True)
class Stored:
    path: str
    size: int

    def read(self, start: int, length: int) -> bytes:
        return read_stored(self.path, start, length)


class Held:
    """A body that the event itself holds."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._content = content

    def read(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]


@dataclass(frozen=True)
class TextPage:
    """`number` counts pages, from 1; `first` and `last` are places in bytes."""

    text: str
    number: int
    pages: int
    first: int
    last: int

    @property
    def previous(self) -> int:
        return self.number - 1

    @property
    def following(self) -> int:
        return self.number + 1 if self.number < self.pages else 0


@dataclass(frozen=True)
class TreePage:
    """Entries of a value, counted from 1, and the addresses of those before and after."""

    tree: SafeString
    first: int = 0
    last: int = 0
    size: int = 0
    previous: str = ""
    following: str = ""


@require_GET
def run_value(request: Request, pk: UUID, seq: int, key: str) -> HttpResponse:
    """A field of an event's payload: `?page=` of its text, or `?at=` in its tree."""
    run = get_object_or_404(Run.objects.select_related("job").only("number", "job__name"), pk=pk)
    event = get_object_or_404(RunEvent, run_id=pk, seq=seq)
    if not isinstance(event.payload, dict) or key.startswith("_") or key not in event.payload:
        raise Http404("This event has no such value.")
    asked = ValueForm.read(request)
    body, blob, is_cut = _body(event.payload, key, pk)
    is_text = isinstance(event.payload[key], str)
    context = {"run": run, "event": event, "key": key, "size": body.size, "blob": blob}
    context |= {"title": _title(event, key), "is_cut": is_cut, "active_section": "runs"}
    context["label"] = LABELS.get(key, key)
    context |= _shown(body, asked, is_text=is_text)
    return render_page(request, "runs/value.html", context)


def _title(event: RunEvent, key: str) -> str:
    label, tool = LABELS.get(key, key), event.payload.get("tool")
    if not isinstance(tool, str) or not tool:
        return label
    if event.kind == "tool.result" and label == "Text":
        label = "Result"
    return f"{label} of {tool}"


def _body(payload: Mapping[str, Any], key: str, run_id: UUID) -> tuple[Body, str, bool]:
    """The whole value, the id of its download, and whether it is head and tail only."""
    blob_id, _, was_cut = blob_of(payload, key)
    if not blob_id:
        return Held(body_of(payload[key])), "", was_cut
    blob = get_object_or_404(Blob, pk=blob_id, run_id=run_id)
    check_stored(blob.path)
    return Stored(blob.path, blob.size), blob_id, False


def _shown(body: Body, asked: dict[str, Any], *, is_text: bool) -> dict[str, Any]:
    start = body.read(0, 1)
    may_be_tree = (not is_text or start in (b"{", b"[")) and body.size <= MAX_TREE
    value = _parsed(body) if may_be_tree and asked["view"] != "text" else None
    modes = {"has_tree": may_be_tree, "is_large": not is_text and body.size > MAX_TREE}
    if not isinstance(value, dict | list):
        return modes | {"text": text_page(body, asked["page"] or 1)}
    path = path_of(asked["at"] or "")
    found = follow(value, path)
    place = modes | {"crumbs": crumbs(path), "at": pointer_of(path)}
    if isinstance(found, str):
        inside = Held(found.encode("utf-8", "replace"))
        return place | {"text": text_page(inside, asked["page"] or 1)}
    return place | {"tree": tree_page(found, path, asked["start"] or 0)}


def _parsed(body: Body) -> Any:
    try:
        return json.loads(body.read(0, MAX_TREE))
    except (ValueError, RecursionError):
        return None


# Text


def text_page(body: Body, number: int) -> TextPage:
    """Page `number`, or the last one. Pages meet at line ends and never inside a character."""
    pages = max(1, -(-body.size // PAGE))
    while pages > 1 and cut_point(body, pages - 1) >= body.size:
        pages -= 1
    number = min(number, pages)
    first = cut_point(body, number - 1)
    last = body.size if number == pages else cut_point(body, number)
    text = body.read(first, last - first).decode("utf-8", "replace")
    return TextPage(text, number, pages, first, last)


def cut_point(body: Body, pages: int) -> int:
    """The place after so many pages."""
    place = pages * PAGE
    if place <= 0 or place >= body.size:
        return min(max(place, 0), body.size)
    near = body.read(place, SLACK)
    if (line_end := near.find(b"\n")) >= 0:
        return place + line_end + 1
    # The bytes that go on with a character look 10xxxxxx.
    beginning = (at for at, byte in enumerate(near[:4]) if byte & 0xC0 != 0x80)
    return place + next(beginning, len(near[:4]))


# Trees


def tree_page(value: Any, path: Path, start: int) -> TreePage:
    if not isinstance(value, dict | list):
        return TreePage(json_tree(value))
    size = len(value)
    start = min(start, max(size - 1, 0) // ROWS * ROWS)
    tree = json_tree(value, nodes=NODES, link=address, path=path, start=start, rows=ROWS)
    return TreePage(
        tree,
        min(start + 1, size),
        min(start + ROWS, size),
        size,
        address(path, max(start - ROWS, 0)) if start else "",
        address(path, start + ROWS) if start + ROWS < size else "",
    )


def address(path: Path, start: int = 0) -> str:
    query = {"at": pointer_of(path)} | ({"start": start} if start else {})
    return f"?{urlencode(query)}"


def pointer_of(path: Path) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in path)


def path_of(pointer: str) -> Path:
    if not pointer.startswith("/"):
        return ()
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in pointer[1:].split("/"))


def follow(value: Any, path: Path) -> Any:
    """The value that a path leads to. Raises `Http404`."""
    for key in path:
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Http404("The value has nothing at this place.") from None
    return value


def crumbs(path: Path) -> list[tuple[str, str]]:
    """The keys that lead to a value, each with its address, after the whole value."""
    return [(str(key), address(path[: at + 1])) for at, key in enumerate(path)]
