"""Server-sent events for pages that change while somebody looks at them.

The database is the truth. A `Hub` only says "look again": by Redis pub/sub where `redis.url` is
set, otherwise by one poller that runs while somebody watches. Each stream then reads what is new
for itself, at the pace of its own client, so that a slow client holds one batch and no queue.

Core imports no app: whoever opens a stream passes in the functions that read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Hashable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import DatabaseError, close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from umpteenth.core.config import get_options
from umpteenth.core.connections import give_back

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
# With Redis the poller only catches a wake-up that was lost.
SAFETY_POLL_SECONDS = 3.0
# Proxies close a connection that is silent for a minute.
KEEP_ALIVE_SECONDS = 15.0
# A person who was signed out or deactivated loses an open stream within this time.
PERMISSION_SECONDS = 10.0
MAX_STREAMS = 1000
READER_THREADS = 4
REDIS_TIMEOUT_SECONDS = 1.0

T = TypeVar("T")
# Sync function: the keys that somebody watches -> what their rows look like now. A key whose
# value differs from the last one is looked at again.
MarkReader = Callable[[Collection[str]], Mapping[str, Hashable]]


@dataclass(frozen=True)
class Message:
    """One event of the stream. `id` comes back as Last-Event-ID after a lost connection."""

    event: str
    data: str
    id: str = ""

    def encode(self) -> bytes:
        # Only CR, LF and CRLF end a line here; str.splitlines() would split at more.
        data = self.data.replace("\r\n", "\n").replace("\r", "\n")
        head = f"id: {self.id}\n" if self.id else ""
        lines = "".join(f"data: {line}\n" for line in data.split("\n"))
        return f"{head}event: {self.event}\n{lines}\n".encode("utf-8", "replace")


@dataclass(frozen=True)
class Batch:
    """What a reader found. `more`: read again at once; `end`: nothing will follow."""

    messages: Sequence[Message] = ()
    more: bool = False
    end: bool = False


class TooManyStreams(Exception):
    """This process already serves `MAX_STREAMS`; the page polls instead."""


@lru_cache(maxsize=1)
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(READER_THREADS, thread_name_prefix="live")


async def read_in_thread(function: Callable[[], T]) -> T:
    """Run a database read off the event loop, on one of a few threads of our own.

    Django's own per-request thread would stay, with its connection, as long as the stream.
    """

    def call() -> T:
        close_old_connections()
        try:
            return function()
        finally:
            close_old_connections()

    return await sync_to_async(call, thread_sensitive=False, executor=_readers())()


class Hub:
    """Wakes the streams of one kind of row. One per web process and kind."""

    def __init__(
        self, name: str, marks: MarkReader, *, interval: float = POLL_SECONDS, redis_url: str = ""
    ) -> None:
        self.name = name
        self._marks = marks
        self._interval = interval
        self._redis_url = redis_url
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._seen: dict[str, Hashable] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._listening = False

    @property
    def stream_count(self) -> int:
        return sum(len(events) for events in self._watchers.values())

    @property
    def is_running(self) -> bool:
        return bool(self._tasks)

    @property
    def is_listening(self) -> bool:
        """Whether Redis wakes the streams; otherwise the poller does."""
        return self._listening

    @contextlib.asynccontextmanager
    async def watch(self, key: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever the row `key` may have changed."""
        wake = asyncio.Event()
        self._watchers.setdefault(key, set()).add(wake)
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._poll())]
            if self._redis_url:
                self._tasks.append(asyncio.create_task(self._listen()))
        try:
            yield wake
        finally:
            self._forget(key, wake)

    def _forget(self, key: str, wake: asyncio.Event) -> None:
        watching = self._watchers.get(key, set())
        watching.discard(wake)
        if not watching:
            self._watchers.pop(key, None)
            self._seen.pop(key, None)
        if not self._watchers:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    def _wake(self, key: str) -> None:
        for wake in self._watchers.get(key, ()):
            wake.set()

    async def _poll(self) -> None:
        while True:
            try:
                marks = await read_in_thread(lambda: self._marks(list(self._watchers)))
            except Exception:  # a locked or lost database: the next look may succeed
                logger.exception("live: cannot look for changes of %s", self.name)
                await asyncio.sleep(SAFETY_POLL_SECONDS)
                continue
            for key in list(self._watchers):
                mark = marks.get(key)
                if self._seen.get(key) != mark:
                    self._seen[key] = mark
                    self._wake(key)
            await asyncio.sleep(SAFETY_POLL_SECONDS if self._listening else self._interval)

    async def _listen(self) -> None:
        from redis import asyncio as redis

        while True:
            client = redis.Redis.from_url(self._redis_url, decode_responses=True)
            try:
                async with client, client.pubsub() as channel:
                    await channel.subscribe(_channel(self.name))
                    self._listening = True
                    async for message in channel.listen():
                        if message["type"] == "message":
                            self._wake(str(message["data"]))
            except (redis.RedisError, OSError) as error:
                logger.warning("live: Redis is unavailable, polling instead: %s", error)
            finally:
                self._listening = False
            await asyncio.sleep(SAFETY_POLL_SECONDS)


