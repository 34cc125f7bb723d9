"""What a script's calls of `ump` do and leave on the timeline; the sandbox is a plain process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jobs import runner, triggers
from jobs.handler import RunHandler
from jobs.models import Job, Run, StateEntry
from jobs.sandbox import base as sandbox
from jobs.toolbox import LIMIT_NOTE, CallMeter
from tests.fakes.runs import (
    ListRecorder,
    make_job,
    make_run,
    output_of,
    payloads_of,
    start_plainly,
)

pytestmark = pytest.mark.django_db(transaction=True)
UMP = 'ump() { python3 "$UMP" "$@"; }\n'


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)
    monkeypatch.setattr(sandbox, "problem", lambda: "")
    monkeypatch.setattr(sandbox, "start", start_plainly)
    monkeypatch.setattr(runner, "LOOK_INTERVAL", 0.05)


def execute(job: Job) -> Run:
    run = make_run(job)
    assert runner.execute(run.pk, "test-worker")
    run.refresh_from_db()
    return run


def test_state_is_kept_from_run_to_run() -> None:
    script = UMP + "ump state get n || ump state set n '{\"a\": [1]}'; ump state list\n"
    job = make_job(script=script)
    first, second = execute(job), execute(job)
    assert (output_of(first), output_of(second)) == ("n\n", '{"a": [1]}\nn\n')
    assert "has no key 'n'" in output_of(first, "stderr")
    entry = StateEntry.objects.get()
    assert (entry.value, entry.run, entry.size) == ({"a": [1]}, first, 9)
    missing, written = payloads_of(first, "broker.call")[:2]
    assert missing == {"command": "state_get", "key": "n", "found": False, "ok": True}
    assert (written["command"], written["value"], written["ok"]) == (
        "state_set",
        {"a": [1]},
        True,
    )


def test_every_call_of_ump_is_recorded_until_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P75: a script that repeats itself does not fill the timeline; what it set last counts."""
    monkeypatch.setattr("jobs.toolbox.MAX_RECORDED", 2)
    script = UMP + "ump state list; ump output set n 1; ump state list\n"
    script += "for n in 2 3 4; do ump output set n $n; ump state set k $n; done\n"
    run = execute(make_job(script=script + "ump summary done\n"))
    assert [payload["value"] for payload in payloads_of(run, "outputs.set")] == [1]
    # Of all that no server did, only the first state write is worth a place then.
    assert [(call["command"], call.get("value")) for call in payloads_of(run, "broker.call")] == [
        ("state_list", None),
        ("state_set", 2),
    ]
    assert (run.outputs, run.summary) == ({"n": 4}, "done")
    assert StateEntry.objects.get().value == 4
    [note, end] = [payload["message"] for payload in payloads_of(run, "log")]
    assert note == LIMIT_NOTE
    assert end == "7 further calls were made and not recorded"


async def test_a_call_that_nobody_waits_for_any_more_is_told_in_words() -> None:
    async def hang(_work: Callable[[], Any]) -> Any:
        await asyncio.Event().wait()

    recorder = ListRecorder()
    meter = CallMeter(recorder)  # type: ignore[arg-type]
    handler = RunHandler(Run(), None, recorder, meter, hang)  # type: ignore[arg-type]
    call = asyncio.create_task(handler.state_list())
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    [noted] = recorder.of("broker.call")
    assert noted["error"] == "the script or its run ended before the answer came"


def test_state_comes_back_as_it_was_kept() -> None:
    value = '"a\\r\\nb\\u001b[1m\\u202e"'
    run = execute(make_job(script=UMP + f"ump state set k '{value}'; ump state get k\n"))
    assert StateEntry.objects.get().value == "a\r\nb\x1b[1m\u202e"
    assert run.status == "succeeded"
