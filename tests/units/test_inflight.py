"""The bound of calls in flight (U5, A38, A50): the line in the database, and the line itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import time_machine
from django.db import DatabaseError
from django.utils import timezone

from servers import inflight
from servers.inflight import Line, Store, StoreAway
from servers.inflight_database import DatabaseStore
from servers.models import CallTicket, Server
from tests.fakes.lines import (
    CAP,
    FakeStore,
    LineBehaviour,
    here,
    in_a_thread,
    somebody_waits,
)


def make_server(name: str) -> Server:
    row: Server = Server.objects.create(name=name, transport="http", private=b"")
    return row


def expire(holder: str) -> None:
    CallTicket.objects.filter(holder=holder).update(expires_at=timezone.now())


@pytest.mark.django_db(transaction=True)
class TestTheLineInTheDatabase(LineBehaviour):
    @pytest.fixture
    def store(self) -> Store:
        return DatabaseStore()

    @pytest.fixture
    def server_id(self) -> UUID:
        return make_server("good").pk

    @pytest.fixture
    def other_server_id(self) -> UUID:
        return make_server("other").pk

    @pytest.fixture
    def expire(self) -> Callable[[str], None]:
        return expire


@pytest.mark.django_db
class TestLeases:
    def test_a_ticket_lives_for_a_minute_and_is_swept_then(self) -> None:
        store, server = DatabaseStore(), make_server("good")
        with time_machine.travel(timezone.now(), tick=False) as clock:
            store.turn(server.pk, "a", limit=1, take=1)
            clock.shift(timedelta(seconds=59))
            assert store.sweep() == 0
            store.renew("a")
            clock.shift(timedelta(seconds=59))
            assert store.sweep() == 0
            clock.shift(timedelta(seconds=1))
            assert store.sweep() == 1
        assert not CallTicket.objects.exists()

    def test_nothing_to_sweep_writes_nothing(self, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(1):
            assert inflight.sweep() == 0

    def test_an_end_is_no_error_where_the_database_is_away(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_args: Any) -> None:
            raise DatabaseError("gone")

        monkeypatch.setattr(DatabaseStore, "drop", away)
        inflight.drop("a")

    def test_a_visit_that_waits_costs_two_looks(self, django_assert_num_queries: Any) -> None:
        store, server = DatabaseStore(), make_server("good")
        [_, waiting] = store.turn(server.pk, "a", limit=1, take=2).taken
        with django_assert_num_queries(2):
            store.turn(server.pk, "a", limit=1, waiting=[waiting])


SERVER = uuid4()


class TestVisits:
    async def test_calls_of_one_moment_share_a_visit(self) -> None:
        """One hop to the database for each call at most, and none to give slots back."""
        store = FakeStore()
        line = Line("a", here, kept_in=store)
        tickets = await asyncio.gather(*(line.enter(SERVER, 8) for _ in range(8)))
        assert store.visits == [(8, 0)]
        for ticket in tickets:
            line.leave(ticket)
        assert store.visits == [(8, 0)]  # in the background
        await line.enter(SERVER, 8)
        assert store.visits == [(8, 0), (1, 8)]

    async def test_what_is_seen_comes_with_the_slot(self) -> None:
        seen = iter(["first", "while nobody waited", "again after the wait"])
        line = Line("a", here, kept_in=FakeStore(), look=lambda server_id: next(seen))
        first = await line.enter(SERVER, 1)
        waiting = asyncio.create_task(line.enter(SERVER, 1))
        async with asyncio.timeout(CAP):
            await somebody_waits(line)
            line.leave(first)
            assert (first.seen, (await waiting).seen) == ("first", "again after the wait")

    async def test_a_look_that_refuses_takes_no_slot(self) -> None:
        def refuse(server_id: UUID) -> None:
            raise PermissionError("no")

        store = FakeStore()
        line = Line("a", here, kept_in=store, look=refuse)
        with pytest.raises(PermissionError):
            await line.enter(SERVER, 1)
        assert store.tickets == []

    async def test_who_has_waited_for_nothing_gives_the_slot_on(self) -> None:
        """The permission was taken away while the call waited."""
        answers = [lambda: "yes", lambda: "yes"]

        def look(server_id: UUID) -> str:
            if not answers:
                raise PermissionError("not any more")
            return answers.pop()()

        store = FakeStore()
        line = Line("a", here, kept_in=store, look=look)
        first = await line.enter(SERVER, 1)
        waiting = asyncio.create_task(line.enter(SERVER, 1))
        async with asyncio.timeout(CAP):
            await somebody_waits(line)
            line.leave(first)
            with pytest.raises(PermissionError):
                await waiting
            answers.append(lambda: "yes")
            assert (await line.enter(SERVER, 1)).seen == "yes"

    async def test_a_slot_that_comes_in_the_moment_of_the_cancel_is_given_back(self) -> None:
        store = FakeStore()
        line = Line("a", here, kept_in=store)
        entering = asyncio.create_task(line.enter(SERVER, 1))
        queue = None
        async with asyncio.timeout(CAP):
            while queue is None or not queue._held:
                await asyncio.sleep(0)
                queue = line._queues.get(SERVER)
            entering.cancel()
            await asyncio.wait({entering})
            assert (await line.enter(SERVER, 1)).id == 2

    async def test_what_could_not_be_given_back_is_tried_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a run that calls no more would keep the slot to its end."""
        monkeypatch.setattr(inflight, "RETRY", 0.0)
        faults = 2

        async def away(work: Callable[[], Any]) -> Any:
            nonlocal faults
            if faults and store.tickets:
                faults -= 1
                raise DatabaseError("locked")
            return work()

        store = FakeStore()
        line = Line("a", away, kept_in=store)
        ticket = await line.enter(SERVER, 1)
        line.leave(ticket)
        async with asyncio.timeout(CAP):
            while store.tickets:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert faults == 0

    async def test_calls_that_are_cancelled_during_a_visit_take_nothing(self) -> None:
        gate = asyncio.Event()

        async def slow(work: Callable[[], Any]) -> Any:
            await gate.wait()
            return work()

        store = FakeStore()
        line = Line("a", slow, kept_in=store)
        under_way = asyncio.create_task(line.enter(SERVER, 2))
        for _ in range(3):
            await asyncio.sleep(0)
        not_yet = asyncio.create_task(line.enter(SERVER, 2))
        await asyncio.sleep(0)
        under_way.cancel()
        not_yet.cancel()
        await asyncio.wait({under_way, not_yet})
        gate.set()
        async with asyncio.timeout(CAP):
            assert (await line.enter(SERVER, 1)).id == 2
        assert store.tickets == [2]

    async def test_an_error_reaches_all_who_still_wait_for_the_visit(self) -> None:
        gate = asyncio.Event()

        async def broken(work: Callable[[], Any]) -> Any:
            await gate.wait()
            raise DatabaseError("gone")

        line = Line("a", broken, kept_in=FakeStore())
        calls = [asyncio.create_task(line.enter(SERVER, 2)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        calls[0].cancel()
        gate.set()
        async with asyncio.timeout(CAP):
            await asyncio.wait(calls)
            await line._queues[SERVER].close()
        assert calls[0].cancelled()
        assert [str(call.exception()) for call in calls[1:]] == ["gone", "gone"]

    async def test_a_call_that_settles_after_the_end_disturbs_nothing(self) -> None:
        line = Line("a", here, kept_in=FakeStore())
        ticket = await line.enter(SERVER, 1)
        await line.close()
        line.leave(ticket)
        assert line._queues[SERVER]._left == []

    async def test_without_the_store_each_holder_keeps_the_bound_alone(self) -> None:
        """Redis is away for a while; a run goes on (H11)."""
        store = FakeStore()
        line = Line("a", here, kept_in=store)
        held = await line.enter(SERVER, 2)
        store.away = True
        second = await line.enter(SERVER, 2)
        waiting = asyncio.create_task(line.enter(SERVER, 2))
        async with asyncio.timeout(CAP):
            await somebody_waits(line)
            assert not waiting.done()
            line.leave(second)
            third = await waiting
            store.away = False
            line.leave(third)
            line.leave(held)
            assert (await line.enter(SERVER, 1)).id > 0
        assert len(store.tickets) == 1

    @pytest.mark.parametrize("error", [StoreAway("timed out"), DatabaseError("gone")])
    async def test_a_visit_whose_answer_was_lost_leaves_no_slot_taken(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The store did it and could not say so; heartbeats would renew the ticket for ever."""
        store = FakeStore()
        line = Line("a", here, kept_in=store)
        turn = store.turn

        def unheard(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(store, "turn", turn)
            turn(*args, **options)
            raise error

        async with asyncio.timeout(CAP):
            held = await line.enter(SERVER, 9)
            monkeypatch.setattr(store, "turn", unheard)
            await asyncio.gather(line.enter(SERVER, 9), return_exceptions=True)
            assert len(store.tickets) == 2
            last = await line.enter(SERVER, 9)
        assert store.tickets == [held.id, last.id]

    async def test_a_slot_that_was_given_back_while_the_store_was_away_is_free(self) -> None:
        store = FakeStore()
        line = Line("a", here, kept_in=store)
        async with asyncio.timeout(CAP):
            first = await line.enter(SERVER, 2)
            store.away = True
            line.leave(first)
            await line.enter(SERVER, 2)
            store.away = False
            last = await line.enter(SERVER, 2)
        assert store.tickets == [last.id]

    async def test_a_makeshift_ticket_that_still_waits_gets_a_real_one(self) -> None:
        store = FakeStore()
        line = Line("a", here, kept_in=store)
        store.away = True
        held = await line.enter(SERVER, 1)
        waiting = asyncio.create_task(line.enter(SERVER, 1))
        async with asyncio.timeout(CAP):
            await somebody_waits(line)
            store.away = False
            line.leave(held)
            assert (await waiting).id > 0


@pytest.mark.django_db(transaction=True)
class TestOutsideOfRuns:
    async def test_a_command_takes_its_place_in_the_same_line(self) -> None:
        server = await in_a_thread(lambda: make_server("good"))
        async with asyncio.timeout(CAP):
            async with inflight.slot(server.pk, 1):
                with pytest.raises(inflight.Busy):
                    async with inflight.slot(server.pk, 1, wait=0.01):
                        pass
            async with inflight.slot(server.pk, 1, wait=CAP):
                pass
        assert not await in_a_thread(CallTicket.objects.exists)

    async def test_its_lease_is_renewed_while_it_lasts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = await in_a_thread(lambda: make_server("good"))
        renewed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note(_store: Store, _holder: str) -> None:
            loop.call_soon_threadsafe(renewed.set)
            raise StoreAway("for a moment")

        monkeypatch.setattr(inflight, "RENEW_EVERY", 0.0)
        monkeypatch.setattr(DatabaseStore, "renew", note)
        async with asyncio.timeout(CAP), inflight.slot(server.pk, 1):
            await renewed.wait()


def test_a_run_is_not_disturbed_by_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "store", FakeStore)
    inflight.renew("a")


def test_where_there_is_redis_the_line_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from servers.inflight_redis import RedisStore

    assert isinstance(inflight.store(), DatabaseStore)
    monkeypatch.setattr(inflight, "redis_url", lambda: "redis://127.0.0.1:1/0")
    store = inflight.store()
    assert isinstance(store, RedisStore)
    assert inflight.store() is store
