"""Files that runs left behind. They come from scripts and servers and must not act as our pages:
attachment, no sniffing, a sandbox policy; shown in place only images and sound (design, 3)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.files.storage import default_storage
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET

from jobs.media import UNKNOWN, is_harmless
from jobs.models import Artifact, Blob, Run
from umpteenth.core.connections import give_back
from umpteenth.core.htmx import Request

logger = logging.getLogger(__name__)
CHUNK = 64 * 1024  # bytes
STORAGE_AWAY = "The storage of files does not answer; try again in a moment."
INLINE_TYPES = {
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "audio/mpeg",
    "audio/ogg",
    "audio/wav",
    "audio/webm",
    "audio/mp4",
    "audio/flac",
    "audio/aac",
}


def may_be_inline(media_type: str) -> bool:
    return media_type.lower() in INLINE_TYPES


@require_GET
def artifact(request: Request, pk: UUID, artifact_id: UUID) -> HttpResponseBase:
    """A file of /ump/outputs; `?inline=1` shows an image or plays a sound."""
    found = get_object_or_404(Artifact, pk=artifact_id, run_id=pk)
    inline = request.GET.get("inline") == "1" and may_be_inline(found.media_type)
    return send_stored(
        request,
        found.path,
        name=PurePosixPath(found.name).name or "artifact",
        size=found.size,
        media_type=_sent_type(found.media_type.lower(), inline=inline),
        inline=inline,
    )


def _sent_type(media_type: str, *, inline: bool) -> str:
    return media_type if inline or is_harmless(media_type) else UNKNOWN


@require_GET
def blob(request: Request, pk: UUID, blob_id: UUID) -> HttpResponseBase:
    """The whole of a value of which the timeline keeps head and tail."""
    found = get_object_or_404(Blob, pk=blob_id, run_id=pk)
    return send_stored(
        request,
        found.path,
        name=f"{found.pk}.txt",
        size=found.size,
        media_type="text/plain; charset=utf-8",
    )


@require_GET
def output(request: Request, pk: UUID) -> HttpResponseBase:
    """Everything the script printed, as one text file."""
    run = get_object_or_404(Run.objects.select_related("job").only("number", "job__name"), pk=pk)
    texts = run.events.filter(kind="output").order_by("seq").values_list("payload", flat=True)

    def pieces() -> Iterator[bytes]:
        for payload in texts.iterator(chunk_size=200):
            yield str(payload.get("text") or "").encode("utf-8", "replace")

    return send_pieces(
        request,
        pieces,
        name=f"{run.job.name} {run.number}.txt",
        media_type="text/plain; charset=utf-8",
    )


def send_stored(
    request: HttpRequest, path: str, *, name: str, size: int, media_type: str, inline: bool = False
) -> HttpResponseBase:
    """A file of the storage in pieces. Raises `Http404` if it is gone."""
    check_stored(path)

    def pieces() -> Iterator[bytes]:
        # Whoever reads slowly must not hold the connection by which the file was found.
        give_back()
        # Opened only here: a body that nobody reads must not leave an open file.
        with default_storage.open(path, "rb") as handle:
            while piece := handle.read(CHUNK):
                yield piece

    response = send_pieces(request, pieces, name=name, media_type=media_type, inline=inline)
    response["Content-Length"] = str(size)
    return response


def check_stored(path: str) -> None:
    """Raises `Http404` where the file is gone or its storage does not answer."""
    give_back()  # a bucket may take long to say so
    try:
        found = default_storage.exists(path)
    except Exception:  # storages raise errors of their own kinds
        logger.exception("%s cannot be looked up", path)
        raise Http404(STORAGE_AWAY) from None
    if not found:
        raise Http404("This file is no longer stored.")


def read_stored(path: str, start: int, length: int) -> bytes:
    """A part of a file. Raises `Http404` where its storage does not answer."""
    give_back()
    try:
        with default_storage.open(path, "rb") as handle:
            handle.seek(start)
            found: bytes = handle.read(length)
    except Exception:  # storages raise errors of their own kinds
        logger.exception("%s cannot be read", path)
        raise Http404(STORAGE_AWAY) from None
    return found


def send_pieces(
    request: HttpRequest,
    pieces: Callable[[], Iterator[bytes]],
    *,
    name: str,
    media_type: str,
    inline: bool = False,
) -> StreamingHttpResponse:
    body: Any = _async(pieces) if isinstance(request, ASGIRequest) else pieces()
    response = StreamingHttpResponse(body, content_type=media_type)
    response["Content-Disposition"] = content_disposition_header(not inline, name) or "attachment"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


async def _async(pieces: Callable[[], Iterator[bytes]]) -> AsyncIterator[bytes]:
    """Under ASGI a plain iterator would be read into memory as a whole."""
    iterator = pieces()
    following = sync_to_async(lambda: next(iterator, None))
    try:
        while (piece := await following()) is not None:
            yield piece
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            await sync_to_async(close)()
