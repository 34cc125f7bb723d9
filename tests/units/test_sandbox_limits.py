"""Limits without control groups, what is said of them, and how a run's end tells one."""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs import endings, presence
from jobs.models import Worker
from jobs.sandbox import base, limits
from jobs.sandbox.base import Exit, Limits, SandboxProcess, SandboxSpec
from jobs.sandbox.bubblewrap import command_line
from jobs.sandbox.spawner import make_spawner
from jobs.sandbox.terms import Terms
from tests.fakes.executions import execute, without_a_machine
from tests.fakes.runs import make_job, payloads_of, start_plainly
from umpteenth.cli import doctor
from umpteenth.core.ids import new_id

ALL = frozenset({"memory", "pids", "cpu"})
MIB = 1024**2
LIMITS = Limits(memory=64 * MIB, disk=16 * MIB)


class TestResourceLimits:
    def of(self, controllers: frozenset[str]) -> dict[int, tuple[int, int]]:
        return {which: (soft, hard) for which, soft, hard in self.listed(controllers)}

    def listed(self, controllers: frozenset[str]) -> list[tuple[int, int, int]]:
        return limits.resource_limits(LIMITS, controllers)

    def test_a_single_file_cannot_outgrow_the_disk(self) -> None:
        assert self.of(ALL)[resource.RLIMIT_FSIZE] == (16 * MIB, 16 * MIB)

    def test_memory_is_held_by_process_where_no_group_does(self) -> None:
        assert resource.RLIMIT_DATA not in self.of(ALL)
        assert self.of(ALL - {"memory"})[resource.RLIMIT_DATA] == (64 * MIB, 64 * MIB)
        # Node and WebAssembly reserve more of it than any machine has.
        assert resource.RLIMIT_AS not in self.of(frozenset())

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (1024, (512, 512)),
            (20_000, (4096, 10_000)),
            (1 << 20, (4096, 65_536)),
            (-1, (4096, 65_536)),
        ],
    )
    def test_descriptors_are_half_of_ours(
        self, monkeypatch: pytest.MonkeyPatch, ours: int, theirs: tuple[int, int]
    ) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (ours, 1 << 20))
        assert self.of(ALL)[resource.RLIMIT_NOFILE] == theirs

    def test_nothing_is_raised_above_our_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (5, 7))
        assert set(self.of(frozenset()).values()) == {(2, 2), (7, 7), (0, 0)}
        assert limits.process_limit(LIMITS) == 7


class TestCountingProcesses:
    SPEC = SandboxSpec(party="agent", network=False, limits=Limits(processes=40))

    def tools(self, *, privileged: bool, count_processes: bool) -> list[str]:
        line = command_line(
            ["true"], self.SPEC, privileged=privileged, count_processes=count_processes
        )
        return [word.rpartition("/")[2] for word in line]

    @pytest.mark.parametrize("privileged", [True, False])
    def test_it_is_done_inside_where_no_group_does(self, privileged: bool) -> None:
        """Outside, all processes of the user would count (feasibility, section 15)."""
        words = self.tools(privileged=privileged, count_processes=True)
        at = words.index("prlimit")
        assert words[at : at + 3] == ["prlimit", "--nproc=40", "setsid"]
        assert at > words.index("--")
        assert ("setpriv" in words[:at]) is privileged

    def test_a_group_needs_no_help(self) -> None:
        assert "prlimit" not in self.tools(privileged=True, count_processes=False)


class TestGaps:
    def test_with_all_controllers_there_is_none(self) -> None:
        assert limits.gaps(ALL, privileged=True) == limits.gaps(ALL, privileged=False) == ()

    def test_each_is_one_sentence_with_the_remedy(self) -> None:
        """Issue 5, section 1: where a limit cannot be enforced, that is said."""
        found = limits.gaps((), privileged=True)
        assert [gap.split(":")[0] for gap in found] == [
            "Memory is limited for each process of a sandbox, not for all together",
            "Processes are limited for all sandboxes together, not for each",
            "Processors are not limited",
        ]
        assert all("a cgroup of its own (docs/sandboxes.md)." in gap for gap in found)

    def test_a_plain_users_processes_are_counted_all_the_same(self) -> None:
        """In a user namespace of their own."""
        found = limits.gaps((), privileged=False)
        assert len(found) == 2
        assert all("Delegate=yes in its systemd unit (docs" in gap for gap in found)


class TestWhereTheyAreSaid:
    @pytest.mark.django_db
    def test_a_worker_reports_them(self) -> None:
        now = datetime(2026, 3, 1, tzinfo=UTC)
        presence.report(now, slots=1, problem="", adapter="bubblewrap", gaps=("A gap.",))
        row = Worker.objects.get()
        assert (row.sandbox_adapter, row.sandbox_gaps) == ("bubblewrap", ["A gap."])
        presence.report(now, slots=1, problem="")
        row.refresh_from_db()
        assert row.sandbox_gaps == []

    @pytest.mark.django_db(transaction=True)
    def test_the_reporter_asks_the_adapter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(base, "problem", lambda: "")
        monkeypatch.setattr(base, "gaps", lambda: ("A gap.",))
        reporter = presence.Reporter(1)
        monkeypatch.setattr(reporter._stop, "wait", lambda seconds: True)
        reporter.start()
        reporter._thread.join(10)
        assert Worker.objects.get().sandbox_gaps == ["A gap."]

    @pytest.mark.django_db
    def test_the_page_shows_them(self, administrator_client: Client) -> None:
        now = timezone.now()
        Worker.objects.create(
            name="w", started_at=now, seen_at=now, slots=1, sandbox_gaps=["<b>A gap.</b>"]
        )
        text = administrator_client.get(reverse("jobs:sandboxes")).content.decode()
        assert "&lt;b&gt;A gap.&lt;/b&gt;" in text
        assert "at most 1,000 processes" in text

    @pytest.mark.django_db
    @pytest.mark.parametrize(
        ("problem", "gaps", "state", "said"),
        [
            ("", (), doctor.OK, "memory, processes, processors and disk"),
            ("", ("One.", "Two."), doctor.WARNING, "One. Two."),
            ("no bwrap", ("One.",), doctor.WARNING, "not looked at, since no sandbox starts"),
        ],
    )
    def test_doctor_says_them(
        self,
        monkeypatch: pytest.MonkeyPatch,
        problem: str,
        gaps: tuple[str, ...],
        state: str,
        said: str,
    ) -> None:
        monkeypatch.setattr(base, "problem", lambda: problem)
        monkeypatch.setattr(base, "gaps", lambda: gaps)
        found = doctor.LOOKS["limits and walls"]()
        assert (found.state, said in found.text) == (state, True)

    def test_doctor_is_no_failure_for_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gap = doctor.Finding("limits and walls", doctor.WARNING, "A gap.")
        monkeypatch.setattr(doctor, "examine", lambda: iter([gap]))
        result = CliRunner().invoke(doctor.command, standalone_mode=False)
        assert result.return_value == 0
        assert "! limits and walls: A gap." in result.output


