"""A run from its claim to its end. The sandbox is a plain process here, the servers are fakes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import default_storage
from django.db import DatabaseError
from django.utils import timezone

from jobs import collect, lifecycle, runner, tasks
from jobs.models import Artifact, Job, JobSecret, Run, StateEntry
from jobs.sandbox import base as sandbox
from secrets_vault.services import set_secret
from tests.fakes.executions import UMP, attach, execute, start, wait_for, without_a_machine
from tests.fakes.runs import (
    FakeServers,
    kinds,
    make_job,
    make_run,
    output_of,
    payloads_of,
)
from umpteenth.core.config import get_options

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    return without_a_machine(monkeypatch)


class TestOutcome:
    def test_a_script_that_ends_well_succeeds(self) -> None:
        run = execute(make_job(script="echo out; echo err >&2\n"))
        assert (run.status, run.error) == ("succeeded", "")
        assert (output_of(run), output_of(run, "stderr")) == ("out\n", "err\n")
        assert payloads_of(run, "script.exit") == [{"code": 0, "timed_out": False}]
        statuses = [payload["status"] for payload in payloads_of(run, "run.status")]
        assert statuses == ["queued", "provisioning", "running", "succeeded"]
        assert kinds(run)[-1] == "run.status"
        assert run.worker == "test-worker"

    def test_the_timeline_tells_what_its_sandbox_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        facts = sandbox.Facts("engine", "runsc", "tools:1", ("Processors are not limited.",))
        start = sandbox.start

        async def told(*args: Any, **options: Any) -> sandbox.SandboxProcess:
            process = await start(*args, **options)
            process.facts = facts
            return process

        monkeypatch.setattr(sandbox, "start", told)
        run = execute(make_job(script="true\n", network="none", memory=64, cpus=0.5))
        assert kinds(run) == [
            *("run.status", "run.status", "sandbox.create", "run.status"),
            *("script.exit", "sandbox.destroy", "run.status"),
        ]
        assert payloads_of(run, "sandbox.create") == [
            {
                "adapter": "engine",
                "isolation": "runsc",
                "image": "tools:1",
                "user": "agent",
                "network": "none",
                "cpus": 0.5,
                "memory": 64,
                "disk": 2048,
                "unenforced": ["Processors are not limited."],
            }
        ]

    def test_an_exit_code_is_a_failure(self) -> None:
        run = execute(make_job(script="exit 3\n"))
        assert (run.status, run.error) == ("failed", "the script ended with exit code 3")

    def test_ump_fail_turns_success_into_failure(self) -> None:
        run = execute(make_job(script=UMP + 'ump fail "not today"; exit 0\n'))
        assert (run.status, run.error) == ("failed", "not today")

    def test_the_time_limit_ends_it_with_everything_in_it(self, tmp_path: Path) -> None:
        script = f"trap '' TERM; (sleep 60; touch {tmp_path}/late) & echo begun; sleep 60\n"
        run = execute(make_job(script=script, timeout=1))
        assert (run.status, run.error) == (
            "timed_out",
            "the run reached its time limit of 1 second",
        )
        assert output_of(run) == "begun\n"
        assert payloads_of(run, "script.exit") == [{"code": None, "timed_out": True}]
        assert not (tmp_path / "late").exists()

    def test_a_machine_without_sandbox_says_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sandbox, "problem", lambda: "Install bubblewrap: apt install …")
        run = execute(make_job())
        assert (run.status, run.error) == ("failed", "Install bubblewrap: apt install …")
        assert payloads_of(run, "error") == [{"message": "Install bubblewrap: apt install …"}]

    def test_a_sandbox_that_does_not_start_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def refuse(*_args: Any, **_options: Any) -> None:
            raise sandbox.SandboxError("The sandbox could not be started: no space")

        monkeypatch.setattr(sandbox, "start", refuse)
        run = execute(make_job())
        assert run.error == "The sandbox could not be started: no space"

    def test_a_sandbox_that_broke_is_not_the_scripts_failure(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """H04: the launcher was killed, for want of memory perhaps."""
        fault = "the sandbox launcher ended"
        monkeypatch.setattr(sandbox.SandboxProcess, "fault", fault)
        run = execute(make_job(script="exit 137\n"))
        assert (run.status, run.error) == ("failed", f"interrupted: {fault}")

    def test_what_nobody_foresaw_still_ends_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def burst(*_args: Any, **_options: Any) -> None:
            raise ZeroDivisionError("by zero")

        monkeypatch.setattr(sandbox, "start", burst)
        run = execute(make_job())
        assert (run.status, run.error) == ("failed", "The run broke: ZeroDivisionError: by zero")

    def test_a_claimed_run_is_not_executed_again(self) -> None:
        run = execute(make_job())
        assert not runner.execute(run.pk, "another-worker")

    def test_a_short_fault_of_the_database_does_not_lose_the_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        finish, faults = lifecycle.finish, [DatabaseError("locked")]

        def faulty(*args: Any) -> bool:
            if faults:
                raise faults.pop()
            return finish(*args)

        monkeypatch.setattr(lifecycle, "finish", faulty)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        assert execute(make_job()).status == "succeeded"


class TestScript:
    def test_input_workspace_and_results(self) -> None:
        script = (
            'test "$(pwd)" != / && touch here && python3 "$UMP" output set n 3\n'
            'grep -q Berlin "$UMP_INPUT" && python3 "$UMP" summary "Well **done**"\n'
            'mkdir "$UMP_OUTPUTS/deep" && printf data > "$UMP_OUTPUTS/deep/a.txt"\n'
        )
        run = execute(make_job(script=script), input={"city": "Berlin"})
        assert (run.status, run.outputs, run.summary) == ("succeeded", {"n": 3}, "Well **done**")
        artifact = Artifact.objects.get(run=run)
        assert (artifact.name, artifact.size, artifact.media_type) == (
            "deep/a.txt",
            4,
            "text/plain",
        )
        assert payloads_of(run, "artifact") == [{"name": "deep/a.txt", "size": 4}]
        with default_storage.open(artifact.path) as file:
            assert file.read() == b"data"
        assert list((get_options().data_dir / "runs").iterdir()) == []

    def test_results_of_a_failed_run_are_kept(self) -> None:
        script = 'python3 "$UMP" output set n 3; echo x > "$UMP_OUTPUTS/x"; exit 1\n'
        run = execute(make_job(script=script))
        assert (run.status, run.outputs) == ("failed", {"n": 3})
        assert Artifact.objects.filter(run=run).count() == 1

    @pytest.mark.parametrize(
        ("script", "said"),
        [
            ("#!/usr/bin/env python3\nprint('py')\n", "py\n"),
            ("#!/usr/bin/python\nprint('py')\n", "py\n"),
            ("#!/usr/bin/env -S node --no-warnings\nconsole.log('js')\n", "js\n"),
            ("echo plain\n", "plain\n"),
        ],
    )
    def test_the_first_line_names_the_program(self, script: str, said: str) -> None:
        job = make_job()
        Job.objects.update(script=script)
        assert output_of(execute(job)) == said

    def test_what_was_printed_before_a_call_stands_before_it(self) -> None:
        script = UMP + "for i in 1 2 3; do echo $i; ump step $i; done\n"
        told = kinds(execute(make_job(script=script)))
        assert [kind for kind in told if kind in ("output", "step")] == ["output", "step"] * 3

    def test_ten_megabytes_of_output_do_no_harm(self) -> None:
        script = "head -c 10000000 /dev/zero | tr '\\0' x; exit 3\n"
        run = execute(make_job(script=script, network="none"))
        assert run.error == "the script ended with exit code 3"
        kept = len(output_of(run))
        assert 8_000_000 < kept < 9_000_000
        [note] = payloads_of(run, "log")
        assert f"{10_000_000 - kept:,} bytes of stdout are left out here" == note["message"]

    def test_bad_bytes_in_output_do_no_harm(self) -> None:
        """H16"""
        run = execute(make_job(script=r"printf 'a\0b\377\n'" + "\n"))
        assert (run.status, output_of(run)) == ("succeeded", "ab\ufffd\n")

    def test_links_in_the_outputs_are_not_followed(self) -> None:
        script = 'cd "$UMP_OUTPUTS"; ln -s /etc/passwd p; ln -s /etc d; mkfifo f\n'
        run = execute(make_job(script=script))
        assert run.status == "succeeded"
        assert not Artifact.objects.exists()
        said = [payload["message"] for payload in payloads_of(run, "error")]
        assert [message.split(" in ")[0] for message in said] == [
            f"The file '{name}'" for name in "dfp"
        ]

    def test_logs_end_with_the_run(self) -> None:
        """A place to write to that is neither the script's workspace nor kept."""
        run = execute(make_job(script='echo said > "$UMP_LOGS/1.txt"; cat "$UMP_LOGS/1.txt"\n'))
        assert (run.status, output_of(run)) == ("succeeded", "said\n")
        assert not Artifact.objects.exists()
        assert list((get_options().data_dir / "runs").iterdir()) == []

    def test_outputs_above_the_limit_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert collect.MAX_TOTAL == 50 * 1024 * 1024
        monkeypatch.setattr(collect, "MAX_TOTAL", 10)
        script = 'cd "$UMP_OUTPUTS"; printf 12345678 > a; printf 12345678 > b; printf 12 > c\n'
        run = execute(make_job(script=script))
        assert list(Artifact.objects.values_list("name", flat=True)) == ["a", "c"]
        assert "'b' in /ump/outputs was not kept" in payloads_of(run, "error")[0]["message"]

    def test_a_full_disk_does_not_cost_the_run_its_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_args: Any) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(runner, "collect", full)
        run = execute(make_job())
        assert run.status == "succeeded"
        assert payloads_of(run, "error") == [
            {"message": "The files in /ump/outputs could not be kept: OSError"}
        ]

    def test_a_disk_without_room_for_the_run_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_args: Any, **_kwargs: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("jobs.runner.Workplace.make", full)
        run = execute(make_job())
        assert run.status == "failed"
        assert run.error == (
            "The run's directory could not be made on the worker: No space left on device."
        )

    def test_a_network_that_was_switched_off_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobs.plan.unrestricted_allowed", lambda: False)
        run = execute(make_job(network="unrestricted"))
        assert (run.status, payloads_of(run, "script.exit")) == ("failed", [])
        assert "unrestricted network is switched off" in run.error