def _channel(name: str) -> str:
    return f"umpteenth:live:{name}"


@lru_cache(maxsize=1)
def _publisher(url: str) -> Any:
    from redis import Redis

    return Redis.from_url(
        url,
        socket_timeout=REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
    )


def redis_url() -> str:
    url = get_options().redis.url
    return url.get_secret_value() if url else ""


_quiet_until = 0.0


def wake(name: str, key: object) -> None:
    """Say that a row changed. Called after the commit; never raises and never waits long.

    Without Redis it does nothing (the poller sees the row). While Redis is down it does nothing
    for some seconds at a time, so that a run does not wait for each of its events.
    """
    global _quiet_until
    url = redis_url()
    if not url or time.monotonic() < _quiet_until:
        return
    from redis import RedisError

    try:
        _publisher(url).publish(_channel(name), str(key))
    except (RedisError, OSError) as error:
        _quiet_until = time.monotonic() + SAFETY_POLL_SECONDS
        logger.warning("live: cannot publish to Redis: %s", error)


async def stream(
    hub: Hub,
    key: str,
    read: Callable[[], Batch],
    allowed: Callable[[], bool],
    *,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    permission: float = PERMISSION_SECONDS,
) -> AsyncIterator[bytes]:
    """The body of a stream: everything `read` finds, until it says `end` or `allowed` says no.

    `read` remembers its own position; it is called again after every wake-up.
    """
    # The view's own connection would be held until the reader leaves, and there are only so many.
    await sync_to_async(give_back)()
    yield b"retry: 3000\n\n"
    try:
        changes = _changes(hub, key, read, allowed, keep_alive, permission)
        async with contextlib.aclosing(changes):
            async for part in changes:
                yield part
    except DatabaseError as error:
        # The browser comes back by itself, and resumes.
        logger.warning("live: a stream of %s ends: %s", hub.name, error)


async def _changes(
    hub: Hub,
    key: str,
    read: Callable[[], Batch],
    allowed: Callable[[], bool],
    keep_alive: float,
    permission: float,
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    check_at, silent_at = loop.time() + permission, loop.time() + keep_alive
    async with hub.watch(key) as wake_up:
        while True:
            # Cleared before reading: what is written during the read wakes us again.
            wake_up.clear()
            batch = await read_in_thread(read)
            for message in batch.messages:
                yield message.encode()
                silent_at = loop.time() + keep_alive
            if batch.end:
                return
            if loop.time() >= check_at:
                if not await read_in_thread(allowed):
                    yield Message("denied", "").encode()
                    return
                check_at = loop.time() + permission
            if loop.time() >= silent_at:
                yield b": keep-alive\n\n"
                silent_at = loop.time() + keep_alive
            if not batch.more:
                with contextlib.suppress(TimeoutError):
                    rest = max(0.0, min(check_at, silent_at) - loop.time())
                    await asyncio.wait_for(wake_up.wait(), rest)


def event_stream(
    hub: Hub, key: str, read: Callable[[], Batch], allowed: Callable[[], bool]
) -> StreamingHttpResponse:
    """The answer to an EventSource. Raises `TooManyStreams`."""
    if hub.stream_count >= MAX_STREAMS:
        raise TooManyStreams
    response = StreamingHttpResponse(
        stream(hub, key, read, allowed), content_type="text/event-stream"
    )
    response["Cache-Control"] = "no-cache, no-transform"
    # nginx would hold the events back until its buffer is full.
    response["X-Accel-Buffering"] = "no"
    return response


def resume_after(request: HttpRequest) -> int:
    """The last event that the client has seen: `Last-Event-ID`, else `?after=`, else 0."""
    for given in (request.headers.get("Last-Event-ID", ""), request.GET.get("after", "")):
        if given.isascii() and given.isdigit() and len(given) <= 10:
            return int(given)
    return 0


def too_many() -> HttpResponse:
    """For an EventSource it is final; the page's script falls back to reading the page again."""
    return HttpResponse("Too many live pages are open.", status=503, content_type="text/plain")
