"""Environments on pages: a job's tab, their own pages, Settings → Sandboxes (issue 5, section 1;
P20, P25)."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs import presence
from jobs.environments import builds, services
from jobs.jobfile import JobFileError, parse_job_file
from jobs.models import Environment, EnvironmentBuild, Job, RunEvent, Worker
from jobs.services import InvalidJob, create_job, current_data
from jobs.shapes import job_shape
from jobs.views.words import describe
from tests.fakes.runs import make_job
from umpteenth.accounts.models import AuditEntry
from umpteenth.core.clock import database_now
from umpteenth.core.config import get_options

pytestmark = pytest.mark.django_db
TEXT = "name: tools\npython: [humanize==4.9]\ndebian: [jq]\n"
Status = EnvironmentBuild.Status


@pytest.fixture(autouse=True)
def hints(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What workers were told."""
    from umpteenth import celery

    sent: list[tuple[str, ...]] = []
    monkeypatch.setattr(celery, "send_hint", lambda *words: sent.append(words))
    return sent


@pytest.fixture
def environment() -> Environment:
    return services.create_environment(actor=None, text=TEXT)


def worker(machine: str, host: str = "alpha", *, ago: int = 1, programs: Any = ()) -> None:
    now = database_now()
    Worker.objects.create(
        name=f"{host}-1-{machine}",
        started_at=now,
        seen_at=now - timedelta(seconds=ago),
        slots=4,
        machine=machine,
        programs=list(programs),
    )


def built(environment: Environment, **fields: Any) -> EnvironmentBuild:
    values = {"machine": "m1", "host": "alpha", "definition": TEXT, "queued_at": database_now()}
    row: EnvironmentBuild = EnvironmentBuild.objects.create(
        digest=environment.digest, **(values | fields)
    )
    return row


def text_of(client: Client, name: str, pk: object = None, **headers: str) -> str:
    url = reverse(name, args=[pk] if pk else [])
    answer = client.get(url, headers=headers)
    assert answer.status_code == 200
    return answer.content.decode()


class TestTab:
    def test_a_job_has_the_default_environment_until_it_chooses(
        self, member_client: Client, environment: Environment
    ) -> None:
        job = make_job()
        worker("m1", programs=[["Node", "20.1"], ["jq", ""]])
        text = text_of(member_client, "jobs:environment", job.pk)
        assert "Default environment" in text
        assert "Node" in text
        assert "20.1" in text
        assert text.index("Missing") < text.index(">jq<")
        assert 'id="builds"' not in text

    def test_a_member_chooses_and_the_audit_log_says_so(
        self, member_client: Client, environment: Environment
    ) -> None:
        job = make_job()
        url = reverse("jobs:environment", args=[job.pk])
        answer = member_client.post(url, {"environment": str(environment.pk)})
        assert (answer.status_code, answer["Location"]) == (303, url)
        job.refresh_from_db()
        assert job.environment == environment
        entry = AuditEntry.objects.get(action="job.update")
        assert entry.details["changed"] == ["environment"]
        text = text_of(member_client, "jobs:environment", job.pk)
        assert "humanize==4.9" in text
        assert "Not built yet" in text
        assert "tools" in text_of(member_client, "jobs:detail", job.pk)

    def test_it_can_be_taken_back(self, member_client: Client, environment: Environment) -> None:
        job = make_job(environment=environment)
        member_client.post(reverse("jobs:environment", args=[job.pk]), {"environment": ""})
        job.refresh_from_db()
        assert job.environment is None

    def test_one_that_is_gone_is_refused_in_words(self, member_client: Client) -> None:
        job = make_job()
        url = reverse("jobs:environment", args=[job.pk])
        answer = member_client.post(url, {"environment": str(job.pk)})
        assert answer.status_code == 422
        assert "does not exist any more" in answer.content.decode()

    def test_an_edit_of_the_job_keeps_it(
        self, member_client: Client, environment: Environment
    ) -> None:
        job = make_job(environment=environment)
        from jobs.forms.job import initial_of

        fields = {name: value for name, value in initial_of(job).items() if value is not None}
        fields = {name: value for name, value in fields.items() if value is not False}
        answer = member_client.post(
            reverse("jobs:settings", args=[job.pk]), {**fields, "description": "new"}
        )
        assert answer.status_code == 303, answer.content.decode()[:3000]
        job.refresh_from_db()
        assert (job.description, job.environment) == ("new", environment)

    def test_what_a_test_of_a_server_can_know_is_said(self, member_client: Client) -> None:
        """P25."""
        text = text_of(member_client, "jobs:environment", make_job().pk)
        assert "present only in an environment of a job cannot pass Test" in text