class TestSecrets:
    def map_secret(self, job: Job, value: str, name: str = "TOKEN") -> None:
        secret = set_secret(actor=None, name=name, value=value).secret
        JobSecret.objects.create(job=job, variable=name, secret=secret)

    def test_a_secret_is_in_the_script_and_nowhere_else(self) -> None:
        value = "s3cr3t-horse-battery"
        job = make_job(
            script=UMP + 'ump step "$TOKEN"; ump output set t "$TOKEN"; ump summary "is $TOKEN"\n'
            'ump state set "k" "$TOKEN"; printf "%s" "$TOKEN" > "$UMP_OUTPUTS/$TOKEN.txt"\n'
            'echo "plain $TOKEN"; printf %s "$TOKEN" | base64; test ${#TOKEN} = 20\n'
            'env | sort; ump fail "because $TOKEN"\n'
        )
        self.map_secret(job, value)
        run = execute(job)
        assert run.error == "because [secret TOKEN]"
        assert run.outputs == {"t": "[secret TOKEN]"}
        assert "plain [secret TOKEN]" in output_of(run)
        assert "UMP_TOKEN=[secret UMP_TOKEN]" in output_of(run)
        artifact = Artifact.objects.get()
        with default_storage.open(artifact.path) as file:
            stored = file.read().decode()
        everything = [stored, artifact.name, run.error, run.summary, str(run.outputs)]
        everything += [str(payload) for payload in run.events.values_list("payload", flat=True)]
        everything += [str(entry.value) for entry in StateEntry.objects.all()]
        for text in everything:
            assert value not in text
            assert "czNjcjN0LWhvcnNl" not in text

    def test_a_secret_that_is_not_for_this_job_fails_the_run_by_name(self) -> None:
        job = make_job()
        self.map_secret(job, "s3cr3t-horse-battery")
        job.secrets.get().secret.__class__.objects.update(allowed_jobs=["another"])
        run = execute(job)
        assert run.status == "failed"
        assert "TOKEN" in run.error


