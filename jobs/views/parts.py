"""The parts of a tool's result as what they are: text, pictures, sound, links, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils.safestring import SafeString

from jobs.views.files import may_be_inline
from jobs.views.json_tree import json_tree
from umpteenth.core.text import clean

MAX_PARTS = 200
MAX_WORD = 2000


@dataclass(frozen=True)
class Part:
    """One part. `artifact` names its file, `problem` says why there is none."""

    label: str
    text: str = ""
    # What a link is called and described as.
    words: str = ""
    # Where it came from and what it is called: an address of the server, shown as text.
    name: str = ""
    mime_type: str = ""
    size: int | None = None
    artifact: str = ""
    problem: str = ""
    # What an image or a sound claims to be where it is something else.
    declared: str = ""
    tree: SafeString | None = None

    @property
    def is_image(self) -> bool:
        return self._is_shown("image/")

    @property
    def is_audio(self) -> bool:
        return self._is_shown("audio/")

    def _is_shown(self, kind: str) -> bool:
        is_kind = self.mime_type.startswith(kind) and may_be_inline(self.mime_type)
        return bool(self.artifact) and is_kind


def parts_of(content: list[Any]) -> list[Part]:
    """What the event keeps of a result's content; whatever its shape, each part is shown."""
    parts = [_part(item) for item in content[:MAX_PARTS]]
    if len(content) > MAX_PARTS:
        parts.append(Part("", f"{len(content) - MAX_PARTS:,} more parts"))
    return parts


def _part(item: Any) -> Part:
    if not isinstance(item, Mapping):
        return Part("", str(item))  # the sentence of `payloads.shorten` about what it left out
    kind = _word(item.get("type")) or "unknown"
    if "artifact" in item:
        return _file(kind, item)
    if kind == "text" and isinstance(item.get("text"), str):
        return Part("Text", item["text"])
    if kind == "resource_link":
        return _link(item)
    resource = item.get("resource")
    if kind == "resource" and isinstance(resource, Mapping):
        text, mime_type = resource.get("text"), _word(resource.get("mimeType"))
        if isinstance(text, str):
            name = _word(resource.get("uri"))
            return Part("Resource", text, name=name, mime_type=mime_type)
    return Part(kind, tree=json_tree(item))


def _file(kind: str, item: Mapping[str, Any]) -> Part:
    labels = {"image": "Image", "audio": "Sound", "resource": "Resource"}
    resource = item.get("resource")
    size = item.get("size")
    return Part(
        labels.get(kind, kind),
        name=_word(resource.get("uri")) if isinstance(resource, Mapping) else "",
        mime_type=_word(item.get("mime_type")),
        size=size if isinstance(size, int) else None,
        artifact=_uuid(item.get("artifact")),
        problem=_word(item.get("problem")),
        declared=_word(item.get("declared")),
    )


def _link(item: Mapping[str, Any]) -> Part:
    """An address is shown and not linked: it is the server's, and may lead anywhere."""
    words = [_word(item.get(key)) for key in ("title", "name", "description")]
    return Part(
        "Resource link",
        words="\n".join(dict.fromkeys(filter(None, words))),
        name=_word(item.get("uri")),
        mime_type=_word(item.get("mimeType")),
    )


def _word(value: object) -> str:
    return clean(value, MAX_WORD) if isinstance(value, str) else ""


def _uuid(value: object) -> str:
    try:
        return str(UUID(value)) if isinstance(value, str) else ""
    except ValueError:
        return ""
