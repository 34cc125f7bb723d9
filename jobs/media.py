"""Images, sound and files inside the results of tools: out of base64, with their true type.

What a server says of them is not believed: the first bytes decide the type, and only types that
are known to be harmless get one that a page shows in place. This module imports no Django.
"""

from __future__ import annotations

import binascii
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

MAX_BYTES: Final = 16 * 1024 * 1024  # of one file
MAX_RUN_BYTES: Final = 256 * 1024 * 1024  # of all files of a run
MAX_RUN_FILES: Final = 1000

UNKNOWN: Final = "application/octet-stream"
MAX_TYPE: Final = 100  # characters, what the column of artifacts holds
NOT_BASE64: Final = "Its data is not base64."
EMPTY: Final = "It is empty."
TOO_LARGE: Final = f"It is larger than {MAX_BYTES // (1024 * 1024)} MiB and was not kept."
RUN_IS_FULL: Final = (
    f"It was not kept: of all results a run keeps {MAX_RUN_FILES:,} such files "
    f"and {MAX_RUN_BYTES // (1024 * 1024)} MiB."
)
NOT_STORED: Final = "It could not be stored."

_ZIP: Final = "application/zip"
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
    (0, b"PK\x03\x04", _ZIP, "zip"),
    (0, b"\x1f\x8b\x08", "application/gzip", "gz"),
)
# Containers that hold films as well: sound only where the server calls it so.
_SOUND_MAGIC: Final[tuple[tuple[int, bytes, str, str], ...]] = (
    (0, b"\x1a\x45\xdf\xa3", "audio/webm", "webm"),
    (4, b"ftyp", "audio/mp4", "m4a"),
)
_RIFF = ("image/webp", "audio/wav")
# RFC 6838, section 4.2: two restricted names.
_SANE_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")
# Text, pages and programs, which some reader might run; and what holds other types.
_ACTIVE: Final = re.compile(
    r"(text|multipart|message)/.*|.*([+/]xml|html.*|script|svg.*|flash|shell|-c?sh|python.*)"
    r"|.*(msdos|msdownload|executable|installer|archive-program|ms-shortcut|java|sharedlib).*"
)
# Python's own table, since that of the machine differs from place to place.
_NAMES: Final = mimetypes.MimeTypes(filenames=())
_EXTENSIONS: Final[Mapping[str, str]] = {
    "application/gzip": "gz",
    "application/x-gzip": "gz",
    "application/epub+zip": "epub",
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.sqlite3": "sqlite",
    "application/x-7z-compressed": "7z",
    "application/x-bzip2": "bz2",
    "application/x-xz": "xz",
    "application/zstd": "zst",
    "font/woff2": "woff2",
    "image/avif": "avif",
    "image/heic": "heic",
    "image/tiff": "tiff",
}
# Line ends are harmless, and some encoders write the alphabet for addresses.
_TIDY = str.maketrans({"-": "+", "_": "/", "\n": None, "\r": None, " ": None, "\t": None})


# Characters decoded in one go, some milliseconds: decoding keeps all other threads waiting.
_PIECE: Final = 256 * 1024


@dataclass(frozen=True)
class Held:
    """A part that holds a file, before it is decoded; `number` is its place in the result."""

    id: UUID
    span: str
    number: int
    part: Mapping[str, Any]


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
    text = "".join(piece.translate(_TIDY) for piece in _pieces(data)).rstrip("=")
    if "=" in text:
        return None
    text += "=" * (-len(text) % 4)
    try:
        return b"".join(
            binascii.a2b_base64(piece.encode("ascii"), strict_mode=True) for piece in _pieces(text)
        )
    except ValueError:
        return None


def _pieces(text: str) -> Iterator[str]:
    """Of a length that base64 can be cut at."""
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def true_type(body: bytes, declared: str = "", kind: str = "") -> tuple[str, str]:
    """Media type and extension by the first bytes; text keeps a harmless type of its own.

    What they do not tell is what the server says that it is, if nothing can come of that.
    """
    is_sound = kind == "audio" or declared.startswith("audio/")
    for offset, magic, media_type, extension in _MAGIC + (_SOUND_MAGIC if is_sound else ()):
        if body[offset : offset + len(magic)] != magic:
            continue
        if media_type in _RIFF and not body.startswith(b"RIFF"):
            continue
        if media_type == _ZIP:  # documents, books and the like are archives as well
            return _believed(declared) or (media_type, extension)
        return media_type, extension
    if _reads_as_text(body):
        return "text/plain", "txt"
    return _believed(declared) or (UNKNOWN, "bin")


def is_harmless(media_type: str) -> bool:
    """Whether a download may be called so: two names, and nothing that a reader would run."""
    return (
        len(media_type) <= MAX_TYPE
        and _SANE_TYPE.fullmatch(media_type) is not None
        and _ACTIVE.fullmatch(media_type) is None
    )


def _believed(declared: str) -> tuple[str, str] | None:
    """None for types whose first bytes are known: it would be one of them by its bytes."""
    media_type = declared.partition(";")[0].strip()
    if media_type in _TOLD_BY_BYTES or not is_harmless(media_type):
        return None
    guessed = (_NAMES.guess_extension(media_type) or "").removeprefix(".")
    return media_type, _EXTENSIONS.get(media_type, guessed) or "bin"


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
_TOLD_BY_BYTES: Final = frozenset(
    {UNKNOWN, *(row[2] for row in (*_MAGIC, *_SOUND_MAGIC))}.union(*_ALIASES.values())
)


def artifact_of(part: Any) -> str:
    """The id of the artifact that a part of a recorded result names; empty where none."""
    found = part.get("artifact") if isinstance(part, dict) else None
    return found if isinstance(found, str) else ""
