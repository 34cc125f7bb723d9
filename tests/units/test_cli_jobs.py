"""`umpteenth job`: one sentence on standard error where something is wrong."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import presence, runner, triggers
from jobs.models import Attachment, Job, Run
from jobs.sandbox import base as sandbox
from servers.models import Server, Tool
from tests.fakes.runs import make_job, old_run, start_plainly
from tests.fakes.server_rows import stdio_server
from umpteenth.cli import following
from umpteenth.cli.jobs import command

pytestmark = pytest.mark.django_db(transaction=True)
FILE = "name: digest\nscript: |\n  echo hi\n"


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)
    monkeypatch.setattr(sandbox, "problem", lambda: "")
    monkeypatch.setattr(sandbox, "start", start_plainly)
    monkeypatch.setattr(following, "POLL", 0.01)


def ump(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(command, list(words), input=input)


def as_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class TestCreate:
    def test_a_file_makes_a_job(self, tmp_path: Path) -> None:
        path = tmp_path / "job.yml"
        path.write_text(FILE)
        assert ump("create", str(path)).stdout == "Job digest created.\n"
        assert Job.objects.get().script == "echo hi\n"

    def test_standard_input_makes_one_too(self) -> None:
        shown = as_json(ump("create", "-", "--json", input=FILE))
        assert (shown["name"], shown["network"], shown["schedule"]) == (
            "digest",
            "internet",
            None,
        )

    def test_an_existing_name_needs_replace(self) -> None:
        ump("create", "-", input=FILE)
        again = ump("create", "-", input=FILE)
        assert again.exit_code == 1
        assert again.stderr.startswith("name: A job named digest exists already")
        replaced = ump("create", "-", "--replace", input=FILE + "timeout: 7\n")
        assert replaced.stdout == "Job digest changed.\n"
        assert Job.objects.get().timeout == 7

    def test_a_tool_that_the_last_test_did_not_list_is_told(self) -> None:
        server = stdio_server()
        text = FILE + "servers: {everything: [echo, ecko]}\n"
        assert ump("create", "-", input=text).stderr == ""
        Server.objects.update(tested_at=timezone.now())
        Tool.objects.create(server=server, position=0, name="echo")
        told = ump("create", "-", "--replace", input=text)
        assert (told.exit_code, told.stdout) == (0, "Job digest changed.\n")
        assert told.stderr.startswith("servers: The last test of everything listed no tool ecko;")
        assert told.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (FILE + "servers: {nope: all}\n", "servers: There is no server named nope."),
            (FILE + "nme: x\n", "nme: unknown key"),
            (FILE + "schedule: {cron: '99 * * * *'}\n", "cron: The minute field '99'"),
        ],
    )
    def test_a_fault_is_one_sentence(self, text: str, said: str) -> None:
        result = ump("create", "-", input=text)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(said)
        assert result.stderr.count("\n") == 1

    def test_a_file_that_is_no_text_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "job.yml"
        path.write_bytes(b"\xff\xfe\x00")
        assert "not text in UTF-8" in ump("create", str(path)).stderr

    def test_an_endless_file_is_too_large(self) -> None:
        assert ump("create", "/dev/zero").stderr == "The job file is larger than 2 MiB.\n"

    def test_a_missing_file_is_wrong_usage(self) -> None:
        assert ump("create", "/nowhere.yml").exit_code == 2


class TestListShowRemove:
    def test_jobs_are_listed(self) -> None:
        make_job("b", cron="0 9 * * *")
        make_job("a", enabled=False)
        assert [job["name"] for job in as_json(ump("list", "--json"))] == ["a", "b"]
        lines = ump("list").stdout.splitlines()
        assert lines[0].split() == ["NAME", "SCHEDULE", "NEXT", "RUN", "STATE"]
        assert lines[1].split() == ["a", "-", "paused"]

    def test_a_longer_list_costs_no_more_queries(self) -> None:
        def queries() -> int:
            with CaptureQueriesContext(connection) as captured:
                ump("list", "--json")
            return len(captured)

        server = stdio_server()
        Attachment.objects.create(job=make_job("a"), server=server)
        ump("list")  # what is read once in a process
        few = queries()
        for name in "bcd":
            Attachment.objects.create(job=make_job(name), server=server, allowed_tools=["echo"])
        assert queries() == few
        assert as_json(ump("list", "--json"))[1]["servers"] == {"everything": ["echo"]}

    def test_one_is_shown_as_a_job_file_would_be(self) -> None:
        make_job(timeout=7, script="echo 'ä'\n")
        assert as_json(ump("show", "digest", "--json"))["timeout"] == 7
        shown = ump("show", "digest").stdout
        assert "timeout: 7" in shown
        assert "script: |\n  #!/usr/bin/env bash\n  echo 'ä'\n" in shown

    def test_one_is_removed(self) -> None:
        """Without a terminal nobody can be asked: design.md, section 6, has no option for it."""
        make_job()
        assert ump("remove", "digest").stdout == "Job digest removed.\n"
        assert not Job.objects.exists()

    def test_on_a_terminal_it_asks_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_job()
        monkeypatch.setattr("umpteenth.cli.jobs.is_terminal", lambda: True)
        assert ump("remove", "digest", input="n\n").exit_code == 1
        assert Job.objects.exists()
        assert ump("remove", "digest", input="y\n").exit_code == 0
        assert not Job.objects.exists()

    def test_a_job_that_runs_is_not_removed(self) -> None:
        old_run(make_job(), Run.Status.RUNNING)
        result = ump("remove", "digest", "--yes")
        assert (result.exit_code, result.stderr) == (
            1,
            "Run #900 of this job is in progress; cancel it first.\n",
        )

    @pytest.mark.parametrize("verb", ["show", "remove", "run"])
    def test_an_unknown_name_fails(self, verb: str) -> None:
        result = ump(verb, "nope")
        assert (result.exit_code, result.stderr) == (
            1,
            "There is no job named nope. See: umpteenth job list\n",
        )


class TestRun:
    def test_it_says_that_a_run_waits_while_no_worker_lives(self) -> None:
        make_job()
        assert "--wait runs it here" in ump("run", "digest").stderr
        presence.report(timezone.now(), slots=1, problem="")
        assert "--wait" not in ump("run", "digest").stderr

    def test_it_queues_a_run_and_says_which(self) -> None:
        make_job()
        shown = as_json(ump("run", "digest", "--json", "--input", '{"a": 1}', "--disable-mcp"))
        run = Run.objects.get()
        assert shown["id"] == str(run.pk)
        assert shown["status"] == "queued"
        assert (run.input, run.disable_mcp, run.trust) == ({"a": 1}, True, "creator")

    def test_it_executes_what_no_worker_takes_and_prints_the_timeline(self) -> None:
        make_job(script="echo hello; python3 $UMP output set n 3\n")
        result = ump("run", "digest", "--wait")
        assert result.exit_code == 0
        assert "hello" in result.stdout
        assert "n = 3" in result.stdout
        assert "digest #1 succeeded" in result.stdout
        offsets = [float(line.split()[0]) for line in result.stdout.splitlines()[:-2]]
        assert offsets == sorted(offsets)

    def test_with_json_it_prints_one_document(self) -> None:
        make_job(script="echo hello\n")
        shown = as_json(ump("run", "digest", "--wait", "--json"))
        assert set(shown) == {
            "id",
            "job",
            "number",
            "status",
            "trigger",
            "mode",
            "error",
            "summary",
            "outputs",
            "queued_at",
            "started_at",
            "finished_at",
            "duration_ms",
        }
        assert (shown["status"], shown["trigger"], shown["mode"]) == (
            "succeeded",
            "command",
            "script",
        )

    def test_a_run_that_fails_exits_1(self) -> None:
        make_job(script="exit 3\n")
        result = ump("run", "digest", "--wait")
        assert result.exit_code == 1
        assert "digest #1 failed: the script ended with exit code 3" in result.stdout

    def test_a_live_worker_gets_three_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from umpteenth.core.clock import database_now

        assert following.PATIENCE == 3.0
        presence.report(database_now(), slots=1, problem="")
        make_job()
        run = triggers.start_run(job=Job.objects.get(), trigger="manual", trust="creator")
        claimed: list[float] = []
        monkeypatch.setattr(following._Helper, "start", lambda self: claimed.append(1.0))

        def look(_seconds: float) -> None:
            if claimed:
                Run.objects.update(status="succeeded")

        monkeypatch.setattr("umpteenth.cli.following.time.sleep", look)
        assert following.follow(run.pk, quiet=True, patience=0.2).status == "succeeded"

    def test_a_skipped_run_is_told(self) -> None:
        old_run(make_job(), Run.Status.RUNNING)
        result = ump("run", "digest", "--wait")
        assert result.exit_code == 1
        assert "digest #1 skipped: Run #900 has not ended\n" in result.stdout
        assert result.stdout.lower().count("skipped") == 2  # the event, and how it stands

    def test_it_ends_what_a_killed_command_left_behind(self) -> None:
        """Without a server there is no beat that would."""
        silent = timezone.now() - timedelta(seconds=61)
        left = old_run(make_job(), Run.Status.RUNNING, heartbeat_at=silent)
        assert ump("run", "digest", "--wait").exit_code == 0
        left.refresh_from_db()
        assert left.error == "interrupted: the worker stopped responding"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{", "The input is not JSON: "),
            ("", "The input is not JSON: "),
            ("NaN", "The input is not JSON: NaN is no JSON number.\n"),
            ("[" * 100_000, "The input is nested too deeply.\n"),
            ("[" * 201 + "]" * 201, "The input is nested deeper than 200 levels.\n"),
        ],
    )
    def test_an_input_that_is_no_json_is_refused(self, text: str, said: str) -> None:
        make_job()
        result = ump("run", "digest", "--input", text)
        assert result.exit_code == 1
        assert result.stderr.startswith(said)
        assert not Run.objects.exists()

    def test_the_input_can_come_from_standard_input(self) -> None:
        make_job()
        ump("run", "digest", "--input", "-", input='{"a": 1}')
        assert Run.objects.get().input == {"a": 1}


def test_what_still_runs_here_ends_when_the_command_leaves() -> None:
    make_job(script="sleep 60\n")
    run = triggers.start_run(job=Job.objects.get(), trigger="manual", trust="creator")
    helper = following._Helper(run.pk)
    helper.start()
    while not Run.objects.filter(status="running").exists():
        time.sleep(0.01)
    helper.end()
    assert runner.wait_until_idle(5)
    run.refresh_from_db()
    assert run.error == "interrupted: the worker was stopped"
