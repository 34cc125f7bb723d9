"""Calls of real runs: what happens around them, and their slots (issue 3, section 3)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.real.conftest import Site, eventually
from tests.real.test_runs import FAKE, SYSTEM_PYTHON, events, make_job, of_kind, start, wait_for

SLEEP = 0.3  # seconds of the server's own


@pytest.fixture(scope="module")
def fake(site: Site) -> str:
    done = site.run("mcp", "add", "fake", "--", SYSTEM_PYTHON, str(FAKE))
    assert done.returncode == 0, done.stderr
    return "fake"


@pytest.fixture
def narrow(site: Site, fake: str) -> str:
    """The server, which takes one call at a time."""
    site.ask("set_columns", fake, {"options": {"max_inflight_calls": 1}})
    return fake


def test_what_a_server_tells_during_a_call_is_on_the_timeline(site: Site, fake: str) -> None:
    question = '{"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": '
    question += '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}}'
    job = make_job(
        site,
        'ump mcp call fake progress \'{"steps": 3, "interval": 0.01}\'\n'
        f"ump mcp call fake ask '{question}'\n"
        "ump mcp call fake change '{}'\nump mcp tools fake\n",
        servers={fake: "all"},
    )
    run_id = start(site, job)
    shown = wait_for(site, run_id, "succeeded", "failed")
    assert shown["status"] == "succeeded", of_kind(site, run_id, "output")
    found = events(site, run_id)
    [first] = [event for event in found if event["kind"] == "tool.progress"]
    call = next(event for event in found if event["kind"] == "tool.call")
    assert (first["span"], first["payload"]["message"]) == (call["span"], "step 1")
    [changed] = of_kind(site, run_id, "server.tools_changed")
    assert (changed["added"], changed["removed"]) == (["new"], [])
    notices = [payload["message"] for payload in of_kind(site, run_id, "server.notice")]
    assert any("Sure?" in message for message in notices), notices


def test_a_server_that_ends_in_mid_run_is_started_again_with_its_next_use(
    site: Site, fake: str
) -> None:
    """C06, F10: the call that it ended with fails, is not sent twice, and spoils no other."""
    job = make_job(
        site,
        "ump mcp call fake echo '{\"n\": 1}'\n"
        'ump mcp call fake exit \'{"code": 7, "words": "out of memory"}\' || echo "it failed"\n'
        "ump mcp call fake echo '{\"n\": 3}'\n",
        servers={fake: "all"},
    )
    run_id = start(site, job)
    shown = wait_for(site, run_id, "succeeded", "failed")
    assert shown["status"] == "succeeded", of_kind(site, run_id, "output")
    assert [result["ok"] for result in of_kind(site, run_id, "tool.result")] == [True, False, True]
    first, again = of_kind(site, run_id, "server.connected")
    assert again["after"] == "The server ended with exit code 7: out of memory"
    assert again["tools"] == first["tools"]
    assert not of_kind(site, run_id, "server.tools_changed")
    assert not of_kind(site, run_id, "server.unavailable")


def test_two_runs_share_the_slots_of_a_server(site: Site, narrow: str) -> None:
    """U5, A38: each run starts the server for itself, yet one call is out at a time."""
    call = f"ump mcp call fake sleep '{{\"seconds\": {SLEEP}}}' &\n"
    job = make_job(site, call * 3 + "wait\n", servers={narrow: "all"}, overlap="parallel")
    runs = [start(site, job) for _ in range(2)]
    ends = []
    for run_id in runs:
        assert wait_for(site, run_id, "succeeded", "failed")["status"] == "succeeded"
        for event in events(site, run_id):
            if event["kind"] == "tool.result":
                assert event["payload"]["ok"], event
                ends.append(datetime.fromisoformat(event["at"]))
    ends.sort()
    assert len(ends) == 6
    # From the first end on, each of the others had to sleep through by itself.
    assert ends[-1] - ends[0] >= timedelta(seconds=5 * SLEEP * 0.9)
    assert site.ask("tickets", narrow) == 0


def test_a_cancelled_run_leaves_no_slot_taken(site: Site, narrow: str) -> None:
    job = make_job(site, "ump mcp call fake hang '{}'\n", servers={narrow: "all"})
    run_id = start(site, job)
    eventually(lambda: of_kind(site, run_id, "tool.call"), "the call")
    assert site.ask("tickets", narrow) == 1
    site.ask("cancel", run_id)
    wait_for(site, run_id, "cancelled")
    [result] = of_kind(site, run_id, "tool.result")
    assert result["error"].startswith("the script or its run ended before the answer came")
    assert result["error"].endswith("may have happened")
    assert site.ask("tickets", narrow) == 0


def test_a_worker_that_dies_frees_its_slots_with_its_run(site: Site, narrow: str) -> None:
    """A slot is a lease tied to the run's claim."""
    job = make_job(site, "ump mcp call fake hang '{}'\n", servers={narrow: "all"})
    run_id = start(site, job)
    eventually(lambda: of_kind(site, run_id, "tool.call"), "the call")
    [worker, *_] = site.processes
    site.stop(worker, 9)
    assert site.ask("tickets", narrow) == 1
    site.ask("silence", run_id)
    wait_for(site, run_id, "failed")
    assert eventually(lambda: site.ask("tickets", narrow) == 0, "the slot")
    site.processes.insert(0, site.start("worker"))
    site.processes.pop()
