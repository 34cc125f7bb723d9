"""Hundreds of runs, a third of which fail, are cancelled or die with their worker at a random
moment of their start: nothing of them stays (issue 5, section 6; P8, C09, C24; feasibility,
section 17).

`LEAK_RUNS=500`, as `make bench` has it, makes it five times as many as usual, for both users
together.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from jobs.sandbox import cgroups
from tests.real.conftest import Site, eventually
from tests.real.plain_sites import USERS, site_of
from tests.real.remains import Remains
from tests.real.sandboxes import processes_with, wait_until_gone
from tests.real.test_leaks import settled

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

RUNS = int(os.environ.get("LEAK_RUNS", "100"))
POOL = 12  # threads, at most
WAVE = 12  # runs: eight that succeed and four that do not
WAVES = 1 + RUNS // (4 * WAVE)  # of each test, after which there were more runs than asked for
SYSTEM_PYTHON = "/usr/bin/python3"
STUBBORN = "trap '' TERM HUP INT; setsid sleep {mark} & nohup sleep {mark} & "


@pytest.fixture(scope="module", params=USERS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    variables = {"UMPTEENTH_MCP__AUTO_CONNECT": "false", "UMPTEENTH_RUNS__MAX_CONCURRENT": "6"}
    with site_of(request.param, variables) as site:
        site.migrate()
        yield site


@pytest.fixture(scope="module")
def mark(site: Site) -> str:
    """An argument of `sleep` that nobody else uses; with it the jobs are there."""
    mark = f"9{uuid4().int % 10**12}"
    fake = str(site.code / "tests/fakes/mcp_server.py")
    site.ask("add_server", "fake", "stdio", {"command": SYSTEM_PYTHON, "args": [fake]})
    stubborn = STUBBORN.format(mark=mark)
    jobs: dict[str, dict[str, Any]] = {
        "good": {"script": f"{stubborn}echo kept > /ump/outputs/a.txt"},
        "bad": {"script": f"{stubborn}exit 3", "network": "none"},
        "long": {"script": f"{stubborn}wait; sleep {mark}", "servers": {"fake": "all"}},
    }
    for name, values in jobs.items():
        site.ask("create", json.dumps({"name": name, "overlap": "parallel", **values}))
    return mark


@pytest.fixture
def remains(site: Site) -> Iterator[Remains]:
    remains = Remains(site)
    yield remains
    remains.forget()


@pytest.fixture(scope="module")
def chance(mark: str) -> random.Random:
    print(f"moments by {mark}")  # shown where a test fails
    return random.Random(mark)


def begin(site: Site) -> subprocess.Popen[bytes]:
    before = site.ask("workers")
    worker = site.start("worker")
    eventually(lambda: site.ask("workers") > before, "the worker's report")
    return worker


def statuses(site: Site, ids: list[str]) -> list[str]:
    return [site.ask("show", run_id)["status"] for run_id in ids]


def wait_for_end(site: Site, ids: list[str], look: Callable[[], None] | None = None) -> list[str]:
    def over() -> list[str]:
        if look:
            look()
        found = statuses(site, ids)
        return [] if {"queued", "provisioning", "running"} & set(found) else found

    found: list[str] = eventually(over, "the end of a wave")
    return found


def start_in_time(site: Site, chance: random.Random, *, longest: float) -> str:
    """A long run at a random moment of its start."""
    run_id: str = site.ask("start", "long")
    eventually(lambda: statuses(site, [run_id]) != ["queued"], "a claim")
    time.sleep(chance.uniform(0, longest))  # the moment is what is tried
    return run_id


def wave(site: Site, chance: random.Random, look: Callable[[], None]) -> list[str]:
    """Three that fail, one that is cancelled, eight that succeed: their ends."""
    names = ["good"] * (WAVE - 4) + ["bad"] * 3
    chance.shuffle(names)
    ids = [site.ask("start", name) for name in names]
    ids.append(start_in_time(site, chance, longest=0.3))
    site.ask("cancel", ids[-1])
    return wait_for_end(site, ids, look)


def test_runs_that_end_leave_a_worker_as_it_was(
    site: Site, mark: str, chance: random.Random, remains: Remains
) -> None:
    """No process, descriptor, thread, namespace, mount, socket, control group or directory."""
    worker = begin(site)
    seen: Counter[str] = Counter()
    for number in range(WAVES):
        seen.update(wave(site, chance, partial(remains.look, worker.pid)))
        if number == 0:
            before = settled(worker.pid)
    assert seen == {
        "succeeded": seen.total() * 8 / 12,
        "failed": seen.total() * 3 / 12,
        "cancelled": seen.total() / 12,
    }
    after = settled(worker.pid)
    # Celery's pool makes its threads as it needs them; a thread lost by each run were more.
    assert after.pop("threads") - before.pop("threads") < POOL
    assert after <= before
    # What is looked for was there.
    assert (len(remains.seen) > 1, len(remains.mounted) > 1) == (True, True)
    if not site.prefix:  # what this user may do, its worker may
        assert bool(remains.cgroups) == bool(cgroups.shared().controllers)
    assert remains.mounts(worker.pid) == set()
    eventually(lambda: remains.groups_of_sandboxes() == [], "the end of the sandboxes' groups")
    assert processes_with(mark) == []
    assert (remains.sockets(), remains.run_directories()) == ([], [])
    assert len(remains.private_directories()) == 1
    site.stop(worker)
    eventually(lambda: remains.processes() == [], "the launcher's end")
    assert (remains.groups(), remains.private_directories()) == ([], [])


def test_runs_that_die_with_their_worker_leave_nothing(
    site: Site, mark: str, chance: random.Random, remains: Remains
) -> None:
    """Killed by -9 in the midst of two runs' start; what is left on the disk goes with the next
    worker's."""
    worker = begin(site)
    for _ in range(WAVES):
        names = ["good"] * (WAVE - 4) + ["bad"] * 2
        assert Counter(wait_for_end(site, [site.ask("start", name) for name in names])) == {
            "succeeded": WAVE - 4,
            "failed": 2,
        }
        doomed = [site.ask("start", "long"), start_in_time(site, chance, longest=0.2)]
        remains.look(worker.pid)
        site.stop(worker, 9)
        assert wait_until_gone(mark) == []
        eventually(lambda: remains.processes() == [], "the end of all sandboxes", 5)
        for run_id in doomed:
            site.ask("silence", run_id)
        site.ask("reap")
        assert not {"provisioning", "running"} & set(statuses(site, doomed))
        worker = begin(site)
        for run_id in doomed:
            if statuses(site, [run_id]) == ["queued"]:
                site.ask("cancel", run_id)
        wait_for_end(site, doomed)
    site.stop(worker)
    worker = begin(site)
    eventually(lambda: remains.run_directories() == [], "an empty directory of runs")
    assert (remains.sockets(), len(remains.private_directories())) == ([], 1)
    site.stop(worker)
    eventually(lambda: remains.groups() == [], "the end of all control groups")
    assert remains.private_directories() == []
    assert processes_with(mark) == []
