"""The line of calls in real Redis and real Postgres, and over processes (U5, A38)."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from servers.inflight import Store
from servers.inflight_redis import PREFIX, RedisStore
from tests.fakes.lines import LineBehaviour
from tests.real.conftest import PROJECT, Redis, Site, free_port, new_database, new_site

LIMIT = 3
CALLS = 12  # of each process


class TestTheLineInRedis(LineBehaviour):
    @pytest.fixture
    def store(self, redis_server: Redis) -> Store:
        return RedisStore(redis_server.url)

    @pytest.fixture
    def server_id(self) -> UUID:
        return uuid4()

    @pytest.fixture
    def other_server_id(self) -> UUID:
        return uuid4()

    @pytest.fixture
    def expire(self, redis_server: Redis, server_id: UUID) -> Iterator[Callable[[str], None]]:
        from redis import Redis as Client

        client: Any = Client.from_url(redis_server.url, decode_responses=True)

        def expire(holder: str) -> None:
            lease = f"{PREFIX}{server_id}:lease"
            for member in client.zrange(lease, 0, -1):
                if member.endswith(f":{holder}"):
                    client.zadd(lease, {member: 1})

        yield expire
        client.close()

    def test_nothing_stays_for_ever(self, redis_server: Redis) -> None:
        from redis import Redis as Client

        self.take("a")
        with contextlib.closing(Client.from_url(redis_server.url, decode_responses=True)) as client:
            keys = [*client.scan_iter(f"{PREFIX}*{self.place}*"), f"{PREFIX}holder:a"]
            assert len(keys) == 3
            assert all(0 < client.pttl(key) <= 120_000 for key in keys)


def test_a_redis_that_is_away_is_asked_again_only_later() -> None:
    """H11: a run does not wait for it with each of its calls."""
    from servers.inflight import StoreAway

    store = RedisStore(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreAway, match="refused"):
        store.turn(uuid4(), "a", limit=1, take=1)
    with pytest.raises(StoreAway, match="a moment ago"):
        store.turn(uuid4(), "a", limit=1, take=1)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def bare_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site without processes of its own."""
    variables = {}
    if request.param == "postgres":
        port: int = request.getfixturevalue("postgres_port")
        variables["UMPTEENTH_DATABASE__URL"] = new_database(port)
    if request.param == "redis":
        redis: Redis = request.getfixturevalue("redis_server")
        variables["UMPTEENTH_REDIS__URL"] = redis.url
    made = new_site(variables)
    made.migrate()
    yield made
    made.close()


def test_processes_together_keep_the_limit_and_the_order(bare_site: Site) -> None:
    """Three workers, one server: first come, first served."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.real.line_trial", name, str(LIMIT), str(CALLS)],
            env=bare_site.environ,
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b", "c")
    ]
    calls = []
    for process in started:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        calls += json.loads(out)
    assert len(calls) == 3 * CALLS
    moments = sorted(
        itertools.chain.from_iterable(((call["got"], 1), (call["left"], -1)) for call in calls)
    )
    out_at_once = list(itertools.accumulate(change for _, change in moments))
    assert max(out_at_once) == LIMIT
    # Nobody gave a slot back before an earlier ticket had one, but those that got theirs with it.
    calls.sort(key=lambda call: call["id"])
    for place, call in enumerate(calls):
        overtaken = [other for other in calls[place + LIMIT :] if other["left"] < call["got"]]
        assert overtaken == []
