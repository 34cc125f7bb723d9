"""Images, sound and files inside the results of tools: out of base64, with their true type.

What a server says of them is not believed: the first bytes decide the type, and only types that
are known to be harmless get one that a page shows in place. This module imports no Django.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

MAX_BYTES: Final = 16 * 1024 * 1024  # of one file
MAX_RUN_BYTES: Final = 256 * 1024 * 1024  # of all files of a run
MAX_RUN_FILES: Final = 1000

UNKNOWN: Final = "application/octet-stream"
NOT_BASE64: Final = "Its data is not base64."
EMPTY: Final = "It is empty."
TOO_LARGE: Final = f"It is larger than {MAX_BYTES // (1024 * 1024)} MiB and was not kept."
RUN_IS_FULL: Final = (
    f"It was not kept: of all results a run keeps {MAX_RUN_FILES:,} such files "
    f"and {MAX_RUN_BYTES // (1024 * 1024)} MiB."
)
NOT_STORED: Final = "It could not be stored."

# (offset, bytes, type, extension); the first match counts.
_MAGIC: Final[tuple[tuple[int, bytes, str, str], ...]] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png", "png"),
    (0, b"\xff\xd8\xff", "image/jpeg", "jpg"),
    (0, b"GIF87a", "image/gif", "gif"),
    (0, b"GIF89a", "image/gif", "gif"),
    (8, b"WEBP", "image/webp", "webp"),
    (8, b"WAVE", "audio/wav", "wav"),
    (0, b"OggS", "audio/ogg", "ogg"),
    (0, b"fLaC", "audio/flac", "flac"),
    (0, b"ID3", "audio/mpeg", "mp3"),
    (0, b"\xff\xf1", "audio/aac", "aac"),
    (0, b"\xff\xf9", "audio/aac", "aac"),
    (0, b"\xff\xfb", "audio/mpeg", "mp3"),
    (0, b"\xff\xf3", "audio/mpeg", "mp3"),
    (0, b"\xff\xf2", "audio/mpeg", "mp3"),
    (0, b"%PDF-", "application/pdf", "pdf"),
    (0, b"PK\x03\x04", "application/zip", "zip"),
)
# Containers that hold films as well: sound only where the server calls it so.
_SOUND_MAGIC: Final[tuple[tuple[int, bytes, str, str], ...]] = (
    (0, b"\x1a\x45\xdf\xa3", "audio/webm", "webm"),
    (4, b"ftyp", "audio/mp4", "m4a"),
)
_RIFF = ("image/webp", "audio/wav")
# Line ends are harmless, and some encoders write the alphabet for addresses.
_TIDY = str.maketrans({"-": "+", "_": "/", "\n": None, "\r": None, " ": None, "\t": None})


@dataclass(frozen=True)
class Media:
    """A file that a result held. `name` is unique in its run."""

    id: UUID
    span: str
    name: str
    media_type: str
    body: bytes


def say_more_than_text(parts: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the parts of a result hold anything that its text leaves out."""
    return any(part.get("type") != "text" or not _is_text(part.get("text")) for part in parts)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def data_of(part: Mapping[str, Any]) -> object | None:
    """The base64 text of an image, a sound or an embedded file; None for other parts."""
    if part.get("type") in ("image", "audio"):
        return part.get("data") or ""
    resource = part.get("resource")
    if part.get("type") == "resource" and isinstance(resource, Mapping):
        return resource.get("blob")
    return None


def declared_type(part: Mapping[str, Any]) -> str:
    """The type that the server claims; empty where it claims none."""
    resource = part.get("resource")
    holder = resource if isinstance(resource, Mapping) else part
    found = holder.get("mimeType")
    return found[:200].strip().lower() if isinstance(found, str) else ""


def decode(data: object) -> bytes | None:
    """The bytes of base64 text in either alphabet, with or without padding; None for others."""
    if not isinstance(data, str):
        return None
    if data.startswith("data:"):  # a data address, which some servers send in its place
        data = data.partition(",")[2]
    text = data.translate(_TIDY).rstrip("=")
    try:
        return binascii.a2b_base64(
            (text + "=" * (-len(text) % 4)).encode("ascii"), strict_mode=True
        )
    except ValueError:
        return None


def true_type(body: bytes, declared: str = "", kind: str = "") -> tuple[str, str]:
    """Media type and extension by the first bytes; text keeps a harmless type of its own."""
    is_sound = kind == "audio" or declared.startswith("audio/")
    for offset, magic, media_type, extension in _MAGIC + (_SOUND_MAGIC if is_sound else ()):
        if body[offset : offset + len(magic)] != magic:
            continue
        if media_type in _RIFF and not body.startswith(b"RIFF"):
            continue
        return media_type, extension
    if _reads_as_text(body):
        return "text/plain", "txt"
    return UNKNOWN, "bin"


def _reads_as_text(body: bytes) -> bool:
    if b"\0" in body:
        return False
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def kept_part(part: Mapping[str, Any], media: Media | None, problem: str = "") -> dict[str, Any]:
    """A part as its event keeps it: the data replaced by what became of it.

    `mime_type` and `size` (bytes) are the true ones where `artifact` names the kept file; where
    it is None, `problem` says why. `declared` stands only where an image or a sound claims to be
    something else than it is.
    """
    declared = declared_type(part)
    left = _without_data(part) if media or problem != NOT_BASE64 else dict(part)
    found: dict[str, Any] = {
        "mime_type": media.media_type if media else declared or UNKNOWN,
        "size": len(media.body) if media else rough_size(data_of(part)),
        "artifact": str(media.id) if media else None,
    }
    if media and not _agree(declared, media.media_type):
        found["declared"] = declared
    return left | found | ({"problem": problem} if problem else {})


def _without_data(part: Mapping[str, Any]) -> dict[str, Any]:
    left = {key: value for key, value in part.items() if key not in ("data", "mimeType")}
    resource = part.get("resource")
    if isinstance(resource, Mapping):
        left["resource"] = {key: value for key, value in resource.items() if key != "blob"}
    return left


def rough_size(data: object) -> int:
    """The bytes that base64 text decodes to, without decoding it."""
    return len(data) * 3 // 4 if isinstance(data, str) else 0


def _agree(declared: str, found: str) -> bool:
    declared = declared.partition(";")[0].strip().replace("/x-", "/")
    if not declared.startswith(("image/", "audio/")) or declared == found:
        return True
    return declared in _ALIASES.get(found, ())


_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "image/jpeg": ("image/jpg", "image/pjpeg"),
    "audio/mpeg": ("audio/mp3",),
    "audio/wav": ("audio/wave", "audio/vnd.wave"),
    "audio/ogg": ("audio/opus", "audio/vorbis"),
    "audio/mp4": ("audio/m4a", "audio/aac"),
    "audio/aac": ("audio/aacp", "audio/mpeg"),
    "text/plain": ("image/svg+xml",),  # never shown as a picture, so nobody is misled
}
