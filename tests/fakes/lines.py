"""Lines of calls in memory, and what every store of tickets must do: the database's and Redis's
alike (`servers.inflight`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

import pytest

from servers import inflight
from servers.inflight import Busy, Line, Store, StoreAway, Turn

CAP = 10  # seconds after which a test that waits has failed


async def in_a_thread(work: Callable[[], Any]) -> Any:
    return await inflight._in_a_thread(work)


async def somebody_waits(line: Line) -> None:
    """Until a call of the line has a ticket and no slot."""
    while not any(queue._waiting for queue in line._queues.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


class FakeStore:
    """Tickets in memory; `away` makes it unreachable."""

    def __init__(self) -> None:
        self.tickets: list[int] = []
        self.last = 0
        self.away = False
        self.visits: list[tuple[int, int]] = []  # taken and left in each

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
        if self.away:
            raise StoreAway("away")
        self.visits.append((take, len(leave)))
        self.tickets = [number for number in self.tickets if number not in leave]
        taken = list(range(self.last + 1, self.last + take + 1))
        self.last += take
        self.tickets += taken
        mine = {*taken, *waiting}
        return Turn(
            taken,
            frozenset(self.tickets[:limit]) & mine,
            frozenset(waiting) - frozenset(self.tickets),
        )

    def keep_only(self, server_id: UUID, holder: str, ids: Collection[int]) -> None:
        if self.away:
            raise StoreAway("away")
        self.tickets = [number for number in self.tickets if number in ids]

    def renew(self, holder: str) -> None:
        raise StoreAway("away")

    def drop(self, holder: str) -> None:
        self.tickets = []

    def sweep(self) -> int:
        return 0


async def here(work: Callable[[], Any]) -> Any:
    """A database thread that is none, and takes a moment."""
    await asyncio.sleep(0)
    return work()


class LineBehaviour:
    """Needs the fixtures `store`, `server_id` and `expire` (lets the leases of a holder run out).

    U5, A38: a bound for each server over all holders, first come first served.
    """

    @pytest.fixture(autouse=True)
    def _parts(self, store: Store, server_id: UUID, expire: Callable[[str], None]) -> None:
        self.kept_in, self.place, self.run_out = store, server_id, expire

    def take(self, holder: str, count: int = 1, limit: int = 2) -> tuple[list[int], set[int]]:
        turn = self.kept_in.turn(self.place, holder, limit=limit, take=count)
        return list(turn.taken), set(turn.holding)

    def holding(self, holder: str, waiting: list[int], limit: int = 2) -> set[int]:
        return set(self.kept_in.turn(self.place, holder, limit=limit, waiting=waiting).holding)

    def line(self, holder: str) -> Line:
        return Line(holder, in_a_thread, kept_in=self.kept_in)

    def test_the_oldest_tickets_hold_the_slots(self) -> None:
        [first], held = self.take("a")
        assert held == {first}
        [second, third], held = self.take("b", 2)
        assert first < second < third
        assert held == {second}
        assert self.holding("b", [third]) == set()

    def test_a_slot_goes_to_the_one_that_has_waited_longest(self) -> None:
        [first, _], _ = self.take("a", 2)
        [third], _ = self.take("b")
        [fourth], _ = self.take("c")
        self.kept_in.turn(self.place, "a", limit=2, leave=[first])
        assert self.holding("c", [fourth]) == set()
        assert self.holding("b", [third]) == {third}

    def test_giving_back_and_taking_anew_is_one_visit(self) -> None:
        [first], _ = self.take("a", limit=1)
        turn = self.kept_in.turn(self.place, "a", limit=1, take=1, leave=[first])
        assert turn.holding == {*turn.taken}

    def test_servers_have_lines_of_their_own(self, other_server_id: UUID) -> None:
        self.take("a", 2)
        turn = self.kept_in.turn(other_server_id, "b", limit=1, take=1)
        assert turn.holding == {*turn.taken}

    def test_what_a_holder_drops_is_free_and_others_keep_theirs(self) -> None:
        self.take("a", 1, limit=3)
        [kept], _ = self.take("ab", 1, limit=3)
        [waiting], held = self.take("c", 1, limit=2)
        assert held == set()
        self.kept_in.drop("a")
        assert self.holding("c", [waiting]) == {waiting}
        assert self.holding("ab", [kept]) == {kept}

    def test_of_a_holder_that_died_nothing_is_left(self) -> None:
        [lost, _], _ = self.take("dead", 2)
        [waiting], held = self.take("b")
        assert held == set()
        self.run_out("dead")
        assert self.holding("b", [waiting]) == {waiting}
        assert self.kept_in.turn(self.place, "dead", limit=2, waiting=[lost]).lost == {lost}

    def test_a_heartbeat_keeps_what_is_held_and_brings_nothing_back(self) -> None:
        [gone], _ = self.take("a", limit=1)
        self.run_out("a")
        [kept], _ = self.take("b", limit=1)
        self.kept_in.renew("a")
        self.kept_in.renew("b")
        assert self.kept_in.turn(self.place, "a", limit=1, waiting=[gone]).lost == {gone}
        assert self.holding("b", [kept], limit=1) == {kept}

    def test_all_but_some_can_be_given_back(self, other_server_id: UUID) -> None:
        [kept, _], _ = self.take("a", 2, limit=3)
        [of_another], _ = self.take("ba", limit=3)
        self.kept_in.turn(other_server_id, "a", limit=1, take=1)
        self.kept_in.keep_only(self.place, "a", {kept, -1})
        assert self.holding("a", [kept]) == {kept}
        assert self.holding("ba", [of_another]) == {of_another}
        assert not self.kept_in.turn(other_server_id, "b", limit=1, take=1).holding

    def test_giving_back_what_is_gone_does_no_harm(self) -> None:
        [first], _ = self.take("a")
        for _ in range(2):
            self.kept_in.turn(self.place, "a", limit=2, leave=[first])
        self.kept_in.drop("nobody")
        self.kept_in.renew("nobody")

    async def test_two_holders_together_keep_the_limit_and_the_order(self) -> None:
        """Two runs, each with more calls than there are slots."""
        out, most, order = 0, 0, list[int]()

        async def call(line: Line) -> None:
            nonlocal out, most
            ticket = await line.enter(self.place, 2, wait=CAP)
            out, most = out + 1, max(most, out + 1)
            order.append(ticket.id)
            await asyncio.sleep(0.005)  # other calls would come in now
            out -= 1
            line.leave(ticket)

        lines = [self.line("a"), self.line("b")]
        async with asyncio.timeout(CAP):
            await asyncio.gather(*(call(line) for line in lines for _ in range(8)))
            for line in lines:
                await line.close()
        assert most == 2
        # Of two that get their slots at once, either may be told first.
        assert all(
            abs(order.index(ticket) - place) <= 1 for place, ticket in enumerate(sorted(order))
        )

    async def test_who_waits_too_long_is_told_and_leaves_the_line(self) -> None:
        first, second = self.line("a"), self.line("b")
        async with asyncio.timeout(CAP):
            ticket = await first.enter(self.place, 1, wait=None)
            with pytest.raises(Busy):
                await second.enter(self.place, 1, wait=0.01)
            first.leave(ticket)
            again = await first.enter(self.place, 1, wait=CAP)
            first.leave(again)
            await first.close()
            await second.close()
        assert self.take("c", 1, limit=1)[1]

    async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_line(self) -> None:
        line = self.line("a")
        async with asyncio.timeout(CAP):
            ticket = await line.enter(self.place, 1, wait=None)
            waiting = asyncio.create_task(line.enter(self.place, 1, wait=None))
            await somebody_waits(line)
            waiting.cancel()
            await asyncio.wait({waiting})
            line.leave(ticket)
            line.leave(ticket)  # twice is the same
            line.leave(await line.enter(self.place, 1, wait=CAP))
            await line.close()
        assert self.take("b", 1, limit=1)[1]

    async def test_closing_frees_everything(self) -> None:
        line = self.line("a")
        async with asyncio.timeout(CAP):
            await line.enter(self.place, 1, wait=None)
            waiting = asyncio.create_task(line.enter(self.place, 1, wait=None))
            await somebody_waits(line)
            await line.close()
            await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert self.take("b", 1, limit=1)[1]

    async def test_a_ticket_that_expired_while_it_waited_goes_to_the_end(self) -> None:
        """The worker was frozen for a minute."""
        line = self.line("a")
        async with asyncio.timeout(CAP):
            held = self.take("b", 1, limit=1)[0]
            waiting = asyncio.create_task(line.enter(self.place, 1, wait=None))
            await somebody_waits(line)
            self.run_out("a")
            self.kept_in.turn(self.place, "b", limit=1, leave=held)
            ticket = await waiting
            await line.close()
        assert ticket.id > held[0] + 1
