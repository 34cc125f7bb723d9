"""Live pages with several machines: a wake-up through real Redis, and what happens without it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping

import pytest

from tests.real.conftest import Redis
from umpteenth.core import live
from umpteenth.core.live import Hub


class Rows:
    def __init__(self) -> None:
        self.looks = 0

    def read(self, keys: Collection[str]) -> Mapping[str, Hashable]:
        self.looks += 1
        return dict.fromkeys(keys, 0)


async def until_listening(hub: Hub, state: bool) -> None:
    async with asyncio.timeout(10):
        while hub.is_listening != state:  # noqa: ASYNC110  (a connection has no event for it)
            await asyncio.sleep(0.02)


async def test_a_published_wake_up_reaches_the_stream_before_any_poll(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SAFETY_POLL_SECONDS", 60.0)
    monkeypatch.setattr(live, "redis_url", lambda: redis_server.url)
    rows = Rows()
    hub = Hub("things", rows.read, redis_url=redis_server.url)
    async with hub.watch("a") as wake:
        await until_listening(hub, True)
        wake.clear()
        await asyncio.to_thread(live.wake, "things", "a")
        async with asyncio.timeout(5):
            await wake.wait()
    assert not hub.is_running


async def test_where_redis_cannot_be_reached_the_hub_polls() -> None:
    rows = Rows()
    hub = Hub("things", rows.read, interval=0.02, redis_url="redis://127.0.0.1:1/0")
    async with hub.watch("a"):
        async with asyncio.timeout(5):
            while rows.looks < 3:  # noqa: ASYNC110  (the poller is what is watched)
                await asyncio.sleep(0.02)
    assert not hub.is_listening
