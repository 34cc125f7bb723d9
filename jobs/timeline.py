"""Records what happens in a run: events in order, large bodies as blobs, masked when written.

`append` is the one place that inserts events. Their numbers come from the run's row in the
same transaction, so that a reader who has seen number n never finds a smaller one later.
Live pages are woken by the listeners of `register_listener` after each commit.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import F

from jobs import media, payloads
from jobs.effects import Effect, Effects
from jobs.media import Held, Media
from jobs.models import Artifact, Blob, Run, RunEvent
from jobs.storage.removal import delete_files
from umpteenth.core import clock
from umpteenth.core.connections import give_back
from umpteenth.core.ids import new_id
from umpteenth.core.masking import Masker
from umpteenth.core.text import clean_json

logger = logging.getLogger(__name__)
Listener = Callable[[UUID], None]

MAX_BLOB_BYTES = 256 * 1024 * 1024  # of one run; above it only head and tail are kept
_listeners: list[Listener] = []


class LostClaim(Exception):
    """The run belongs to nobody or somebody else now; nothing was written."""


@dataclass(frozen=True)
class Event:
    """One thing that happened. `masked` says that its texts hold no secret any more."""

    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    span: str = ""
    parent_span: str = ""
    ms: float | None = None
    at: datetime = field(default_factory=clock.now)
    masked: bool = False


def register_listener(listener: Listener) -> None:
    """Call `listener(run_id)` after every commit that changed a run's events or status.

    It is called in the thread that committed and must not wait.
    """
    if listener not in _listeners:
        _listeners.append(listener)


def notify(run_id: UUID) -> None:
    """Wake the listeners once the open transaction, if any, has committed."""
    transaction.on_commit(lambda: _wake(run_id))


def _wake(run_id: UUID) -> None:
    for listener in _listeners:
        try:
            listener(run_id)
        except Exception:  # a live page must not break the record
            logger.exception("a listener of the timeline failed")


def append(
    run_id: UUID,
    events: Sequence[Event],
    *,
    token: str | None = None,
    blobs: Sequence[Blob] = (),
    artifacts: Sequence[Artifact] = (),
    **changes: Any,
) -> int:
    """Insert events and return the last number; `changes` are of the run's row. Raises `LostClaim`.

    With a token the run must still be live under it; without one the caller has made sure, in
    the same transaction, that it may write.
    """
    # The caller's own transaction, if there is one, does not go on once this has failed.
    with transaction.atomic(savepoint=token is not None):
        runs = Run.objects.filter(pk=run_id)
        if token is not None:
            runs = runs.filter(claim_token=token, status__in=Run.LIVE)
        size = sum(blob.size for blob in blobs)
        changed = runs.update(
            last_seq=F("last_seq") + len(events), blob_bytes=F("blob_bytes") + size, **changes
        )
        if not changed:
            raise LostClaim
        # The update holds the row until commit: nobody else can have moved the number.
        last: int = Run.objects.values_list("last_seq", flat=True).get(pk=run_id)
        Blob.objects.bulk_create(blobs)
        Artifact.objects.bulk_create(artifacts)
        first = last - len(events) + 1
        RunEvent.objects.bulk_create(
            _row(run_id, first + index, event) for index, event in enumerate(events)
        )
        notify(run_id)
    return last


def _row(run_id: UUID, seq: int, event: Event) -> RunEvent:
    return RunEvent(
        run_id=run_id,
        seq=seq,
        at=event.at,
        kind=event.kind,
        span=event.span,
        parent_span=event.parent_span,
        ms=event.ms,
        payload=event.payload,
    )


def status_event(status: str, error: str = "") -> Event:
    return Event("run.status", {"status": status} | ({"error": error} if error else {}))


class Recorder:
    """One thread per run that owns its connection, claim token, masking and batching.

    `start`, then `record` from any thread, `close` at the end. A failure to store an event is
    itself recorded; it never stops the run. After `lost` is set nothing more is written.
    """

    MAX_WAITING = 32 * 1024 * 1024  # bytes, roughly, that wait to be written
    BATCH = 200  # events in one transaction
    PATIENCE = 300.0  # seconds that events wait for a database that is away
    RETRY = 1.0  # seconds between attempts
    # A storage that takes so long to fail is left alone: the events must not wait with each body.
    SLOW_FAILURE = 1.0  # seconds
    STORAGE_REST = 30.0  # seconds
    LINGER = 0.005  # seconds that the first event of a batch waits for others

    def __init__(self, run_id: UUID, token: str, masker: Masker) -> None:
        self.run_id = run_id
        self.lost = threading.Event()
        self._token = token
        self._masker = masker
        self._masking = threading.Lock()
        self._effects = Effects(self.mask)
        # Calls that are about to be sent, and who waits until they are on record.
        self._announced: list[tuple[Effect, Future[bool]]] = []
        self._waiting: list[tuple[Event | Held | Effect, int]] = []
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._room: Callable[[], None] | None = None
        self._stored = 0
        self._media_files = 0
        self._media_bytes = 0
        # By the id of the artifact, until the event comes that names it.
        self._kept: dict[str, dict[str, Any]] = {}
        self._unkept: set[str] = set()  # ids of media that could not be stored
        self._storage_rests_until = -math.inf
        self._away_since: float | None = None
        self._give_up_at = math.inf
        self._thread = threading.Thread(target=self._work, name=f"recorder-{run_id}", daemon=True)

    def start(self, room: Callable[[], None] | None = None) -> None:
        """Begin writing; `room` is called in the recorder's thread when there is space again."""
        self._room = room
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether writers should wait: much is not yet in the database."""
        return self._bytes > self.MAX_WAITING

    def add_secrets(self, values: Mapping[str, str]) -> None:
        """Values to take out of everything that is written from now on."""
        with self._masking:
            for name, value in values.items():
                self._masker.add(name, value)

    def mask(self, text: str) -> str:
        with self._masking:
            return self._masker.mask(text)

    def mask_json(self, value: Any) -> Any:
        with self._masking:
            return self._masker.mask_json(value)

    def mask_bytes(self, value: bytes) -> bytes:
        with self._masking:
            return self._masker.mask_bytes(value)

    def stream(self) -> Any:
        """A mask for a text that comes in pieces (`MaskStream`)."""
        with self._masking:
            return self._masker.stream()

    def record(self, kind: str, payload: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Hand in an event; returns at once."""
        event = Event(kind, payload or {}, **fields)
        self._hand_in(event, payloads.rough_size(event.payload))

    def announce(self, effect: Effect) -> Future[bool]:
        """Keep a call on the run before it is sent: it does not wait for events or their bodies.

        The future is false where the run is not this recorder's any more. It is true once the
        call is on record, and where that failed, which never stops a run.
        """
        written: Future[bool] = Future()
        with self._changed:
            self._announced.append((effect, written))
            self._changed.notify_all()
        return written

    def record_effect(self, effect: Effect) -> None:
        """How an announced call ended, or that it failed before it was sent; returns at once."""
        self._hand_in(effect, payloads.rough_size(effect.arguments))

    def keep_media(self, span: str, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The parts (`content`) of a call's result, to record with the call's span.

        Returns at once: the recorder's thread decodes. Empty where the parts hold nothing but
        text, which the payload's `text` says already. Images, sound and embedded files leave
        base64 and become artifacts `calls/<span>-<n>.<ext>` of their true type (n: the part's
        place, from 1), written before every event that is recorded later; in the event,
        `media.kept_part` takes the place of what stands for them here. Everything else stays as
        it is.
        """
        if not media.say_more_than_text(parts):
            return []
        return [self._keep_part(span, number, part) for number, part in enumerate(parts, 1)]

    def _keep_part(self, span: str, number: int, part: Mapping[str, Any]) -> dict[str, Any]:
        data = media.data_of(part)
        if data is None:
            return dict(part)
        held = Held(new_id(), span, number, part)
        self._hand_in(held, payloads.rough_size(data))
        return {"type": part.get("type"), "artifact": str(held.id)}

    def _hand_in(self, item: Event | Held | Effect, size: int) -> None:
        with self._changed:
            self._waiting.append((item, size))
            self._bytes += size
            self._changed.notify_all()

    def close(self, timeout: float = 60.0) -> None:
        """Write what waits and end the thread; at most `timeout` seconds."""
        self._give_up_at = time.monotonic() + timeout * 0.8
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        try:
            while self._await_work():
                self._write_announced()
                self._write([ready for item in self._take() for ready in self._decoded(item)])
                give_back()
            self._effects.close()
            self._write([])
        finally:
            connection.close()

    def _decoded(self, item: Event | Held | Effect) -> list[Event | Media]:
        """What is to be written of it. Once for each, however often the writing is tried."""
        if isinstance(item, Event):
            return [self._with_media(item)]
        if isinstance(item, Effect):
            self._effects.take(item)
            return []
        try:
            found = self._media(item)
        except Exception:  # a file of no use must not end the record
            logger.exception("a file in a result of run %s could not be read", self.run_id)
            found = media.NOT_STORED
        kept = found if isinstance(found, Media) else None
        problem = found if isinstance(found, str) else ""
        self._kept[str(item.id)] = media.kept_part(item.part, kept, problem)
        return [kept] if kept else []

    def _with_media(self, event: Event) -> Event:
        content = event.payload.get("content")
        if not self._kept or not isinstance(content, list):
            return event
        parts = [self._kept.pop(media.artifact_of(part), part) for part in content]
        return replace(event, payload={**event.payload, "content": parts})

    def _media(self, held: Held) -> Media | str:
        """The file inside a part, or the sentence that says why it is not kept."""
        data = media.data_of(held.part)
        if media.rough_size(data) > media.MAX_BYTES + 2:  # padding counts as bytes here
            return media.TOO_LARGE
        body = media.decode(data)
        if not body:
            return media.NOT_BASE64 if body is None else media.EMPTY
        kind, declared = str(held.part.get("type")), media.declared_type(held.part)
        media_type, extension = media.true_type(body, declared, kind)
        if media_type.startswith("text/"):
            body = self.mask_bytes(body)
        room = media.MAX_RUN_BYTES - self._media_bytes
        if self._media_files >= media.MAX_RUN_FILES or len(body) > room:
            return media.RUN_IS_FULL
        self._media_files += 1
        self._media_bytes += len(body)
        name = f"calls/{held.span}-{held.number}.{extension}"
        return Media(held.id, held.span, name, media_type, body)

    def _await_work(self) -> bool:
        """Wait until there is something to write; False once there will be nothing more."""
        with self._changed:
            while not (self._waiting or self._announced or self._closing):
                self._changed.wait()
            # What happens together is written together, such as a call's end and the next one.
            self._changed.wait_for(self._is_enough, self.LINGER)
            return bool(self._waiting or self._announced)

    def _is_enough(self) -> bool:
        return self._closing or bool(self._announced) or len(self._waiting) >= self.BATCH

    def _take(self) -> list[Event | Held | Effect]:
        with self._changed:
            batch = self._waiting[: self.BATCH]
            del self._waiting[: self.BATCH]
            self._bytes -= sum(size for _, size in batch)
        if self._room is not None:
            self._room()
        return [item for item, _ in batch]

    def _write_announced(self) -> None:
        with self._changed:
            announced, self._announced = self._announced, []
        for effect, _ in announced:
            self._effects.take(effect)
        if announced:
            self._write([])
        for _, written in announced:
            written.set_result(not self.lost.is_set())

    def _write(self, batch: list[Event | Media]) -> None:
        if not (batch or self._effects.is_new) or self.lost.is_set():
            return
        try:
            self._store_patiently(batch)
        except LostClaim:
            self.lost.set()
        except Exception as error:
            # One event that cannot be stored must not take its neighbours with it.
            logger.exception("events of run %s could not be stored", self.run_id)
            connection.close()
            if len(batch) != 1:
                for item in batch:
                    self._write([item])
            elif isinstance(item := batch[0], Media):
                self._unkept.add(str(item.id))
            elif item.kind != "error":
                self._write([_unstored(item, error)])

    def _store_patiently(self, batch: list[Event | Media]) -> None:
        """Wait for a database that is away: what happened meanwhile must not be lost with it."""
        while True:
            try:
                self._store(batch)
            except (OperationalError, InterfaceError) as error:
                connection.close()
                now = time.monotonic()
                if self._away_since is None:
                    self._away_since = now
                    logger.warning("events of run %s wait: %s", self.run_id, error)
                if now > min(self._away_since + self.PATIENCE, self._give_up_at):
                    raise
            else:
                self._away_since = None
                return
            if self.lost.wait(self.RETRY):
                raise LostClaim

    def _store(self, batch: Sequence[Event | Media]) -> None:
        if not batch:
            self._store_effects()
            return
        prepared: list[Event] = []
        blobs: list[Blob] = []
        artifacts: list[Artifact] = []
        try:
            for item in batch:
                if isinstance(item, Media):
                    artifacts += self._save_media(item)
                    continue
                ready, bodies = self._prepare(item)
                found: dict[str, Blob] = {}
                for name, body in bodies.items():
                    if blob := self._save(body):
                        found[name] = blob
                        blobs.append(blob)
                prepared.append(_with_blobs(ready, bodies, found))
            changes = {"side_effects": self._effects.value()} if self._effects.is_new else {}
            append(
                self.run_id,
                prepared,
                token=self._token,
                blobs=blobs,
                artifacts=artifacts,
                **changes,
            )
            self._effects.is_new = False
        except BaseException:
            delete_files([*(row.path for row in blobs), *(row.path for row in artifacts)])
            self._stored -= sum(blob.size for blob in blobs)
            raise

    def _store_effects(self) -> None:
        """In one statement, since a call waits for it."""
        mine = Run.objects.filter(pk=self.run_id, claim_token=self._token, status__in=Run.LIVE)
        if not mine.update(side_effects=self._effects.value()):
            raise LostClaim
        self._effects.is_new = False

    def _prepare(self, event: Event) -> tuple[Event, dict[str, bytes]]:
        """Mask before cutting: a value cut in two would not be recognised."""
        payload = dict(event.payload)
        if self._unkept and "content" in payload:
            payload["content"] = [self._admit_loss(part) for part in payload["content"]]
        if not event.masked:
            payload = self.mask_json(payload)
        cut, bodies = payloads.fit(clean_json(payload))
        return replace(event, payload=cut), bodies

    def _admit_loss(self, part: Any) -> Any:
        if media.artifact_of(part) in self._unkept:
            return {**part, "artifact": None, "problem": media.NOT_STORED}
        return part

    def _save(self, body: bytes) -> Blob | None:
        """The stored body; None where the run has used up its space or the storage fails."""
        if self._stored + len(body) > MAX_BLOB_BYTES:
            return None
        blob_id = new_id()
        path = self._save_file(blob_id, body)
        if path is None:
            return None
        self._stored += len(body)
        return Blob(id=blob_id, run_id=self.run_id, path=path, size=len(body))

    def _save_media(self, item: Media) -> list[Artifact]:
        path = self._save_file(item.id, item.body)
        if path is None:
            self._unkept.add(str(item.id))
            return []
        row = Artifact(id=item.id, run_id=self.run_id, name=item.name, span=item.span, path=path)
        row.media_type, row.size = item.media_type, len(item.body)
        return [row]

    def _save_file(self, file_id: UUID, body: bytes) -> str | None:
        # A storage may take long for each body, and a call must not wait for two hundred.
        self._write_announced()
        started = time.monotonic()
        if started < self._storage_rests_until:
            return None
        try:
            path: str = default_storage.save(f"runs/{self.run_id}/{file_id}", ContentFile(body))
        except (OperationalError, InterfaceError):
            # Files in the database wait for it as the events do.
            raise
        except Exception:  # a full disk must not stop the run
            logger.exception("a body of run %s could not be stored", self.run_id)
            if time.monotonic() - started > self.SLOW_FAILURE:
                self._storage_rests_until = time.monotonic() + self.STORAGE_REST
            return None
        return path


def _with_blobs(event: Event, bodies: Mapping[str, bytes], blobs: Mapping[str, Blob]) -> Event:
    if not bodies:
        return event
    notes = {
        name: {"id": str(blobs[name].id) if name in blobs else None, "size": len(body)}
        for name, body in bodies.items()
    }
    return replace(event, payload={**event.payload, payloads.BLOBS_KEY: notes})


def _unstored(event: Event, error: Exception) -> Event:
    message = f"An event of kind {event.kind} could not be stored: {type(error).__name__}."
    return Event("error", {"message": message}, span=event.span, at=event.at)