class TestEndedFromOutside:
    def test_cancel_ends_it_and_everything_in_it(self) -> None:
        run = make_run(make_job(script="trap '' TERM; sleep 60 & sleep 60\n"))
        thread = start(run)
        wait_for(lambda: Run.objects.filter(pk=run.pk, status="running").exists())
        lifecycle.request_cancel(run.pk)
        thread.join(10)
        run.refresh_from_db()
        assert (run.status, run.error) == ("cancelled", "")
        assert not thread.is_alive()

    def test_a_worker_that_stops_ends_its_runs(self) -> None:
        run = make_run(make_job(script="sleep 60\n"))
        thread = start(run)
        wait_for(lambda: Run.objects.filter(pk=run.pk, status="running").exists())
        assert runner.interrupt_all() == 1
        assert runner.wait_until_idle(10)
        thread.join(10)
        run.refresh_from_db()
        assert (run.status, run.error) == ("failed", "interrupted: the worker was stopped")

    def test_a_run_that_was_reaped_stops_working_and_writes_nothing(self) -> None:
        """H08: the worker was frozen; the sweep has ended its run meanwhile."""
        run = make_run(make_job(script="echo begun; sleep 60\n"))
        thread = start(run)
        wait_for(lambda: "output" in kinds(run))
        Run.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=2))
        assert lifecycle.reap(timezone.now()) == 1
        events = kinds(run)
        thread.join(10)
        assert not thread.is_alive()
        assert kinds(run) == events
        run.refresh_from_db()
        assert run.error == "interrupted: the worker stopped responding"

    def test_the_heart_beats_while_the_script_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lifecycle, "HEARTBEAT_INTERVAL", 0.1)
        run = make_run(make_job(script="sleep 60\n"))
        thread = start(run)
        wait_for(lambda: Run.objects.filter(pk=run.pk, status="running").exists())
        run.refresh_from_db()
        first = run.heartbeat_at
        assert first is not None
        wait_for(lambda: Run.objects.filter(pk=run.pk, heartbeat_at__gt=first).exists())
        runner.interrupt_all()
        thread.join(10)


