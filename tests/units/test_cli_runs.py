"""`umpteenth run`: the shapes that scripts rely on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from jobs import timeline, triggers
from jobs.models import Run
from tests.fakes.runs import make_job, make_run, old_run
from umpteenth.cli.following import MAX_LINE, describe
from umpteenth.cli.runs import command

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)


def ump(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def test_a_run_is_shown_whole() -> None:
    run = old_run(
        make_job(),
        Run.Status.FAILED,
        queued_at=NOW,
        started_at=NOW + timedelta(seconds=1),
        finished_at=NOW + timedelta(seconds=3.5),
        error="it broke",
        outputs={"n": 1},
    )
    result = ump("show", str(run.pk), "--json")
    assert json.loads(result.stdout) == {
        "id": str(run.pk),
        "job": "digest",
        "number": 900,
        "status": "failed",
        "trigger": "manual",
        "mode": "script",
        "error": "it broke",
        "summary": "",
        "outputs": {"n": 1},
        "queued_at": "2026-03-01T12:00:00.000+00:00",
        "started_at": "2026-03-01T12:00:01.000+00:00",
        "finished_at": "2026-03-01T12:00:03.500+00:00",
        "duration_ms": 2500.0,
        "side_effects": [],
        "side_effects_left_out": 0,
    }
    assert "error: it broke" in ump("show", str(run.pk)).stdout


def test_a_run_is_shown_with_its_calls_with_side_effects() -> None:
    """P76"""
    call = {"server": "shop", "tool": "order", "arguments": '{"n": 1}', "outcome": "unknown"}
    call["at"] = "2026-03-01T12:00:00.000+00:00"
    run = old_run(make_job(), Run.Status.FAILED, side_effects={"calls": [call], "more": 3})
    shown = json.loads(ump("show", str(run.pk), "--json").stdout)
    assert (shown["side_effects"], shown["side_effects_left_out"]) == ([call], 3)
    lines = ump("show", str(run.pk)).stdout.splitlines()
    assert 'side effect: shop order {"n": 1} unknown' in lines
    assert "side_effects_left_out: 3" in lines


def test_events_are_one_object_a_line() -> None:
    run = make_run(make_job())
    timeline.append(
        run.pk, [timeline.Event("tool.call", {"text": "a\nb"}, span="s", ms=1.5, at=NOW)]
    )
    lines = ump("events", str(run.pk), "--json").stdout.splitlines()
    assert json.loads(lines[1]) == {
        "seq": 2,
        "at": "2026-03-01T12:00:00.000+00:00",
        "kind": "tool.call",
        "span": "s",
        "parent_span": "",
        "ms": 1.5,
        "payload": {"text": "a\nb"},
    }
    assert len(ump("events", str(run.pk)).stdout.splitlines()) == 2


def test_runs_are_listed_newest_first_and_by_job() -> None:
    first = old_run(make_job("a"), Run.Status.FAILED, queued_at=NOW, error="two\nlines")
    second = old_run(make_job("b"), Run.Status.SUCCEEDED, queued_at=NOW + timedelta(hours=1))
    listed = json.loads(ump("list", "--json").stdout)
    assert [run["id"] for run in listed] == [str(second.pk), str(first.pk)]
    assert [run["id"] for run in json.loads(ump("list", "--json", "--job", "a").stdout)] == [
        str(first.pk)
    ]
    assert len(json.loads(ump("list", "--json", "--limit", "1").stdout)) == 1
    assert len(ump("list").stdout.splitlines()) == 3
    assert (
        ump("list", "--job", "nope").stderr
        == "There is no job named nope. See: umpteenth job list\n"
    )


class TestCancel:
    def test_a_queued_run_is_cancelled(self) -> None:
        run = make_run(make_job())
        assert ump("cancel", str(run.pk)).stdout == "Run digest #1 is cancelled.\n"

    def test_a_live_run_is_being_cancelled(self) -> None:
        from django.utils import timezone

        run = old_run(make_job(), Run.Status.RUNNING, heartbeat_at=timezone.now())
        assert ump("cancel", str(run.pk)).stdout == "Run digest #900 is being cancelled.\n"

    def test_a_finished_run_is_not(self) -> None:
        run = old_run(make_job(), Run.Status.SUCCEEDED)
        result = ump("cancel", str(run.pk))
        assert result.exit_code == 1
        assert result.stderr == "Run digest #900 has ended already (succeeded).\n"


def test_a_retry_starts_the_same_again() -> None:
    run = old_run(make_job(), Run.Status.FAILED, input=[1])
    shown = json.loads(ump("retry", str(run.pk), "--json").stdout)
    again = Run.objects.get(pk=shown["id"])
    assert (again.retry_of, again.input, shown["trigger"]) == (run, [1], "retry")
    assert ump("retry", str(again.pk)).stderr.startswith("This run has not ended yet")


@pytest.mark.parametrize("words", ["digest#900", "digest #900", "{id}", "{upper}", "{short}"])
def test_a_run_is_named_by_its_job_and_number_or_by_its_id(words: str) -> None:
    run = old_run(make_job(), Run.Status.FAILED, queued_at=NOW)
    old_run(make_job("other#digest"), Run.Status.FAILED, queued_at=NOW)
    short = str(run.pk)[:34]
    named = words.format(id=run.pk, upper=str(run.pk).upper(), short=short)
    assert json.loads(ump("show", named, "--json").stdout)["id"] == str(run.pk)


def test_a_job_may_have_the_sign_in_its_name() -> None:
    run = old_run(make_job("c#"), Run.Status.FAILED, queued_at=NOW)
    assert json.loads(ump("show", "c##900", "--json").stdout)["id"] == str(run.pk)


def test_a_beginning_of_several_ids_is_refused() -> None:
    job = make_job()
    for last in "12":
        Run.objects.create(
            pk=UUID(f"01a22ca1-3141-75e4-8486-00000000000{last}"),
            job=job,
            number=int(last),
            trigger="manual",
            trust="creator",
            queued_at=NOW,
        )
    result = ump("cancel", "01a22ca1-31")
    assert result.stderr == (
        "Several runs have an id that begins with 01a22ca1-31; write more of it.\n"
    )
    assert ump("show", "01a22ca").stderr == (
        "The id 01a22ca is too short; write 8 or more characters of it.\n"
    )
    assert set(Run.objects.values_list("status", flat=True)) == {"queued"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("digest#7", "There is no run digest#7. See: umpteenth run list"),
        ("digest#x", "There is no run digest#x. See: umpteenth run list"),
        ("digest#" + "9" * 30, f"There is no run digest#{'9' * 30}. See: umpteenth run list"),
        ("nope#7", "There is no job named nope. See: umpteenth job list"),
    ],
)
def test_an_unknown_number_is_one_sentence(words: str, sentence: str) -> None:
    make_job()
    result = ump("show", words)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", sentence + "\n")


@pytest.mark.parametrize("verb", ["show", "events", "cancel", "retry"])
@pytest.mark.parametrize("run_id", ["00000000-0000-4000-8000-000000000000", "nope", "1" * 500])
def test_an_unknown_run_fails(verb: str, run_id: str) -> None:
    result = ump(verb, run_id)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("There is no run ")
    assert len(result.stderr) < 130


@pytest.mark.parametrize(
    ("kind", "payload", "line"),
    [
        ("run.status", {"status": "failed", "error": "x"}, "failed: x"),
        ("server.connected", {"server": "s", "tools": 3}, "s: 3 tools"),
        (
            "server.connected",
            {"server": "s", "tools": 3, "after": "It ended."},
            "s: 3 tools, connected again after: It ended.",
        ),
        ("server.unavailable", {"message": "M", "reason": "R"}, "M: R"),
        (
            "server.unavailable",
            {"message": "M", "reason": "R" * 300 + ".", "hint": "Do this."},
            "M: " + "R" * 300 + ". Do this.",
        ),
        ("tool.call", {"server": "s", "tool": "t", "arguments": {"ä": True}}, 's t {"ä": true}'),
        ("outputs.set", {"name": "n", "value": [None]}, "n = [null]"),
        (
            "broker.call",
            {"command": "state_set", "key": "k", "value": 1, "ok": True},
            "state set k 1",
        ),
        (
            "broker.call",
            {"command": "state_get", "key": "k", "ok": False, "error": "disk full"},
            "state get k: failed: disk full",
        ),
        (
            "broker.call",
            {"command": "state_get", "key": "k", "found": False, "ok": True},
            "state get k: no such key",
        ),
        ("tool.result", {"server": "s", "tool": "t", "ok": True, "text": "a\nb"}, "s t: a ⏎ b"),
        ("tool.result", {"server": "s", "tool": "t", "error": "no"}, "s t: failed: no"),
        ("tool.progress", {"tool": "t", "progress": 1.0, "total": None}, "t: 1"),
        ("tool.progress", {"tool": "t", "progress": 2.5, "total": 10.0}, "t: 2.5 of 10"),
        ("tool.progress", {"tool": "t", "progress": 1.0, "message": "half"}, "t: half"),
        (
            "network.connected",
            {"host": "packages.example", "port": 443},
            "packages.example port 443",
        ),
        (
            "network.refused",
            {"server": "s", "host": "a.example", "port": 80, "reason": "Not allowed."},
            "s: a.example port 80: Not allowed.",
        ),
        (
            "network.failed",
            {"host": "::7", "port": 80, "reason": "No answer came."},
            "::7 port 80: No answer came.",
        ),
        (
            "sandbox.create",
            {"adapter": "bubblewrap", "user": "agent", "cpus": 1.0, "unenforced": ["No limits."]},
            "bubblewrap, agent, No limits.",
        ),
        ("sandbox.destroy", {}, ""),
        ("script.exit", {"code": 3, "timed_out": False}, "exit 3"),
        ("script.exit", {"code": None, "timed_out": True}, "time limit reached"),
        ("script.exit", {"code": 137, "timed_out": False, "limit": "disk"}, "disk limit reached"),
        ("artifact", {"name": "a", "size": 12345}, "a (12,345 bytes)"),
        ("another", {"x": 1, "y": "z"}, "1, z"),
    ],
)
def test_each_kind_has_its_line(kind: str, payload: dict[str, Any], line: str) -> None:
    assert describe(kind, payload) == line


def test_a_long_line_is_cut() -> None:
    assert len(describe("output", {"text": "x" * 5000})) == MAX_LINE