class TestBuilds:
    def test_the_card_refreshes_while_something_is_built_and_shows_the_end_of_the_log(
        self, member_client: Client, environment: Environment
    ) -> None:
        log = "\n".join(f"line {number}" for number in range(100))
        row = built(environment, status=Status.BUILDING, step="npm packages", log=log)
        text = text_of(member_client, "environments:builds", environment.pk)
        assert 'hx-trigger="every 2s"' in text
        assert "npm packages" in text
        assert "line 99" in text
        assert "line 69" not in text
        EnvironmentBuild.objects.filter(pk=row.pk).update(status=Status.READY, size=4096)
        text = text_of(member_client, "environments:builds", environment.pk)
        assert "hx-trigger" not in text
        assert "line 0\n" in text

    def test_a_failure_is_shown_with_its_log_as_text(
        self, member_client: Client, environment: Environment
    ) -> None:
        built(environment, status=Status.FAILED, error="<b>bad</b>", log="<script>")
        text = text_of(member_client, "environments:builds", environment.pk)
        assert "&lt;b&gt;bad" in text
        assert "&lt;script&gt;" in text
        assert "<details open>" in text

    def test_it_is_built_again_on_each_machine_that_lives(
        self,
        administrator_client: Client,
        environment: Environment,
        hints: list[tuple[str, ...]],
    ) -> None:
        worker("m1")
        worker("m2", "beta")
        worker("m3", "gamma", ago=3600)
        built(environment, status=Status.READY)
        url = reverse("environments:build", args=[environment.pk])
        answer = administrator_client.post(url, headers={"HX-Request": "true"})
        assert 'id="builds"' in answer.content.decode()
        rows = {(row.host, row.status) for row in EnvironmentBuild.objects.all()}
        assert rows == {("alpha", "queued"), ("beta", "queued")}
        assert hints == [("jobs.tasks.build_environments", environment.digest)]
        assert administrator_client.post(url).status_code == 303


