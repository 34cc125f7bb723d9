"""The calls of real scripts on the timeline and on their run (P74-P76)."""

from __future__ import annotations

import os
import signal

import pytest

from jobs.toolbox import LIMIT_NOTE
from tests.fakes.mcp_http import FakeHttp, Request, running
from tests.real.conftest import PATIENCE, PROJECT, Site, eventually
from tests.real.test_runs import SYSTEM_PYTHON, make_job, of_kind, run_now, start, wait_for

FAKE = PROJECT / "tests" / "fakes" / "mcp_server.py"
# More calls than the timeline takes, without a program for each of them.
FLOOD = """#!/usr/bin/env python3
import json, os, socket

def ask(command, **args):
    with socket.socket(socket.AF_UNIX) as broker:
        broker.connect(os.environ["UMP_SOCKET"])
        request = {"token": os.environ["UMP_TOKEN"], "command": command, "args": args}
        broker.sendall(json.dumps(request).encode() + b"\\n")
        answer = json.loads(broker.makefile().readline())
        assert answer["ok"], answer

def call(tool, **arguments):
    ask("mcp_call", server="fake", tool=tool, arguments=arguments)

for number in range(990):
    call("echo", n=number)
for number in range(20):
    ask("state_list")
for number in range(205):
    call("echo", n=number)
    call("count", n=number)
    ask("output_set", name="n", value=number)
"""


@pytest.fixture(scope="module")
def fake(site: Site) -> str:
    done = site.run("mcp", "add", "fake", "--", SYSTEM_PYTHON, str(FAKE))
    assert done.returncode == 0, done.stderr
    return "fake"


def test_a_thousand_calls_are_recorded_then_two_hundred_with_side_effects(
    site: Site, fake: str
) -> None:
    """P75, P76, and one event that says so."""
    shown = run_now(site, make_job(site, FLOOD, servers={fake: "all"}))
    assert (shown["status"], shown["outputs"]) == ("succeeded", {"n": 204})
    calls = [payload["tool"] for payload in of_kind(site, shown["id"], "tool.call")]
    assert calls == ["echo"] * 990 + ["count"] * 200
    assert len(of_kind(site, shown["id"], "tool.result")) == len(calls)
    assert len(of_kind(site, shown["id"], "broker.call")) == 10
    notes = [payload["message"] for payload in of_kind(site, shown["id"], "log")]
    assert notes.count(LIMIT_NOTE) == 1
    # 10 lists, 205 echoes, 5 counts, 205 outputs.
    assert notes[-1] == "425 further calls were made and not recorded"
    details = site.json("run", "show", shown["id"])
    kept = details["side_effects"]
    assert [call["arguments"] for call in kept] == [f'{{"n": {n}}}' for n in range(200)]
    assert {(call["server"], call["tool"], call["outcome"]) for call in kept} == {
        ("fake", "count", "succeeded")
    }
    assert details["side_effects_left_out"] == 5


def test_each_outcome_is_told(site: Site, fake: str) -> None:
    """P74: exit 1 where the tool reports an error; P76: it counts as made all the same."""
    script = (
        "ump mcp call fake count '{\"n\": 1}'\n"
        "ump mcp call fake fail '{}'; echo \"exit $?\"\n"
        "ump mcp call fake echo '{}'\n"
        "ump mcp call fake exit '{\"code\": 3}' || exit 7\n"
    )
    shown = run_now(site, make_job(site, script, servers={fake: "all"}))
    assert shown["error"] == "the script ended with exit code 7"
    assert "exit 1\n" in "".join(part["text"] for part in of_kind(site, shown["id"], "output"))
    assert [(call["tool"], call["outcome"]) for call in shown["side_effects"]] == [
        ("count", "succeeded"),
        ("fail", "failed"),
        ("exit", "unknown"),
    ]


def test_a_worker_that_is_killed_leaves_them_behind(site: Site, fake: str) -> None:
    script = "ump mcp call fake count '{}'; ump mcp call fake hang '{\"to\": \"nobody\"}'\n"
    run_id = start(site, make_job(site, script, servers={fake: "all"}))
    eventually(lambda: len(site.ask("show", run_id)["side_effects"]) == 2, "the call that hangs")
    [worker, *_] = site.processes
    site.stop(worker, 9)
    site.ask("silence", run_id)
    wait_for(site, run_id, "failed")
    counted, hung = site.ask("show", run_id)["side_effects"]
    assert (counted["tool"], counted["outcome"]) == ("count", "succeeded")
    assert (hung["tool"], hung["outcome"]) == ("hang", "unknown")
    assert hung["arguments"] == '{"to": "nobody"}'
    site.processes.insert(0, site.start("worker"))
    site.processes.pop()


def test_a_call_is_on_record_when_its_server_hears_of_it(site: Site) -> None:
    """P76: with a worker that is killed at that very moment."""
    [worker, *_] = site.processes

    def kill(request: Request) -> None:
        if request.rpc == "tools/call":
            os.kill(worker.pid, signal.SIGKILL)

    with running(FakeHttp(script=kill)) as server:
        done = site.run("mcp", "add", "remote", "--url", server.url)
        assert done.returncode == 0, done.stderr
        script = "ump mcp call remote count '{\"n\": 7}'\n"
        run_id = start(site, make_job(site, script, servers={"remote": "all"}))
        worker.wait(PATIENCE)
        site.processes.remove(worker)
    site.ask("silence", run_id)
    wait_for(site, run_id, "failed")
    [call] = site.ask("show", run_id)["side_effects"]
    assert (call["server"], call["arguments"], call["outcome"]) == ("remote", '{"n": 7}', "unknown")
    site.processes.insert(0, site.start("worker"))
    site.processes.pop()