class TestSlots:
    @pytest.fixture(autouse=True)
    def _one_slot(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        slots = threading.BoundedSemaphore(1)
        monkeypatch.setattr(tasks, "_slots", lambda: slots)
        self.slots = slots
        yield
        tasks._stopping.clear()

    def test_a_worker_takes_what_waits_after_a_run(self) -> None:
        runs = [make_run(make_job(name)) for name in ("a", "b", "c")]
        assert tasks.work_off(runs[1].pk) == 3
        assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}

    def test_without_a_slot_the_run_stays_queued(self) -> None:
        run = make_run(make_job())
        with self.slots:
            tasks.execute_run(str(run.pk))
        run.refresh_from_db()
        assert run.status == "queued"
        tasks.execute_run(str(run.pk))
        run.refresh_from_db()
        assert run.status == "succeeded"

    def test_a_queue_is_worked_off_in_order(self) -> None:
        job = make_job(overlap=Job.Overlap.QUEUE)
        runs = [make_run(job) for _ in range(3)]
        tasks.work_off(runs[2].pk)
        ended = list(Run.objects.order_by("finished_at").values_list("number", flat=True))
        assert ended == [1, 2, 3]

    def test_a_worker_that_stops_takes_nothing_more(self) -> None:
        make_run(make_job())
        tasks.stop_taking()
        assert tasks.work_off() == 0


def test_a_loop_per_run_leaves_no_task_behind(recwarn: pytest.WarningsRecorder) -> None:
    """F15"""
    job = make_job(script=UMP + "ump mcp tools >/dev/null\n", overlap="parallel")
    attach(job)
    for _ in range(3):
        assert execute(job).status == "succeeded"
    assert not [found for found in recwarn.list if "never" in str(found.message)]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
