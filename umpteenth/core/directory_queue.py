"""The embedded broker: Celery's directory transport with writes that nobody sees half done.

Kombu's own opens the file under its final name before it writes, so that a worker may take an
empty message, and it moves messages through the system's shared temporary directory. Ours also
keeps one of equal messages: beat repeats its hints for as long as no worker is there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import filesystem

from umpteenth.core.directory_watch import DirectoryWatch

logger = logging.getLogger(__name__)
ROUND = 0.25  # seconds


class Channel(filesystem.Channel):
    # Kombu's own two base classes disagree on the name of the second argument.
    def _put(  # type: ignore[override]
        self, queue: str, payload: Any, **_kwargs: object
    ) -> None:
        folder = Path(self.data_folder_out)
        digest = _digest(payload)
        # Whoever takes the one that waits does so after this moment, and sees what we saw.
        if any(_is_of(name, queue) and digest in name for name in os.listdir(folder)):
            return
        name = f"{time.time_ns():020d}_{digest}_{uuid.uuid4().hex}.{queue}.msg"
        hidden = folder / f".{name}"
        handle = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(payload, file)
        hidden.rename(folder / name)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        folder = Path(self.data_folder_in)
        for name in sorted(os.listdir(folder)):
            if not _is_of(name, queue):
                continue
            taken = folder / f".{name}.taken"
            try:
                (folder / name).rename(taken)
            except FileNotFoundError:
                continue  # another worker was faster
            text = taken.read_text(encoding="utf-8")
            taken.unlink()
            try:
                return json.loads(text)
            except ValueError:
                # Beat hints again for whatever this was about.
                logger.warning("Dropped an unreadable message of queue %s", queue)
        raise Empty


def _is_of(name: str, queue: str) -> bool:
    """Whether a file is a waiting message of this queue; hidden ones are in somebody's hands."""
    return not name.startswith(".") and name.partition(".")[2] == f"{queue}.msg"


def _digest(payload: Any) -> str:
    """Of what a message asks for, without the ids that make each message different."""
    asked = [payload.get("headers", {}).get("task"), payload.get("body")]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]


class Transport(filesystem.Transport):
    Channel = Channel
    # Set by Kombu, whose types do not say so.
    client: Any
    cycle: Any
    channels: Any
    polling_interval: float
    _watch: DirectoryWatch | None = None

    def drain_events(self, connection: Any, timeout: float | None = None, **_kwargs: Any) -> None:
        """Deliver one message. Raises `TimeoutError` where none came.

        In short rounds: between them the worker notices that it is told to stop.
        """
        watch = self._watch or self._start_watch()
        deadline = time.monotonic() + min(timeout or ROUND, ROUND)
        while True:
            try:
                self.cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError from None
                # No file tells when a worker that has its hands full may take more.
                full = not all(channel.qos.can_consume() for channel in self.channels)
                watch.wait(min(left, self.polling_interval) if full else left)

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _start_watch(self) -> DirectoryWatch:
        folder = Path(self.client.transport_options["data_folder_in"])
        self._watch = watch = DirectoryWatch(folder, self.polling_interval)
        return watch