MEMORY: dict[str, Any] = {
    "out_of_memory": True,
    "broken_limit": "it used more than its 64 MiB of memory",
}
DISK: dict[str, Any] = {"broken_limit": "it used more than its 16 MiB of disk"}


class TestEndings:
    @pytest.mark.parametrize(
        ("code", "details", "said"),
        [
            (0, {}, ""),
            (3, {}, "the script ended with exit code 3"),
            (
                137,
                MEMORY,
                "the script was ended: it used more than its 64 MiB of memory "
                "(Memory in the job's settings)",
            ),
            (
                1,
                MEMORY,
                "the script ended with exit code 1; a process of it was ended: it used more than "
                "its 64 MiB of memory (Memory in the job's settings)",
            ),
            (0, MEMORY, ""),
            (
                137,
                DISK,
                "the script was ended: it used more than its 16 MiB of disk "
                "(Disk in the job's settings)",
            ),
            # It may have ended well in the moment in which it was to be killed.
            (0, DISK, "the script was ended: it used more than its 16 MiB of disk (Disk in the "),
            (
                134,
                {"is_memory_per_process": True},
                "the script ended with exit code 134, as programs do that get no more memory "
                "(Memory in the job's settings)",
            ),
            (134, {}, "the script ended with exit code 134"),
            (1, {"is_memory_per_process": True}, "the script ended with exit code 1"),
        ],
    )
    def test_a_failure_names_the_limit_and_the_setting(
        self, code: int, details: dict[str, Any], said: str
    ) -> None:
        found = endings.failure(Exit(code, **details))
        assert found == said or (said.endswith("the ") and found.startswith(said))

    def test_what_did_not_end_the_script_is_a_notice(self) -> None:
        assert endings.notices(Exit(0)) == endings.notices(Exit(137, **MEMORY)) == []
        assert endings.notices(Exit(0, **MEMORY, processes_refused=True)) == [
            "A process of the script was ended: it used more than its 64 MiB of memory.",
            "The script was refused processes: it had as many as it may have at once.",
        ]


@pytest.mark.django_db(transaction=True)
class TestRuns:
    @pytest.fixture(autouse=True)
    def _without_a_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without_a_machine(monkeypatch)

    def ends(self, monkeypatch: pytest.MonkeyPatch, **details: Any) -> list[SandboxSpec]:
        """Let each sandbox end so; the specifications that were asked for."""
        asked: list[SandboxSpec] = []

        async def start(argv: Any, spec: SandboxSpec, *, limit: int) -> SandboxProcess:
            asked.append(spec)
            process = await start_plainly(argv, spec, limit=limit)
            code = (await process._control.exit).code
            process._control.exit.result = lambda: Exit(code, **details)  # type: ignore[method-assign]
            return process

        monkeypatch.setattr(base, "start", start)
        return asked

    def test_the_script_gets_what_the_job_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = self.ends(monkeypatch)
        execute(make_job(cpus=0.5, memory=64, disk=16))
        assert [spec.limits for spec in asked] == [Limits(cpus=0.5, memory=64 * MIB, disk=16 * MIB)]

    def test_the_end_for_a_limit_is_the_runs_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends(monkeypatch, **DISK)
        run = execute(make_job(script="exit 9\n"))
        assert run.status == "failed"
        assert run.error == (
            "the script was ended: it used more than its 16 MiB of disk "
            "(Disk in the job's settings)"
        )
        assert payloads_of(run, "script.exit") == [{"code": 9, "timed_out": False, "limit": "disk"}]

    def test_a_run_that_went_on_succeeds_and_says_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends(monkeypatch, **MEMORY)
        run = execute(make_job())
        assert run.status == "succeeded"
        assert {"message": endings.notices(Exit(0, **MEMORY))[0]} in payloads_of(run, "log")
        assert payloads_of(run, "script.exit") == [{"code": 0, "timed_out": False}]


async def test_a_stdio_server_gets_them_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SandboxSpec] = []

    async def start(argv: Any, spec: SandboxSpec) -> SandboxProcess:
        asked.append(spec)
        raise base.SandboxError("enough seen")

    monkeypatch.setattr(base, "start", start)
    for terms in (Terms(limits=LIMITS), None):
        with pytest.raises(Exception, match="enough seen"):
            await make_spawner(new_id(), terms)(["true"], {})
    # The second is a Test, which no job bounds.
    assert [spec.limits for spec in asked] == [LIMITS, Limits()]