class TestPages:
    def test_an_administrator_makes_one_and_it_is_built(self, administrator_client: Client) -> None:
        worker("m1")
        answer = administrator_client.post(
            reverse("environments:create"), {"definition": TEXT.replace("\n", "\r\n")}
        )
        made = Environment.objects.get()
        assert answer["Location"] == reverse("environments:detail", args=[made.pk])
        assert (made.name, made.definition) == ("tools", TEXT)
        assert EnvironmentBuild.objects.get().status == Status.QUEUED
        assert AuditEntry.objects.filter(action="environment.create").exists()

    @pytest.mark.parametrize(
        ("definition", "sentence"),
        [
            ("name: x\npython: [--evil]\n", "is no package"),
            ("", "An environment needs a definition"),
            (TEXT, "An environment named tools exists already"),
        ],
    )
    def test_a_mistake_is_said_and_what_was_typed_stays(
        self,
        administrator_client: Client,
        environment: Environment,
        definition: str,
        sentence: str,
    ) -> None:
        answer = administrator_client.post(
            reverse("environments:create"), {"definition": definition}
        )
        assert answer.status_code == 422
        assert sentence in answer.content.decode()
        assert Environment.objects.count() == 1

    def test_an_edit_is_stored_and_built_under_its_new_content(
        self, administrator_client: Client, environment: Environment
    ) -> None:
        worker("m1")
        url = reverse("environments:detail", args=[environment.pk])
        update = reverse("environments:update", args=[environment.pk])
        assert f'action="{update}"' in text_of(
            administrator_client, "environments:detail", environment.pk
        )
        answer = administrator_client.post(
            update, {"definition": TEXT + "npm: [a]\n", "version": "1"}
        )
        assert (answer.status_code, answer["Location"]) == (303, url)
        old = environment.digest
        environment.refresh_from_db()
        assert environment.version == 2
        assert environment.digest != old
        assert EnvironmentBuild.objects.get().digest == environment.digest

    def test_an_edit_that_somebody_overtook_shows_both_and_a_second_save_decides(
        self, administrator_client: Client, environment: Environment
    ) -> None:
        services.update_environment(
            environment, actor=None, text="name: tools\nnpm: [theirs]\n", version=1
        )
        url = reverse("environments:update", args=[environment.pk])
        mine = "name: tools\nnpm: [mine]\n"
        answer = administrator_client.post(url, {"definition": mine, "version": "1"})
        text = answer.content.decode()
        assert answer.status_code == 422
        assert "Somebody changed this environment" in text
        assert "[theirs]" in text
        assert "[mine]" in text
        assert (
            administrator_client.post(url, {"definition": mine, "version": "2"}).status_code == 303
        )

    def test_a_member_reads_and_cannot_write(
        self, member_client: Client, environment: Environment
    ) -> None:
        text = text_of(member_client, "environments:detail", environment.pk)
        assert "humanize==4.9" in text
        assert "<textarea" not in text
        assert "Build again" not in text
        url = reverse("environments:update", args=[environment.pk])
        assert member_client.post(url, {"definition": TEXT}).status_code == 403

    def test_one_that_jobs_use_is_not_deleted(
        self, administrator_client: Client, environment: Environment
    ) -> None:
        job = make_job(environment=environment)
        url = reverse("environments:delete", args=[environment.pk])
        answer = administrator_client.post(url)
        assert answer.status_code == 422
        assert "Jobs use the environment tools: digest" in answer.content.decode()
        Job.objects.filter(pk=job.pk).update(environment=None)
        assert administrator_client.post(url).status_code == 303
        assert not Environment.objects.exists()

    def test_settings_list_them_with_machines_and_jobs(
        self, administrator_client: Client, environment: Environment
    ) -> None:
        make_job(environment=environment)
        built(environment, status=Status.READY, size=5_000_000)
        text = text_of(administrator_client, "jobs:sandboxes")
        assert "Python: humanize==4.9 · Debian: jq" in text
        assert "alpha" in text
        assert '<td class="num">1</td>' in text

    def test_one_that_this_version_cannot_read_breaks_no_page(
        self, administrator_client: Client, environment: Environment
    ) -> None:
        Environment.objects.update(definition="name: x\nruby: [a]\n")
        environment.refresh_from_db()
        assert "cannot be read" in text_of(
            administrator_client, "jobs:environment", make_job(environment=environment).pk
        )
        text_of(administrator_client, "environments:detail", environment.pk)
        text_of(administrator_client, "jobs:sandboxes")
        assert services.environment_shape(environment)["python"] == []

    def test_queries_do_not_grow_with_environments(
        self, administrator_client: Client, django_assert_max_num_queries: Any
    ) -> None:
        for number in range(12):
            made = services.create_environment(
                actor=None, text=f"name: e{number}\nnpm: [a{number}]\n"
            )
            built(made, status=Status.READY)
        with django_assert_max_num_queries(10):
            text_of(administrator_client, "jobs:sandboxes")

    def test_the_table_that_refreshes_itself_asks_for_no_environments(
        self, administrator_client: Client, environment: Environment
    ) -> None:
        worker("m1")
        built(environment, status=Status.READY)
        with CaptureQueriesContext(connection) as asked:
            text = text_of(administrator_client, "jobs:sandboxes", **{"HX-Request": "true"})
        assert "alpha-1-m1" in text
        assert len(asked) <= 4
        assert not [query for query in asked if "jobs_environment" in query["sql"]]

    @pytest.mark.parametrize("name", ["environments:detail", "environments:builds"])
    def test_definitions_of_builds_and_scripts_of_jobs_are_not_read_for_a_page(
        self, administrator_client: Client, environment: Environment, name: str
    ) -> None:
        make_job(environment=environment)
        built(environment, status=Status.READY)
        with CaptureQueriesContext(connection) as asked:
            text_of(administrator_client, name, environment.pk)
        statements = [query["sql"] for query in asked]
        assert any("jobs_environmentbuild" in sql for sql in statements)
        assert not [sql for sql in statements if '"jobs_environmentbuild"."definition"' in sql]
        assert not [sql for sql in statements if '"script"' in sql]


