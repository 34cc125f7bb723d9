"""What people do to jobs: every rule holds whichever door it comes through."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import time_machine
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage

from jobs import services, triggers, usage
from jobs.definition import AttachmentData, InvalidJob, JobData, NotAllowed, SecretData
from jobs.models import Artifact, Attachment, Blob, Job, JobSecret, Run, StateEntry
from secrets_vault.models import Secret
from secrets_vault.services import ensure_key_ring, set_secret
from servers.definition import ServerData
from servers.models import Server
from servers.services import create_server
from tests.fakes.runs import make_job, make_run, old_run
from umpteenth.accounts.models import AuditEntry, User

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DATA = JobData(name="digest", script="#!/usr/bin/env bash\necho hi\n")


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)


@pytest.fixture
def server() -> Server:
    ensure_key_ring()
    data = ServerData(name="everything", transport="http", url="https://mcp.example.org/mcp")
    return create_server(actor=None, data=data)


@pytest.fixture
def secret() -> Secret:
    ensure_key_ring()
    return set_secret(actor=None, name="TOKEN", value="s3cr3t-horse").secret


def create(actor: User | None = None, **changes: Any) -> Job:
    return services.create_job(actor=actor, data=DATA.replace(**changes))


def refused(**changes: Any) -> dict[str, str]:
    with pytest.raises(InvalidJob) as caught:
        create(**changes)
    assert not Job.objects.exists()
    return caught.value.errors


class TestCreate:
    def test_a_member_creates_a_job_with_servers_and_schedule(
        self, member: User, server: Server
    ) -> None:
        with time_machine.travel(NOW, tick=False):
            job = create(
                member,
                name="  morning\tdigest ",
                script="#!/usr/bin/env bash\r\necho hi",
                cron=" 0  9 * * 1-5",
                timezone="Europe/Berlin",
                attachments=(AttachmentData("everything", ("echo",)),),
            )
        job.refresh_from_db()
        assert (job.name, job.cron, job.updated_by) == ("morning digest", "0 9 * * 1-5", member)
        assert job.script == "#!/usr/bin/env bash\necho hi\n"
        assert job.next_run_at == datetime(2026, 3, 2, 8, tzinfo=UTC)
        assert Attachment.objects.get(job=job).allowed_tools == ["echo"]
        entry = AuditEntry.objects.get(action="job.create")
        assert (entry.actor, entry.object_name) == (member, "morning digest")

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"name": " "}, "name"),
            ({"name": "x" * 101}, "name"),
            ({"description": "x" * 501}, "description"),
            ({"script": " \n"}, "script"),
            ({"script": "#!/usr/bin/perl\n"}, "script"),
            ({"script": "#!\n"}, "script"),
            ({"script": '#!/bin/bash -c "\n'}, "script"),
            ({"script": "echo \0\n"}, "script"),
            ({"script": "echo \ud800\n"}, "script"),
            ({"script": "x" * 1_100_000}, "script"),
            ({"network": "wifi"}, "network"),
            ({"overlap": "merge"}, "overlap"),
            ({"timeout": 0}, "timeout"),
            ({"timeout": 86_401}, "timeout"),
            ({"cron": "61 * * * *"}, "cron"),
            ({"timezone": "Mars/Olympus"}, "timezone"),
            ({"attachments": (AttachmentData("nope"),)}, "servers"),
            ({"attachments": (AttachmentData("a"), AttachmentData("a"))}, "servers"),
            ({"secrets": (SecretData("TOKEN", "nope"),)}, "secrets"),
            ({"secrets": (SecretData("1A", "x"),)}, "secrets"),
            ({"secrets": (SecretData("PATH", "x"),)}, "secrets"),
            ({"secrets": (SecretData("UMP_SOCKET", "x"),)}, "secrets"),
            ({"secrets": (SecretData("A", "x"), SecretData("A", "y"))}, "secrets"),
        ],
    )
    def test_what_is_wrong_is_named_by_its_field(self, changes: dict[str, Any], field: str) -> None:
        errors = refused(**changes)
        assert list(errors) == [field]
        assert errors[field].endswith((".", "bash"))

    def test_a_name_is_taken_once(self) -> None:
        create()
        with pytest.raises(InvalidJob, match="exists already"):
            create()

    def test_the_unrestricted_network_can_be_switched_off(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from jobs import definition

        monkeypatch.setattr(definition, "unrestricted_allowed", lambda: False)
        assert "switched off" in refused(network="unrestricted")["network"]
        assert create(network="none").network == "none"


class TestSecrets:
    mapped = (SecretData("TOKEN", "TOKEN"),)

    def test_a_member_maps_only_secrets_that_are_open(self, member: User, secret: Secret) -> None:
        with pytest.raises(NotAllowed, match="Only administrators can map the secret TOKEN"):
            create(member, secrets=self.mapped)
        Secret.objects.update(open_to_members=True)
        job = create(member, secrets=self.mapped)
        assert JobSecret.objects.get(job=job).secret == secret

    def test_an_administrator_maps_all(self, administrator: User, secret: Secret) -> None:
        assert create(administrator, secrets=self.mapped).secrets.count() == 1

    def test_a_member_may_edit_a_job_that_has_one(self, member: User, secret: Secret) -> None:
        job = create(secrets=self.mapped)
        data = services.current_data(job).replace(description="new")
        services.update_job(job, actor=member, data=data, version=1)
        moved = data.replace(secrets=(SecretData("OTHER", "TOKEN"),))
        with pytest.raises(NotAllowed):
            services.update_job(job, actor=member, data=moved, version=2)


class TestUpdate:
    def test_it_changes_what_was_changed(self, member: User, server: Server) -> None:
        job = create(attachments=(AttachmentData("everything"),))
        data = services.current_data(job)
        changed = services.update_job(
            job, actor=member, data=data.replace(timeout=5, attachments=()), version=1
        )
        assert (changed.timeout, changed.version, changed.updated_by) == (5, 2, member)
        assert not Attachment.objects.exists()
        entry = AuditEntry.objects.get(action="job.update")
        assert entry.details == {"changed": ["timeout", "attachments"]}

    def test_an_outdated_edit_is_refused_with_both_values(self, member: User) -> None:
        job = create()
        data = services.current_data(job)
        services.update_job(job, actor=member, data=data.replace(description="theirs"), version=1)
        with pytest.raises(services.OutdatedEdit) as caught:
            services.update_job(job, actor=None, data=data.replace(description="mine"), version=1)
        assert str(caught.value) == "bob changed this job while you were editing it."
        assert caught.value.theirs.description == "theirs"
        job.refresh_from_db()
        assert job.description == "theirs"

    def test_a_deleted_job_says_so(self) -> None:
        job = create()
        Job.objects.all().delete()
        with pytest.raises(services.JobGone):
            services.update_job(job, actor=None, data=DATA, version=1)

    def test_another_jobs_name_is_refused(self) -> None:
        create(name="other")
        job = create()
        with pytest.raises(InvalidJob, match="exists already"):
            services.update_job(job, actor=None, data=DATA.replace(name="other"), version=1)

    def test_an_edit_beside_the_schedule_keeps_a_time_that_is_due(self) -> None:
        """G13: neither fired early nor lost."""
        job = create(cron="0 9 * * *")
        Job.objects.update(next_run_at=NOW)
        services.update_job(job, actor=None, data=DATA.replace(cron="0 9 * * *"), version=1)
        job.refresh_from_db()
        assert job.next_run_at == NOW

    def test_without_a_schedule_nothing_is_armed(self) -> None:
        job = create(cron="0 9 * * *")
        assert services.update_job(job, actor=None, data=DATA, version=1).next_run_at is None

    def test_pausing_keeps_the_version_and_forgets_the_time(self) -> None:
        job = create(cron="0 9 * * *")
        assert services.set_enabled(job, actor=None, enabled=False)
        assert not services.set_enabled(job, actor=None, enabled=False)
        job.refresh_from_db()
        assert (job.enabled, job.next_run_at, job.version) == (False, None, 1)
        with time_machine.travel(NOW, tick=False):
            services.set_enabled(job, actor=None, enabled=True)
        job.refresh_from_db()
        assert job.next_run_at == datetime(2026, 3, 2, 9, tzinfo=UTC)


class TestDelete:
    def test_it_goes_with_its_runs_and_files(self, django_capture_on_commit_callbacks: Any) -> None:
        job = make_job()
        run = old_run(job, Run.Status.SUCCEEDED)
        paths = [default_storage.save(f"runs/{run.pk}/{n}", ContentFile(b"x")) for n in "ab"]
        Blob.objects.create(run=run, path=paths[0], size=1)
        Artifact.objects.create(run=run, name="a", media_type="x/y", size=1, path=paths[1])
        with django_capture_on_commit_callbacks(execute=True):
            services.delete_job(job, actor=None)
        services.delete_job(job, actor=None)  # twice is the same
        assert not Run.objects.exists()
        assert not any(default_storage.exists(path) for path in paths)

    def test_a_job_with_a_run_in_progress_stays(self) -> None:
        job = make_job()
        old_run(job, Run.Status.RUNNING, number=7)
        with pytest.raises(services.JobBusy, match="Run #7 of this job is in progress"):
            services.delete_job(job, actor=None)
        assert Job.objects.exists()

    def test_waiting_runs_go_with_it(self) -> None:
        job = make_job()
        make_run(job)
        services.delete_job(job, actor=None)
        assert not Run.objects.exists()


class TestState:
    def test_values_keep_their_type_and_know_their_size(self, member: User) -> None:
        job = make_job()
        services.set_state(job, "n", 3, actor=member)
        services.set_state(job, "n", {"a": [1, "é"]}, actor=member)
        entry = StateEntry.objects.get()
        assert (entry.value, entry.size) == ({"a": [1, "é"]}, 14)
        assert AuditEntry.objects.filter(action="job.state").count() == 2
        assert services.delete_state(job, "n", actor=member)
        assert not services.delete_state(job, "n")

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("", 1, "1 to 200 characters"),
            ("\0", 1, "1 to 200 characters"),
            ("k" * 201, 1, "1 to 200 characters"),
            ("k", "x" * (1024 * 1024), "at most 1 MiB"),
        ],
    )
    def test_what_it_does_not_take_is_named(self, key: str, value: Any, said: str) -> None:
        with pytest.raises(services.StateError, match=said):
            services.set_state(make_job(), key, value)

    def test_keys_and_bytes_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        job = make_job()
        monkeypatch.setattr(services, "MAX_STATE_KEYS", 2)
        monkeypatch.setattr(services, "MAX_STATE_TOTAL", 20)
        services.set_state(job, "a", "12345678")
        services.set_state(job, "b", "12345678")
        services.set_state(job, "b", "1")  # what is replaced does not count
        with pytest.raises(services.StateError, match="state keys"):
            services.set_state(job, "c", 1)
        with pytest.raises(services.StateError, match="16 MiB"):
            services.set_state(job, "b", "x" * 20)


class TestUsage:
    def test_secrets_and_servers_know_their_jobs(self, secret: Secret, server: Server) -> None:
        create(
            attachments=(AttachmentData("everything", ("echo",)),),
            secrets=(SecretData("A", "TOKEN"), SecretData("B", "TOKEN")),
        )
        [by_secret] = usage.jobs_of_secrets(["TOKEN"])["TOKEN"]
        [by_server] = usage.jobs_of_server(server)
        assert (by_secret.kind, by_secret.name) == ("job", "digest")
        assert (by_server.kind, by_server.name, by_server.note) == ("job", "digest", "1 tool")
        assert by_server.url == by_secret.url
        assert usage.jobs_of_secrets(["none"]) == {"none": []}
