"""How many calls a server gets at once, over all processes (U5, A38, A50).

Every call takes a ticket of its server's line. The oldest tickets that have not expired hold the
slots, as many as the server's limit says; the others wait, first come first served. A ticket is a
lease: the heartbeat of the run that holds it renews it, its end drops it, and of a worker that
died nothing is left after `LEASE`. The line is kept in Redis where there is one
(`servers.inflight_redis`), in the database where not (`servers.inflight_database`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from itertools import count
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from django.db import DatabaseError

from umpteenth.core import deadlines
from umpteenth.core.connections import Database, closing
from umpteenth.core.live import redis_url

logger = logging.getLogger(__name__)
T = TypeVar("T")

LEASE: Final = timedelta(seconds=60)
RENEW_EVERY: Final = 15.0  # seconds; a run's heartbeat does it
POLL: Final = 0.05  # seconds between looks while somebody waits
RETRY: Final = 1.0  # seconds until what could not be given back is tried again

# Read in the same visit to the database as the ticket, right before a slot is handed over.
Look = Callable[[UUID], Any]


class Busy(Exception):
    """No slot became free in time."""


class StoreAway(Exception):
    """What keeps the line cannot be reached."""


@dataclass(eq=False)
class Ticket:
    """A slot. `seen` is what `look` found right before it was handed over."""

    id: int
    server_id: UUID
    seen: Any = None


@dataclass(frozen=True)
class Turn:
    """What one visit to the store found: the ids of the new tickets in order; which of the new
    and waiting ones hold a slot; which of the waiting ones have expired."""

    taken: Sequence[int] = ()
    holding: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()


class Store(Protocol):
    """Where the tickets are. Called from threads; every method is one visit."""

    def turn(
        self,
        server_id: UUID,
        holder: str,
        *,
        limit: int,
        take: int = 0,
        leave: Sequence[int] = (),
        waiting: Sequence[int] = (),
    ) -> Turn:
        """Give tickets back, take new ones, and look who holds a slot. Raises `StoreAway`."""
        ...

    def keep_only(self, server_id: UUID, holder: str, ids: Collection[int]) -> None:
        """Give back every other ticket that the holder has at this server."""
        ...

    def renew(self, holder: str) -> None:
        """Another `LEASE` for every ticket that has not expired."""
        ...

    def drop(self, holder: str) -> None: ...

    def sweep(self) -> int:
        """Remove what has expired; how many tickets there were."""
        ...


def store() -> Store:
    """Where this installation keeps its lines."""
    return _store(redis_url())


@lru_cache(maxsize=4)
def _store(url: str) -> Store:
    if url:
        from servers.inflight_redis import RedisStore

        return RedisStore(url)
    from servers.inflight_database import DatabaseStore

    return DatabaseStore()


def renew(holder: str) -> None:
    """Keep the tickets of a run that is alive; called with each of its heartbeats."""
    with contextlib.suppress(StoreAway):  # said already
        store().renew(holder)


def drop(holder: str) -> None:
    """Free the slots of a run that has ended. Never raises: they would expire anyway."""
    _drop(store(), holder)


def _drop(store: Store, holder: str) -> None:
    try:
        store.drop(holder)
    except (DatabaseError, StoreAway):
        logger.warning("the call slots of %s… are left to expire", holder[:6], exc_info=True)


def sweep() -> int:
    return store().sweep()


class Line:
    """The calls of one holder: a run's claim token, or a token of its own outside of runs.

    Belongs to one event loop. `look` may raise: whoever wanted a slot then gets its error.
    """

    def __init__(
        self,
        holder: str,
        database: Database,
        *,
        look: Look | None = None,
        kept_in: Store | None = None,
    ) -> None:
        self.holder = holder
        self._database = database
        self._look = look or (lambda server_id: None)
        self._store = kept_in or store()
        self._queues: dict[UUID, _Queue] = {}

    async def enter(self, server_id: UUID, limit: int, *, wait: float | None = None) -> Ticket:
        """A slot, after at most `wait` seconds. Raises `Busy`."""
        queue = self._queues.get(server_id)
        if queue is None:
            visit = _Visit(self._store, server_id, self.holder, self._look)
            queue = self._queues[server_id] = _Queue(visit, self._database)
        return await queue.enter(limit, wait)

    def leave(self, ticket: Ticket) -> None:
        """Free the slot in the background; a second time does nothing."""
        self._queues[ticket.server_id].leave(ticket)

    async def renew(self) -> None:
        await self._database(partial(self._store.renew, self.holder))

    async def close(self) -> None:
        """Nobody waits any more and nothing is held."""
        for queue in self._queues.values():
            await queue.close()
        if self._queues:
            await self._database(partial(_drop, self._store, self.holder))


@dataclass(eq=False)
class _Request:
    limit: int
    granted: asyncio.Future[Ticket]
    id: int = 0  # of its ticket while it waits


@dataclass(frozen=True)
class _Batch:
    """What is done in one visit; requests of one server share its limit."""

    wanted: list[_Request] = field(default_factory=list)
    waiting: list[_Request] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    held: frozenset[int] = frozenset()

    @property
    def limit(self) -> int:
        return next((request.limit for request in (*self.waiting, *self.wanted)), 1)


class _Visit:
    """One visit to the store, in the database's thread."""

    def __init__(self, store: Store, server_id: UUID, holder: str, look: Look) -> None:
        self.server_id = server_id
        self._store = store
        self._holder = holder
        self._look = look
        self._makeshift = count(-1, -1)
        # Whether a visit failed: what it was to take or to give back may be there all the same,
        # and heartbeats would renew it for as long as the run lasts.
        self._unsure = False

    def __call__(self, batch: _Batch) -> tuple[Turn, Any]:
        """The turn, and what `look` saw if somebody gets a slot."""
        seen = self._look(self.server_id) if batch.wanted else None
        turn = self._turn(batch)
        if turn.holding and not batch.wanted:
            seen = self._look(self.server_id)  # it has waited: what it may do, may have changed
        return turn, seen

    def _turn(self, batch: _Batch) -> Turn:
        try:
            return self._real_turn(batch)
        except StoreAway:
            self._unsure = True
            # Better a bound for each holder alone than no calls; the leases run out meanwhile.
            taken = [next(self._makeshift) for _ in batch.wanted]
            free = max(0, batch.limit - len(batch.held))
            waiting = [request.id for request in batch.waiting]
            return Turn(taken, frozenset([*waiting, *taken][:free]))
        except Exception:
            self._unsure = True
            raise

    def _real_turn(self, batch: _Batch) -> Turn:
        waiting = [request.id for request in batch.waiting]
        if self._unsure:
            self._store.keep_only(self.server_id, self._holder, {*batch.held, *waiting})
            self._unsure = False
        return self._store.turn(
            self.server_id,
            self._holder,
            limit=batch.limit,
            take=len(batch.wanted),
            # Makeshift tickets (above) are nowhere but here.
            leave=[number for number in batch.left if number > 0],
            waiting=waiting,
        )


