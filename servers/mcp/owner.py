"""The task that opens and closes a connection: which transport, how often, and why (F15)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from servers.limits import TimeLimit, request_limit, start_limit
from servers.mcp.elicitation import Questions
from servers.mcp.errors import NotMcp, flatten, words_of
from servers.mcp.exchange import status_of
from servers.mcp.handshake import HANDSHAKE, Agreement, is_modern, negotiate
from servers.mcp.http import open_http
from servers.mcp.listening import listen
from servers.mcp.packages import from_cache, gave_up, lacks_something, remembered
from servers.mcp.session import Session
from servers.mcp.sse import open_sse
from servers.mcp.stdio import StdioTransport, open_stdio
from servers.mcp.transport import Transport, background
from servers.mcp.types import (
    Asker,
    ConnectionSettings,
    LoginRequired,
    Observer,
    ServerError,
    ServerUnavailable,
    Spawner,
)
from umpteenth.core.text import with_full_stop

logger = logging.getLogger(__name__)

# Statuses of a first POST that a server of 2024-11-05 gives; every other one is the answer.
SSE_STATUSES: Final = frozenset({400, 404, 405, 406, 410, 411})

T = TypeVar("T")
Attempt = Callable[[str], Awaitable[None]]


class Owner(Generic[T]):
    """`hand_over` makes of an agreed session what `open` returns."""

    def __init__(
        self,
        settings: ConnectionSettings,
        spawn: Spawner | None,
        observer: Observer,
        ask: Asker | None,
        hand_over: Callable[[Session, Agreement], T],
    ) -> None:
        self._settings = settings
        self._spawn = spawn
        self._observer = observer
        self._ask = ask
        self._hand_over = hand_over
        self._found = ""  # what the attempts so far say of the way that worked
        self._is_cached = False  # whether its packages come from a cache alone
        self._answered = False  # whether a revision was agreed upon, whatever came then
        self._leaving = asyncio.Event()
        self._ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"mcp {settings.name}")

    async def open(self) -> T:
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        """Ends the task and waits for it, also if the caller is being cancelled meanwhile."""
        self._leaving.set()
        if not self._ready.done():
            self._task.cancel()
        cancelled: asyncio.CancelledError | None = None
        while not self._task.done():
            try:
                await asyncio.wait({self._task})
            except asyncio.CancelledError as error:  # it takes seconds at most
                cancelled = error
        if not self._ready.cancelled() and self._ready.done():
            self._ready.exception()  # seen, so that nothing is reported as never retrieved
        if cancelled is not None:
            raise cancelled

    async def _run(self) -> None:
        try:
            await self._connect_somehow()
        except asyncio.CancelledError:
            self._ready.cancel()
            raise
        except BaseException as error:
            if self._ready.done():  # while closing: the caller has left
                logger.warning("Closing %s: %s", self._settings.name, words_of(error))
                return
            self._ready.set_exception(self._unavailable(flatten(error, self._settings.name)))

    def _unavailable(self, error: ServerError) -> ServerError:
        """Before the connection stands, whatever ends it means that there is none."""
        if isinstance(error, LoginRequired | ServerUnavailable):
            return error
        return ServerUnavailable(error.message, error.hint, error.stderr_tail, error.exit_code)

    async def _connect_somehow(self) -> None:
        mode = str(self._settings.remembered.get("mode", ""))
        if self._settings.transport == "stdio":
            await self._connect_stdio(mode)
        elif self._settings.remembered.get("transport") == "sse":
            self._found = "Legacy SSE worked the last time."
            await self._connect_http([self._try_sse, self._try_http], "")
        else:
            await self._connect_http([self._try_http, self._try_sse], mode)

    async def _connect_stdio(self, mode: str) -> None:
        if (cached := from_cache(self._settings, time.time())) is not None:
            self._is_cached = True
            try:
                await self._start_stdio(replace(self._settings, args=cached), mode)
            except _NotInCache:
                self._is_cached, self._found = False, ""
            else:
                return
        await self._start_stdio(self._settings, mode)

    async def _start_stdio(self, settings: ConnectionSettings, mode: str) -> None:
        try:
            await self._try_stdio(settings, mode)
        except _ExitedOnProbe as exited:
            # Some servers end on a message that they do not know: again, without it.
            self._found = "It ended on server/discover and was started again without it."
            await self._try_again(settings, exited.error)

    async def _try_again(self, settings: ConnectionSettings, first: ServerError) -> None:
        """The first end is the one shown if the second is no different."""
        try:
            await self._try_stdio(settings, HANDSHAKE)
        except ServerError as error:
            if self._ready.done() or error.message != first.message:
                raise
            raise first from None

    async def _try_stdio(self, settings: ConnectionSettings, mode: str) -> None:
        if self._spawn is None:
            raise ServerUnavailable("This server must be started, but nothing can start it here.")
        async with open_stdio(settings, self._spawn, self._observer) as transport:
            self._observer.step("Connecting")
            try:
                await self._serve(transport, mode, start_limit(settings.start_timeout))
            except ServerError as error:
                error.stderr_tail = error.stderr_tail or transport.stderr_tail
                ended = _ended_unheard(transport, error)
                if ended and self._is_cached and lacks_something(settings, error.stderr_tail):
                    raise _NotInCache from None
                ended = ended and not gave_up(settings, error.stderr_tail)
                if ended and mode != HANDSHAKE:
                    raise _ExitedOnProbe(error) from None
                raise

    async def _connect_http(self, attempts: list[Attempt], mode: str) -> None:
        """The first error is the one shown, from the transport that is meant; the other one is
        its hint (B13). A login that the other one asks for is shown instead."""
        first, second = attempts
        try:
            await first(mode)
        except ServerError as error:
            if self._ready.done() or not self._worth_the_other(error, first):
                raise
            self._found = self._why_the_other(error, first)
            try:
                await second("")
            except ServerError as other:
                if status_of(other) == HTTPStatus.UNAUTHORIZED and not self._ready.done():
                    # Whoever asks for credentials is there; what to do is in this error alone.
                    _add_to_hint(other, f"{self._name_of(first)} was tried first", error)
                    raise
                _add_to_hint(error, f"{self._name_of(second)} was tried too", other)
            if not self._ready.done():
                raise

    def _name_of(self, attempt: Attempt) -> str:
        return "Legacy SSE" if attempt == self._try_sse else "Streamable HTTP"

    def _worth_the_other(self, error: ServerError, tried: Attempt) -> bool:
        if status_of(error) in SSE_STATUSES:
            return not self._answered and not is_modern(error)
        # A remembered SSE address that is none any more.
        return tried == self._try_sse and isinstance(error, NotMcp)

    def _why_the_other(self, error: ServerError, tried: Attempt) -> str:
        status = status_of(error)
        if tried == self._try_sse:
            return "Legacy SSE worked the last time, and does not any more."
        return f"The first POST was answered with {status}, so legacy SSE was tried."

    async def _try_http(self, mode: str) -> None:
        async with open_http(self._settings, self._observer) as transport:
            await self._serve(transport, mode, request_limit(self._settings.request_timeout))

    async def _try_sse(self, _mode: str) -> None:
        async with open_sse(self._settings, self._observer) as transport:
            await self._serve(transport, HANDSHAKE, request_limit(self._settings.request_timeout))

    async def _serve(self, transport: Transport, mode: str, limit: TimeLimit) -> None:
        """Agree on a revision, hand the connection over and wait until it is given back."""
        session = Session(transport, Questions(self._ask, self._observer.notice))
        await session.start()
        try:
            agreement = await negotiate(session, mode=mode, limit=limit)
            how = " ".join(part for part in (self._found, agreement.how) if part)
            extra = remembered(self._settings, time.time(), cached=self._is_cached)
            found = replace(agreement, how=how, remembered=extra)
            connection = self._hand_over(session, found)
            async with background(listen(session)):
                self._ready.set_result(connection)
                await self._leaving.wait()
        finally:
            self._answered = bool(session.version)
            await session.stop()


class _ExitedOnProbe(Exception):
    """The process ended without a word after the first message."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(error.message)
        self.error = error


def _add_to_hint(error: ServerError, what: str, other: ServerError) -> None:
    error.hint = f"{error.hint} {what}: {with_full_stop(other.message)}".strip()


class _NotInCache(Exception):
    """A package manager that may use its cache alone has not found everything there."""


def _ended_unheard(transport: StdioTransport, error: ServerError) -> bool:
    """A program that was never there ends too, but a second start is of no use."""
    return not transport.answered and not transport.never_ran and error.exit_code is not None
