"""Runs by real workers in real sandboxes: on SQLite with the embedded broker, and on Postgres
with Redis (issue 2, section 7)."""

from __future__ import annotations

import itertools
import json
import time
from datetime import datetime
from typing import Any
from uuid import uuid4

import psutil
import pytest

from tests.real.conftest import PROJECT, Site, eventually, new_site

FAKE = PROJECT / "tests" / "fakes" / "mcp_server.py"
EVERYTHING = (
    PROJECT / "tests/servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
)
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def fake(site: Site) -> str:
    done = site.run("mcp", "add", "fake", "--", SYSTEM_PYTHON, str(FAKE))
    assert done.returncode == 0, done.stderr
    return "fake"


def make_job(site: Site, script: str, **fields: Any) -> str:
    """The name of a new job. JSON is YAML."""
    values = {"name": f"job-{uuid4().hex[:8]}", "script": script}
    name: str = site.ask("create", json.dumps({**values, **fields}))
    return name


def events(site: Site, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.ask("events", run_id)
    return found


def of_kind(site: Site, run_id: str, kind: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in events(site, run_id) if event["kind"] == kind]


def start(site: Site, job: str) -> str:
    run_id: str = site.ask("start", job)
    return run_id


def wait_for(site: Site, run_id: str, *statuses: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        shown: dict[str, Any] = site.ask("show", run_id)
        return shown if shown["status"] in statuses else None

    found: dict[str, Any] = eventually(look, f"{statuses} of {site.ask('show', run_id)}")
    return found


def run_now(site: Site, job: str) -> dict[str, Any]:
    return wait_for(site, start(site, job), "succeeded", "failed", "timed_out")


def processes_with(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and mark in " ".join(words):
            found.append(process)
    return found


def new_mark() -> str:
    """A number of seconds to sleep that no other process sleeps."""
    return f"3{int(time.time() * 1000) % 10_000_000}"


class TestATool:
    def test_a_script_calls_it_and_the_timeline_tells(self, site: Site, fake: str) -> None:
        text = {
            "name": "by command",
            "script": "#!/usr/bin/env bash\nset -e\nump step look\n"
            'ump mcp call fake echo \'{"message": "hi"}\'\n'
            'ump state set runs 3; ump output set answer "$(ump state get runs)"\n'
            "ump summary 'All **done**'; echo kept > /ump/outputs/a.txt\n",
            "servers": {fake: ["echo"]},
            "network": "none",
        }
        done = site.run("job", "create", "-", input=json.dumps(text))
        assert done.returncode == 0, done.stderr
        shown = site.json("job", "run", "by command", "--wait", "--input", '{"city": "Berlin"}')
        assert (shown["status"], shown["error"]) == ("succeeded", "")
        assert (shown["outputs"], shown["summary"]) == ({"answer": 3}, "All **done**")
        lines = site.run("run", "events", shown["id"], "--json").stdout.splitlines()
        found = [json.loads(line) for line in lines]
        assert [event["seq"] for event in found] == list(range(1, len(found) + 1))
        kinds = [event["kind"] for event in found]
        for kind in ("server.connected", "step", "outputs.set", "summary", "artifact"):
            assert kind in kinds
        call = found[kinds.index("tool.call")]
        result = found[kinds.index("tool.result")]
        assert call["span"] == result["span"]
        assert call["payload"]["arguments"] == {"message": "hi"}
        assert result["payload"]["ok"] is True
        assert result["ms"] > 0
        assert kinds[-1] == "run.status"

    def test_what_is_not_allowed_is_not_found(self, site: Site, fake: str) -> None:
        job = make_job(
            site, "ump mcp tools fake; ump mcp call fake count '{}'\n", servers={fake: ["echo"]}
        )
        shown = run_now(site, job)
        assert shown["error"] == "the script ended with exit code 1"
        output = "".join(p["text"] for p in of_kind(site, shown["id"], "output"))
        assert "echo" in output
        assert "tool 'count' of server 'fake' not found" in output
        assert "sleep" not in output

    def test_a_dead_server_is_named_and_the_run_goes_on(self, site: Site, fake: str) -> None:
        site.run("mcp", "add", "dead", "--", "sh", "-c", "echo KEY is required >&2; exit 3")
        job = make_job(site, "ump mcp call fake echo '{}'\n", servers={"dead": "all", fake: "all"})
        shown = run_now(site, job)
        assert shown["status"] == "succeeded"
        [event] = of_kind(site, shown["id"], "server.unavailable")
        assert event["message"] == "MCP server dead is unavailable"
        assert "KEY is required" in event["reason"]
        assert event["exit_code"] == 3

    def test_nul_and_surrogates_in_a_result_are_stored(self, site: Site, fake: str) -> None:
        """H16, C17: on SQLite and on PostgreSQL."""
        job = make_job(site, "ump mcp call fake ugly '{}' >/dev/null\n", servers={fake: "all"})
        shown = run_now(site, job)
        assert shown["status"] == "succeeded"
        assert of_kind(site, shown["id"], "tool.result")[0]["ok"] is True

    def test_a_server_sees_nothing_of_the_worker(self, site: Site, fake: str) -> None:
        """C14: neither the names of our settings nor their values."""
        job = make_job(site, "ump mcp call fake environ '{}'\n", servers={fake: "all"})
        shown = run_now(site, job)
        environ = json.loads(of_kind(site, shown["id"], "tool.result")[0]["text"])
        assert {"HOME", "PATH"} <= set(environ)
        hidden = ("UMPTEENTH", "DJANGO", "UMP_", "DATABASE", "REDIS", "SECRET")
        assert [name for name in environ if name.startswith(hidden)] == []
        assert not [value for value in environ.values() if "://" in value and "@" in value]

    def test_a_large_result_is_kept_whole(self, site: Site, fake: str) -> None:
        job = make_job(
            site,
            "ump mcp call fake big '{\"bytes\": 3000000}' | wc -c\n",
            servers={fake: "all"},
        )
        shown = run_now(site, job)
        [result] = of_kind(site, shown["id"], "tool.result")
        assert len(json.dumps(result)) < 20_000
        assert result["_blobs"]["text"]["size"] >= 3_000_000
        stored = site.data_dir / "files" / "runs" / shown["id"] / result["_blobs"]["text"]["id"]
        assert stored.stat().st_size == result["_blobs"]["text"]["size"]

    def test_a_server_of_others(self, site: Site) -> None:
        assert site.run("mcp", "add", "everything", "--", "node", str(EVERYTHING)).returncode == 0
        job = make_job(
            site,
            'ump mcp call everything get-sum \'{"a": 1, "b": 2}\'\n',
            servers={"everything": "all"},
        )
        shown = run_now(site, job)
        assert shown["status"] == "succeeded", shown
        [connected] = of_kind(site, shown["id"], "server.connected")
        assert connected["tools"] >= 13
        assert "3" in of_kind(site, shown["id"], "tool.result")[0]["text"]


class TestOutput:
    def test_ten_megabytes_bad_bytes_and_a_secret(self, site: Site) -> None:
        secret = f"s3cr3t-{uuid4().hex}"
        assert site.run("secret", "set", "TOKEN", input=secret).returncode == 0
        job = make_job(
            site,
            'echo "token $TOKEN"; printf "a\\0b\\377\\n"; printf %s "$TOKEN" | base64 -w0; echo\n'
            "head -c 10000000 /dev/zero | tr '\\0' x; echo; echo the end; exit 3\n",
            secrets={"TOKEN": "TOKEN"},
        )
        shown = run_now(site, job)
        assert shown["error"] == "the script ended with exit code 3"
        output = "".join(p["text"] for p in of_kind(site, shown["id"], "output"))
        assert output.startswith("token [secret TOKEN]\nab\ufffd\n")
        assert output.endswith("the end\n")
        assert secret not in json.dumps(events(site, shown["id"]))
        assert 8_000_000 < len(output) < 9_000_000


class TestEnds:
    def test_cancel_takes_everything_with_it(self, site: Site, fake: str) -> None:
        """C24: grandchildren and what ignores signals, in less than ten seconds."""
        mark = new_mark()
        job = make_job(
            site,
            f"trap '' TERM INT\n(setsid sleep {mark} &)\nsleep {mark} & sleep {mark}\n",
            servers={fake: "all"},
        )
        run_id = start(site, job)
        wait_for(site, run_id, "running")
        eventually(lambda: len(processes_with(mark)) >= 3, "the script's processes")
        site.ask("cancel", run_id)
        shown = wait_for(site, run_id, "cancelled")
        times = {event["kind"]: event["at"] for event in events(site, run_id)}
        took = datetime.fromisoformat(times["run.status"]) - datetime.fromisoformat(times["log"])
        assert took.total_seconds() < 10
        assert shown["error"] == ""
        assert processes_with(mark) == []

    def test_a_time_limit_holds(self, site: Site) -> None:
        """C24: the soft limit."""
        shown = run_now(site, make_job(site, "sleep 100\n", timeout=1))
        assert shown["status"] == "timed_out"

    def test_a_worker_that_dies_in_mid_run(self, site: Site, fake: str) -> None:
        """C09: killed by -9, nothing of it stays, the run is found and never executed twice."""
        mark = new_mark()
        job = make_job(
            site,
            f"ump mcp call fake count '{{}}'\n(setsid sleep {mark} &)\nsleep {mark}\n",
            servers={fake: "all"},
            overlap="queue",
        )
        first = start(site, job)
        eventually(lambda: len(processes_with(mark)) >= 2, "the script's processes")
        second = start(site, job)
        [worker, *_] = site.processes
        site.stop(worker, 9)
        eventually(lambda: processes_with(mark) == [], "the end of the sandboxes", 5)
        assert site.ask("show", first)["status"] == "running"
        # The sweep waits for a minute of silence; say that it is over.
        site.ask("silence", first)
        shown = wait_for(site, first, "failed")
        assert shown["error"] == "interrupted: the worker stopped responding"
        site.processes.insert(0, site.start("worker"))
        site.processes.pop()
        wait_for(site, second, "running")
        site.ask("cancel", second)
        wait_for(site, second, "cancelled")
        assert len(of_kind(site, first, "tool.call")) == 1

    def test_a_worker_that_is_stopped_ends_its_runs(self, site: Site) -> None:
        """C09, C24: SIGTERM in mid-run."""
        mark = new_mark()
        run_id = start(site, make_job(site, f"sleep {mark}\n"))
        eventually(lambda: processes_with(mark), "the script")
        [worker, *_] = site.processes
        started = time.monotonic()
        site.stop(worker)
        assert time.monotonic() - started < 15
        shown = site.ask("show", run_id)
        assert shown["error"] == "interrupted: the worker was stopped"
        assert processes_with(mark) == []
        site.processes.insert(0, site.start("worker"))
        site.processes.pop()


class TestManyAtOnce:
    def test_each_run_is_executed_once_by_one_of_two_workers(self, site: Site) -> None:
        job = make_job(site, "echo once\n", overlap="parallel")
        second = site.start("worker")
        ids = [start(site, job) for _ in range(12)]
        for run_id in ids:
            assert wait_for(site, run_id, "succeeded", "failed")["status"] == "succeeded"
            assert len(of_kind(site, run_id, "script.exit")) == 1
        site.stop(second)

    def test_a_queue_keeps_its_order(self, site: Site) -> None:
        job = make_job(site, "echo once\n", overlap="queue")
        ids = [start(site, job) for _ in range(3)]
        shown = [wait_for(site, run_id, "succeeded") for run_id in ids]
        assert [run["number"] for run in shown] == [1, 2, 3]
        for earlier, later in itertools.pairwise(shown):
            assert earlier["finished_at"] <= later["started_at"]


class TestSchedule:
    def test_what_is_due_is_started_by_beat(self, site: Site) -> None:
        job = make_job(site, "echo due\n", schedule={"cron": "0 9 1 1 *", "timezone": "UTC"})
        site.ask("make_due", job)
        [run] = eventually(lambda: site.ask("runs", job), "the scheduled run")
        assert run["trigger"] == "schedule"
        wait_for(site, run["id"], "succeeded")
        assert len(site.ask("runs", job)) == 1


def test_without_a_worker_the_command_does_it_and_leaves_nothing() -> None:
    """design.md, section 6: needs no running server."""
    alone = new_site({})
    try:
        mark = new_mark()
        text = {"name": "alone", "script": f"(setsid sleep {mark} &)\necho alone\n"}
        assert alone.run("job", "create", "-", input=json.dumps(text)).returncode == 0
        shown = alone.json("job", "run", "alone", "--wait")
        assert shown["status"] == "succeeded", shown
        assert processes_with(mark) == []
    finally:
        alone.close()


def test_a_lost_hint_delays_and_loses_nothing(site: Site) -> None:
    """H10, H11: the row is what counts."""
    job = make_job(site, "echo late\n")
    run_id = site.ask("start_unheard", job)
    wait_for(site, run_id, "succeeded")


def test_without_redis_a_run_is_queued_quickly_and_executed_later(site: Site) -> None:
    """H10, H11"""
    if site.redis is None:
        return  # the embedded broker is a directory and cannot be away
    job = make_job(site, "echo late\n")
    site.redis.stop()
    try:
        started = time.monotonic()
        run_id = start(site, job)
        assert time.monotonic() - started < 10
    finally:
        site.redis.start()
    wait_for(site, run_id, "succeeded")
    assert len(of_kind(site, run_id, "script.exit")) == 1


def test_the_environment_of_a_script_is_clean(site: Site) -> None:
    shown = run_now(site, make_job(site, "env | cut -d= -f1 | sort | tr '\\n' ' '\n"))
    names = "".join(p["text"] for p in of_kind(site, shown["id"], "output")).split()
    assert not [name for name in names if name.startswith("UMPTEENTH")]
    assert "DJANGO_SETTINGS_MODULE" not in names
    assert {"UMP_SOCKET", "UMP_TOKEN", "UMP_JOB", "HOME", "PATH"} <= set(names)