def test_pages_speak_of_images_where_an_engine_makes_sandboxes(
    administrator_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = get_options().sandbox.model_copy(update={"adapter": "engine"})
    options = get_options().model_copy(update={"sandbox": sandbox})
    monkeypatch.setattr("jobs.views.environments.get_options", lambda: options)
    tab = text_of(administrator_client, "jobs:environment", make_job().pk)
    assert "<code>umpteenth-sandbox</code>" in tab
    assert "One of its own takes its place" in tab
    new = text_of(administrator_client, "environments:create")
    assert "FROM python" in new
    assert "npm" not in new.partition("<main")[2]


def test_a_job_file_names_its_environment(environment: Environment) -> None:
    file = "name: a\nscript: '#!/bin/sh'\nenvironment: "
    job = create_job(actor=None, data=parse_job_file(f"{file}tools\n"))
    assert job_shape(job)["environment"] == "tools"
    assert current_data(job).environment == "tools"
    with pytest.raises(InvalidJob, match="There is no environment named other"):
        create_job(actor=None, data=parse_job_file(f"{file}other\n"))
    with pytest.raises(JobFileError, match=r"^environment: must be text"):
        parse_job_file(f"{file}[tools]\n")


def test_a_build_that_waits_is_not_asked_for_twice(environment: Environment) -> None:
    worker("m1")
    row = built(environment, status=Status.BUILDING, log="begun")
    services.request_builds(environment, again=True)
    row.refresh_from_db()
    assert (row.status, row.log) == (Status.BUILDING, "begun")


def test_one_that_is_there_is_built_again_only_when_somebody_says_so(
    environment: Environment,
) -> None:
    row = built(environment, status=Status.READY)
    builds.request(TEXT, environment.digest, "m1")
    row.refresh_from_db()
    assert row.status == Status.READY
    builds.request(TEXT, environment.digest, "m1", again=True)
    row.refresh_from_db()
    assert row.status == Status.QUEUED


def test_the_timeline_says_what_a_run_waits_for() -> None:
    def line(**payload: Any) -> Any:
        return describe(
            RunEvent(seq=1, at=database_now(), kind="sandbox.image_wait", payload=payload)
        )

    waiting = line(environment="tools", message="npm packages")
    assert (waiting.title, waiting.detail) == ("Environment tools", "npm packages")
    done = line(environment="tools", done=True, seconds=2.5)
    assert (done.detail, done.outcome, done.ms) == ("Ready", "ok", 2500)


def test_a_workers_machine_is_called_as_its_host(environment: Environment) -> None:
    worker("m1", "a-host-with-dashes")
    assert services.machines_of(presence.live_workers(database_now())) == {
        "m1": "a-host-with-dashes"
    }
    assert presence.host_in(presence.worker_name()) == socket.gethostname()


def test_a_name_that_is_no_text_is_the_name_of_no_environment() -> None:
    """JSON and YAML may hold half a character, which no database is asked for."""
    file = "name: b\nscript: '#!/bin/sh'\nenvironment: "
    with pytest.raises(InvalidJob) as refused:
        create_job(actor=None, data=parse_job_file(f'{file}"\\ud800"\n'))
    assert list(refused.value.errors) == ["environment"]
