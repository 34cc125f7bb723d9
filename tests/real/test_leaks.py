"""A worker that has tested servers a few hundred times is as it was before."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.fakes.mcp_helpers import FAKE
from tests.fakes.mcp_http import FakeHttp, Reply, Request, running
from tests.real.conftest import Site, eventually, free_port, new_site
from tests.real.remains import descendants

SYSTEM_PYTHON = "/usr/bin/python3"
ROUNDS = 20  # of ten tests: four succeed, five fail, one is cancelled
WARM_UP = 3  # rounds after which every thread has its connection to the database
GOOD = ("stdio", "json", "events", "old-sse")
BAD = ("dies", "missing", "refused", "broken", "mute-exit")
MUTE = ("mute", "hanging")


async def _hang(request: Request) -> Reply:
    await asyncio.Event().wait()
    return Reply()


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, tuple[str, dict[str, object]]]]:
    """By name: transport and settings."""

    def stdio(**behaviour: object) -> tuple[str, dict[str, object]]:
        args = ["-I", "-S", "-X", "utf8", str(FAKE), json.dumps(behaviour)]
        return "stdio", {"command": SYSTEM_PYTHON, "args": args}

    with ExitStack() as stack:

        def http(fake: FakeHttp) -> tuple[str, dict[str, object]]:
            return "http", {"url": stack.enter_context(running(fake)).url}

        yield {
            "stdio": stdio(),
            "json": http(FakeHttp()),
            "events": http(FakeHttp(answer="sse")),
            "old-sse": http(FakeHttp(transport="sse")),
            "dies": stdio(start="die", stderr="KEY is required"),
            "missing": ("stdio", {"command": "no-such-command"}),
            "refused": ("http", {"url": f"http://127.0.0.1:{free_port()}/mcp"}),
            "broken": http(FakeHttp(script=lambda _: Reply(500, {}, b"out of order"))),
            "mute-exit": ("stdio", {"command": "sh", "args": ["-c", "sleep 1000 & exit 0"]}),
            "mute": stdio(start="mute"),
            "hanging": http(FakeHttp(script=_hang)),
        }


@pytest.fixture(scope="module")
def site(servers: dict[str, tuple[str, dict[str, object]]]) -> Iterator[Site]:
    made = new_site({"UMPTEENTH_MCP__AUTO_CONNECT": "false"})
    made.migrate()
    for name, (transport, values) in servers.items():
        made.ask("add_server", name, transport, values)
    yield made
    made.close()


def possessions(pid: int) -> Counter[str]:
    """How many processes, file descriptors and threads there are below `pid`."""
    held: Counter[str] = Counter()
    for process in descendants(pid):
        with suppress(OSError):
            held["descriptors"] += len(os.listdir(f"/proc/{process}/fd"))
            held["threads"] += len(os.listdir(f"/proc/{process}/task"))
            held["processes"] += 1
    return held


def test_two_hundred_tests_leave_no_process_and_no_descriptor(site: Site) -> None:
    """Half of them fail, a tenth is cancelled (issue 3, section 6; C24, F15)."""
    worker = site.start("worker")
    eventually(lambda: site.ask("workers"), "the worker's report")
    seen: Counter[str] = Counter()
    before: Counter[str] = Counter()
    for number in range(ROUNDS):
        seen.update(do_round(site, MUTE[number % 2]))
        if number == WARM_UP - 1:
            before = settled(worker.pid)
    assert seen == {"connected": 4 * ROUNDS, "failed": 5 * ROUNDS, "cancelled": ROUNDS}
    assert before["processes"] >= 1
    eventually(lambda: possessions(worker.pid) <= before, "what was held before")


def do_round(site: Site, mute: str) -> list[str]:
    names = [*GOOD, *BAD, mute]
    ids = site.ask("test", names)
    eventually(lambda: site.ask("outcomes", ids[-1:]) == ["running"], "the mute server's test")
    site.ask("cancel_test", ids[-1])

    def over() -> list[str] | None:
        found: list[str] = site.ask("outcomes", ids)
        return None if {"queued", "running"} & set(found) else found

    outcomes: list[str] = eventually(over, "ten tests")
    return outcomes


def settled(pid: int) -> Counter[str]:
    """What is held once it has stopped to change."""
    held = possessions(pid)
    same_since = time.monotonic()
    while time.monotonic() - same_since < 1.0:
        time.sleep(0.1)  # the kernel does not tell when a process lets go of something
        now = possessions(pid)
        if now != held:
            held, same_since = now, time.monotonic()
    return held
