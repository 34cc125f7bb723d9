"""Jobs that run as root: which of their servers runs go without, and who is told (P26)."""

from __future__ import annotations

import pytest
from django.test import Client

from jobs.models import Attachment, Job
from jobs.plan import make_plan
from jobs.skipping import ROOT_SKIPS, skipped_among
from servers.definition import Entry, ServerData
from servers.models import Server
from servers.services import create_server
from tests.fakes.executions import execute, without_a_machine
from tests.fakes.job_forms import card, make
from tests.fakes.runs import FakeServer, make_job, make_run, payloads_of
from tests.fakes.server_rows import http_data, stdio_data

KEY = (Entry("BRAVE_API_KEY", "value-of-the-key"),)


def attached(job: Job, *servers: ServerData) -> Job:
    for data in servers:
        Attachment.objects.create(job=job, server=create_server(actor=None, data=data))
    return job


def three_servers(job: Job) -> Job:
    """One that root could read from; one that has nothing to read, and one on another machine."""
    return attached(
        job,
        stdio_data("brave", env=KEY),
        stdio_data("plain"),
        http_data("remote", headers=(Entry("X-Key", "value"),)),
    )


@pytest.mark.django_db(transaction=True)
def test_a_stdio_server_with_variables_is_skipped_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P26: with an event that says why; one without variables is not skipped."""
    fakes = without_a_machine(monkeypatch)
    fakes |= {name: FakeServer() for name in ("brave", "plain", "remote")}
    run = execute(three_servers(make_job(run_as_root=True)))
    assert run.status == "succeeded"
    assert payloads_of(run, "server.skipped") == [{"server": "brave", "reason": ROOT_SKIPS}]
    connected = [payload["server"] for payload in payloads_of(run, "server.connected")]
    assert sorted(connected) == ["plain", "remote"]


@pytest.mark.django_db(transaction=True)
def test_a_job_that_does_not_run_as_root_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = without_a_machine(monkeypatch)
    fakes |= {name: FakeServer() for name in ("brave", "plain", "remote")}
    run = execute(three_servers(make_job()))
    assert payloads_of(run, "server.skipped") == []
    assert len(payloads_of(run, "server.connected")) == 3


@pytest.mark.django_db
def test_values_of_a_skipped_server_are_not_even_resolved() -> None:
    """P3"""
    run = make_run(three_servers(make_job(run_as_root=True)))
    plan = make_plan(run.pk)
    brave = next(server for server in plan.servers if server.name == "brave")
    assert (brave.settings, brave.problem) == (None, "")
    assert "value-of-the-key" not in plan.secrets.values()


@pytest.mark.django_db
def test_a_server_that_cannot_be_decrypted_has_that_as_its_reason() -> None:
    job = attached(make_job(run_as_root=True), stdio_data("brave", env=KEY))
    Server.objects.update(private=b"x" * 40)
    [server] = make_plan(make_run(job).pk).servers
    assert server.skipped == ""
    assert "cannot be decrypted" in server.problem
    assert skipped_among(Server.objects.all()) == set()


@pytest.mark.django_db
def test_the_jobs_page_says_it_before_a_run_does(member_client: Client) -> None:
    words = "Skipped in each run: it has environment variables, which root could read"
    job = three_servers(make_job(run_as_root=True))
    assert member_client.get(f"/jobs/{job.pk}/").content.decode().count(words) == 1
    Job.objects.update(run_as_root=False)
    assert words not in member_client.get(f"/jobs/{job.pk}/").content.decode()


@pytest.mark.django_db
def test_the_form_says_it_at_the_server(administrator_client: Client) -> None:
    """Also of a server that was just chosen; the style sheet shows it while the box is ticked."""
    html = card(administrator_client, three_servers(make()))
    assert html.count("Skipped while Run as root is on") == 1
    row = html.split('data-name="brave"')[1].split("</li>")[0]
    assert "attachment-root" in row
