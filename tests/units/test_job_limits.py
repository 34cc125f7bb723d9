"""What a job's sandboxes may use, and who may let it run as root: form, file, page, command."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from django.test import Client

from jobs import services
from jobs.definition import InvalidJob, JobData, NotAllowed
from jobs.jobfile import JobFileError, parse_job_file
from jobs.models import Job
from jobs.shapes import job_shape
from tests.fakes.job_forms import fields, make, posted
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.cli.jobs import command

pytestmark = pytest.mark.django_db

FILE = "name: digest\nscript: echo hi\n"
WRONG: list[tuple[str, Any, str]] = [
    ("cpus", 0.05, "A sandbox has 0.1 to 64 processors."),
    ("cpus", 65, "A sandbox has 0.1 to 64 processors."),
    ("cpus", "nan", "A sandbox has 0.1 to 64 processors."),
    ("memory", 63, "The memory is 64 to 1,048,576 MiB."),
    ("memory", 2**31, "The memory is 64 to 1,048,576 MiB."),
    ("disk", 15, "The room on the disk is 16 to 1,048,576 MiB."),
    ("disk", -1, "The room on the disk is 16 to 1,048,576 MiB."),
]


def of(job: Job | JobData) -> tuple[float, int, int, bool]:
    return job.cpus, job.memory, job.disk, job.run_as_root


def card(client: Client, job: Job) -> str:
    html = client.get(f"/jobs/{job.pk}/settings/").content.decode()
    return html.split('<section class="card" id="sandbox">')[1].split("</section>")[0]


class TestWhatIsStored:
    def test_a_new_job_has_one_processor_a_gibibyte_and_no_root(self) -> None:
        assert of(make()) == (1.0, 1024, 2048, False)

    @pytest.mark.parametrize(("field", "value", "said"), WRONG)
    def test_what_no_sandbox_can_have_is_refused(self, field: str, value: Any, said: str) -> None:
        with pytest.raises(InvalidJob) as caught:
            make(**{field: float(value)})
        assert caught.value.errors == {field: said}
        assert not Job.objects.exists()

    def test_an_edit_is_audited_by_its_names(self, administrator: User) -> None:
        job = make()
        data = services.current_data(job).replace(cpus=0.5, memory=512, disk=64, run_as_root=True)
        assert of(services.update_job(job, actor=administrator, data=data, version=1)) == (
            0.5,
            512,
            64,
            True,
        )
        changed = AuditEntry.objects.get(action="job.update").details["changed"]
        assert changed == ["cpus", "memory", "disk", "run_as_root"]


class TestWhoMayRunAsRoot:
    """design.md, section 3: a grant of administrators, like the wider networks (P26)."""

    def test_members_cannot_give_it(self, member: User) -> None:
        with pytest.raises(NotAllowed, match="Only administrators can let a job run") as caught:
            services.create_job(
                actor=member, data=JobData(name="a", script="true\n", run_as_root=True)
            )
        assert caught.value.field == "run_as_root"
        assert not Job.objects.exists()

    def test_what_administrators_gave_stays_when_members_edit(self, member: User) -> None:
        job = make(run_as_root=True)
        data = services.current_data(job)
        kept = services.update_job(
            job, actor=member, data=data.replace(description="new"), version=1
        )
        assert kept.run_as_root
        dropped = services.update_job(
            job, actor=member, data=data.replace(run_as_root=False), version=2
        )
        assert not dropped.run_as_root
        with pytest.raises(NotAllowed):
            services.update_job(job, actor=member, data=data, version=3)

    def test_a_member_sees_why_the_tick_is_not_theirs(self, member_client: Client) -> None:
        html = card(member_client, make())
        assert "Only administrators can choose this." in html
        assert (
            "disabled"
            in html.split('id="id_run_as_root"')[0].rpartition("<input")[2]
            + (html.split('id="id_run_as_root"')[1].split(">")[0])
        )

    def test_a_tick_from_elsewhere_is_told_under_its_field(self, member_client: Client) -> None:
        job = make()
        answer = posted(member_client, job, run_as_root="on")
        assert answer.status_code == 422
        assert "Only administrators can let a job run as root" in answer.content.decode()
        job.refresh_from_db()
        assert not job.run_as_root

    def test_a_member_keeps_a_tick_that_is_there(self, member_client: Client) -> None:
        job = make(run_as_root=True)
        html = card(member_client, job)
        assert "disabled" not in html
        assert "checked" in html
        assert posted(member_client, job, run_as_root="on").status_code == 303


class TestForm:
    def test_limits_are_saved_and_shown_again(self, member_client: Client) -> None:
        job = make()
        values = {"cpus": "0.5", "memory": "256", "disk": "32"}
        assert posted(member_client, job, **values).status_code == 303
        job.refresh_from_db()
        assert of(job) == (0.5, 256, 32, False)
        html = card(member_client, job)
        for value in values.values():
            assert f'value="{value}"' in html
        shown = member_client.get(f"/jobs/{job.pk}/").content.decode()
        assert "0.5 processors, 256 MiB of memory, 32 MiB of disk" in shown
        assert "runs as root" not in shown

    def test_the_page_says_who_runs_as_root(self, administrator_client: Client) -> None:
        job = make(cpus=1, run_as_root=True)
        shown = administrator_client.get(f"/jobs/{job.pk}/").content.decode()
        assert "1 processor, 1,024 MiB of memory, 2,048 MiB of disk; runs as root" in shown

    def test_a_new_job_begins_with_the_usual_ones(self, member_client: Client) -> None:
        html = member_client.get("/jobs/new/").content.decode()
        part = html.split('<section class="card" id="sandbox">')[1].split("</section>")[0]
        assert [f'value="{value}"' in part for value in (1, 1024, 2048)] == [True] * 3

    @pytest.mark.parametrize(("field", "value", "said"), [*WRONG, ("memory", "x", WRONG[3][2])])
    def test_a_fault_is_told_under_its_field(
        self, member_client: Client, field: str, value: Any, said: str
    ) -> None:
        answer = member_client.post("/jobs/new/", fields(**{field: str(value)}))
        assert answer.status_code == 422
        html = answer.content.decode()
        assert said in html.split(f'id="id_{field}-error"')[1].split("</div>")[0]

    def test_an_outdated_edit_names_what_differs(self, administrator_client: Client) -> None:
        job = make()
        data = services.current_data(job).replace(memory=4096, run_as_root=True)
        services.update_job(job, actor=None, data=data, version=1)
        html = posted(administrator_client, job, cpus="2").content.decode()
        for label in ("Processors", "Memory", "Run as root"):
            assert label in html.split("changed this job while")[1]


class TestJobFile:
    def test_all_of_it_can_be_written(self) -> None:
        text = "cpus: 2\nmemory: 512\ndisk: 100\nrun_as_root: true\n"
        assert of(parse_job_file(FILE + text)) == (2.0, 512, 100, True)
        assert of(parse_job_file(FILE)) == (1.0, 1024, 2048, False)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("cpus: true", "cpus: must be a number such as 1 or 0.5."),
            ("cpus: '1'", "cpus: must be a number"),
            (f"cpus: {10**400}", "cpus: this number is too large."),
            ("memory: 1.5", "memory: must be a whole number of MiB."),
            ("disk: 2G", "disk: must be a whole number of MiB."),
            ("run_as_root: 1", "run_as_root: must be true or false."),
        ],
    )
    def test_a_fault_names_its_key(self, line: str, said: str) -> None:
        with pytest.raises(JobFileError) as caught:
            parse_job_file(FILE + line + "\n")
        assert said in str(caught.value)

    @pytest.mark.parametrize("line", ["cpus: .nan", "cpus: .inf", "memory: 1", "disk: 99999999"])
    def test_a_value_out_of_range_is_told_by_its_key(self, line: str) -> None:
        result = CliRunner().invoke(command, ["create", "-"], input=f"{FILE}{line}\n")
        assert result.exit_code == 1
        assert result.stderr.startswith(line.partition(":")[0] + ": ")

    def test_show_tells_it_in_the_words_of_the_file(self) -> None:
        job = make(cpus=0.5, memory=256, disk=64, run_as_root=True)
        shown = CliRunner().invoke(command, ["show", "digest"]).stdout
        assert "cpus: 0.5\nmemory: 256\ndisk: 64\nrun_as_root: true\n" in shown
        assert job_shape(job)["cpus"] == 0.5