class _Queue:
    """The line at one server: what is asked at the same time is done in one visit."""

    def __init__(self, visit: _Visit, database: Database) -> None:
        self._visit = visit
        self._database = database
        self._wanted: list[_Request] = []
        self._waiting: list[_Request] = []
        self._left: list[int] = []
        self._held: set[int] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def enter(self, limit: int, wait: float | None) -> Ticket:
        request = _Request(limit, asyncio.get_running_loop().create_future())
        self._wanted.append(request)
        self._stir()
        try:
            async with deadlines.timeout(wait):
                return await request.granted
        except BaseException as error:
            self._withdraw(request)
            if isinstance(error, TimeoutError):
                raise Busy from None
            raise

    def leave(self, ticket: Ticket) -> None:
        if ticket.id in self._held and not self._closed:
            self._held.discard(ticket.id)
            self._left.append(ticket.id)
            self._stir()

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        for request in (*self._wanted, *self._waiting):
            request.granted.cancel()

    def _stir(self) -> None:
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="line of calls")

    def _withdraw(self, request: _Request) -> None:
        granted = request.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            self.leave(granted.result())  # it came in the very moment of the cancel
        elif request in self._wanted:
            self._wanted.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
            self._left.append(request.id)
            self._stir()

    async def _work(self) -> None:
        """Visit the store while there is something to do; end when there is not."""
        while self._wanted or self._waiting or self._left:
            self._changed.clear()
            batch = _Batch(self._wanted, self._waiting[:], self._left, frozenset(self._held))
            self._wanted, self._left = [], []
            try:
                turn, seen = await self._database(partial(self._visit, batch))
            except Exception as error:
                self._fail(batch, error)
                await self._rest(RETRY)
                continue
            self._settle(batch, turn, seen)
            if self._waiting and not self._left:
                await self._rest(POLL)

    async def _rest(self, seconds: float) -> None:
        """At most until something is asked for or given back."""
        with contextlib.suppress(TimeoutError):
            async with deadlines.timeout(seconds):
                await self._changed.wait()

    def _settle(self, batch: _Batch, turn: Turn, seen: Any) -> None:
        for request, number in zip(batch.wanted, turn.taken, strict=True):
            request.id = number
            self._waiting.append(request)
        for request in [*batch.waiting, *batch.wanted]:
            if request not in self._waiting:
                continue  # withdrawn during the visit
            if request.granted.done():
                self._waiting.remove(request)
                self._left.append(request.id)
            elif request.id in turn.lost:
                self._waiting.remove(request)
                self._wanted.append(request)
            elif request.id in turn.holding:
                self._waiting.remove(request)
                self._held.add(request.id)
                request.granted.set_result(Ticket(request.id, self._visit.server_id, seen))

    def _fail(self, batch: _Batch, error: Exception) -> None:
        """Whoever asked hears of it; what was to be given back is tried again."""
        self._left = [*batch.left, *self._left, *(request.id for request in self._waiting)]
        self._waiting = []
        if not (batch.wanted or batch.waiting):
            logger.warning("call slots could not be given back yet: %s", error)
        for request in (*batch.wanted, *batch.waiting):
            if not request.granted.done():
                request.granted.set_exception(error)


@contextlib.asynccontextmanager
async def slot(server_id: UUID, limit: int, *, wait: float | None = None) -> AsyncIterator[Ticket]:
    """A slot for a call outside of runs, kept while the block lasts. Raises `Busy`."""
    line = Line(f"call-{secrets.token_urlsafe(24)}", _in_a_thread)
    keeper: asyncio.Task[None] | None = None
    try:
        ticket = await line.enter(server_id, limit, wait=wait)
        keeper = asyncio.create_task(_keep(line))
        yield ticket
    finally:
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait({keeper})
        await line.close()


async def _keep(line: Line) -> None:
    while True:
        await asyncio.sleep(RENEW_EVERY)
        try:
            await line.renew()
        except (DatabaseError, StoreAway):
            logger.warning("a call's slot could not be renewed", exc_info=True)


async def _in_a_thread(work: Callable[[], T]) -> T:
    """For one who asks now and then."""
    return await asyncio.to_thread(closing, work)
