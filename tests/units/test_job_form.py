"""The job form: create and settings, the Secrets card, ready calls."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from jobs.definition import AttachmentData, SecretData
from jobs.forms.skeleton import arguments_of, call_of
from jobs.models import Job
from secrets_vault.services import ensure_key_ring, set_secret
from servers.models import Server, Tool
from tests.fakes.job_forms import fields, make, posted
from tests.fakes.server_rows import after_success, stdio_server
from tests.fakes.timelines import HOSTILE
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _keys(db: None) -> None:
    ensure_key_ring()


@pytest.fixture
def everything() -> Server:
    return after_success(stdio_server("everything"), "echo", "add", "zip")


# Create and change


def test_a_member_makes_a_job(member_client: Client, member: User) -> None:
    response = member_client.post("/jobs/new/", fields(cron="0 9 * * 1-5", timezone="Asia/Tokyo"))
    job = Job.objects.get()
    assert response["Location"] == f"/jobs/{job.pk}/"
    assert (job.name, job.cron, job.timezone) == ("digest", "0 9 * * 1-5", "Asia/Tokyo")
    assert job.updated_by == member
    assert job.next_run_at is not None


def test_the_new_form_needs_only_a_name(member_client: Client) -> None:
    html = member_client.get("/jobs/new/").content.decode()
    values = {
        "timeout": re.search(r'name="timeout" value="(\d+)"', html),
        "script": re.search(r'<textarea name="script"[^>]*>\s*([^<]+)</textarea>', html),
    }
    assert all(values.values())
    typed = {key: found.group(1) for key, found in values.items() if found}
    typed["script"] = typed["script"].replace("&quot;", '"')
    member_client.post("/jobs/new/", fields(**typed, version=None))
    assert Job.objects.get().script.startswith("#!/usr/bin/env bash")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("name", "", "A job needs a name"),
        ("name", "x" * 101, "at most 100"),
        ("script", "", "A job needs a script"),
        ("script", "#!/usr/bin/perl\n", "perl"),
        ("script", "a\0b", "ull"),
        ("timeout", "0", "1 to 86,400 seconds"),
        ("timeout", "9" * 30, "1 to 86,400 seconds"),
        ("timeout", "soon", "1 to 86,400 seconds"),
        ("timezone", "", "Name a time zone"),
        ("network", "wifi", "not one of the available choices"),
        ("overlap", "", "required"),
        ("cron", "61 * * * *", "minute"),
        ("cron", "x" * 10_000, "at most 100 characters"),
        ("timezone", "Mars/Olympus", "not a time zone"),
    ],
)
def test_a_fault_is_told_under_its_field_and_nothing_is_stored(
    member_client: Client, field: str, value: str, sentence: str
) -> None:
    response = member_client.post("/jobs/new/", fields(**{field: value}))
    html = response.content.decode()
    assert response.status_code == 422
    assert sentence in html
    assert 'aria-invalid="true"' in html
    assert not Job.objects.exists()


def test_a_taken_name_is_told_under_the_name(member_client: Client) -> None:
    make()
    html = member_client.post("/jobs/new/", fields()).content.decode()
    assert "exists already" in html


def test_what_was_typed_stays_after_a_fault(member_client: Client, everything: Server) -> None:
    data = fields(name="", cron="0 9 * * *", server=[str(everything.pk)])
    data |= {f"tool-{everything.pk}": ["echo"], "variable": ["TOKEN"], "secret": [""]}
    html = member_client.post("/jobs/new/", data).content.decode()
    for words in ('value="0 9 * * *"', "1 of 3 tools", 'value="TOKEN"'):
        assert words in html


def test_settings_show_what_is_stored(member_client: Client) -> None:
    job = make(description="Collects things", cron="0 9 * * *", timeout=60)
    html = member_client.get(f"/jobs/{job.pk}/settings/").content.decode()
    for words in ("Collects things", 'value="0 9 * * *"', 'value="60"', "At 09:00 every day"):
        assert words in html


def test_settings_are_saved(member_client: Client) -> None:
    job = make()
    response = posted(member_client, job, name="weekly", timeout="60", enabled=None)
    job.refresh_from_db()
    assert response.status_code == 303
    assert (job.name, job.timeout, job.enabled, job.version) == ("weekly", 60, False, 2)


def test_an_outdated_form_is_refused_with_both_values(
    member_client: Client, administrator_client: Client
) -> None:
    job = make()
    posted(administrator_client, job, description="hers")
    response = posted(member_client, job, description="his", version="1")
    html = response.content.decode()
    job.refresh_from_db()
    assert response.status_code == 422
    assert job.description == "hers"
    assert "alice changed this job while you were editing it" in html
    assert "<pre>hers</pre>" in html
    assert "<pre>his</pre>" in html
    # A second Save is a decision.
    assert 'name="version" value="2"' in html
    posted(member_client, job, description="his", version="2")
    job.refresh_from_db()
    assert job.description == "his"


def test_hostile_text_in_the_form_is_text(member_client: Client, everything: Server) -> None:
    """I10"""
    Tool.objects.filter(server=everything, name="echo").update(name=HOSTILE, title=HOSTILE)
    job = make(
        name=HOSTILE[:90],
        description=HOSTILE,
        script=f"#!/bin/bash\n# </textarea>{HOSTILE}\n",
        attachments=(AttachmentData("everything", (HOSTILE,)),),
    )
    html = member_client.get(f"/jobs/{job.pk}/settings/").content.decode()
    assert "<img src=x" not in html
    assert "<script>alert" not in html
    assert "</textarea><" not in html


# Secrets card


@pytest.fixture
def secrets() -> None:
    set_secret(actor=None, name="OPEN", value="value one", open_to_members=True)
    set_secret(actor=None, name="CLOSED", value="value two")


def mapped(job: Job) -> dict[str, str]:
    return dict(job.secrets.values_list("variable", "secret__name"))


def test_a_member_maps_a_secret_that_is_open(member_client: Client, secrets: None) -> None:
    job = make()
    posted(member_client, job, variable=["TOKEN", ""], secret=["OPEN", ""])
    assert mapped(job) == {"TOKEN": "OPEN"}


def test_a_secret_without_a_variable_takes_its_own_name(
    member_client: Client, secrets: None
) -> None:
    job = make()
    posted(member_client, job, variable=[""], secret=["OPEN"])
    assert mapped(job) == {"OPEN": "OPEN"}


def test_a_member_may_not_map_a_closed_secret(member_client: Client, secrets: None) -> None:
    job = make()
    response = posted(member_client, job, variable=["TOKEN"], secret=["CLOSED"])
    assert response.status_code == 422
    assert "Only administrators can map the secret CLOSED" in response.content.decode()
    assert mapped(job) == {}


def test_a_member_keeps_what_an_administrator_mapped(member_client: Client, secrets: None) -> None:
    job = make(secrets=(SecretData("TOKEN", "CLOSED"),))
    html = member_client.get(f"/jobs/{job.pk}/settings/").content.decode()
    assert '<option value="CLOSED" selected>' in html
    posted(member_client, job, description="new", variable=["TOKEN"], secret=["CLOSED"])
    assert mapped(job) == {"TOKEN": "CLOSED"}


def test_an_administrator_maps_any_secret(administrator_client: Client, secrets: None) -> None:
    job = make()
    posted(administrator_client, job, variable=["TOKEN"], secret=["CLOSED"])
    assert mapped(job) == {"TOKEN": "CLOSED"}


@pytest.mark.parametrize(
    ("variable", "secret", "sentence"),
    [
        ("TOKEN", "", "Choose a secret for the variable TOKEN"),
        ("2TOKEN", "OPEN", "no name of an environment variable"),
        ("PATH", "OPEN", "set by the sandbox"),
        ("TOKEN", "MISSING", "no secret named MISSING"),
    ],
)
def test_a_wrong_row_is_told_on_the_card(
    member_client: Client, secrets: None, variable: str, secret: str, sentence: str
) -> None:
    response = posted(member_client, make(), variable=[variable], secret=[secret])
    assert response.status_code == 422
    assert sentence in response.content.decode()


def test_no_value_of_a_secret_is_ever_in_the_form(
    administrator_client: Client, secrets: None
) -> None:
    job = make(secrets=(SecretData("TOKEN", "CLOSED"),))
    assert b"value two" not in administrator_client.get(f"/jobs/{job.pk}/settings/").content


# Ready calls


def test_a_ready_call_holds_what_the_schema_requires() -> None:
    schema = {
        "properties": {
            "text": {"type": "string"},
            "count": {"type": ["integer", "null"]},
            "mode": {"enum": ["fast", "slow"]},
            "limit": {"default": 10},
            "optional": {"type": "string"},
        },
        "required": ["text", "count", "mode", "limit", "unknown"],
    }
    assert arguments_of(schema) == {
        "text": "",
        "count": 0,
        "mode": "fast",
        "limit": 10,
        "unknown": "",
    }
    assert call_of("everything", "echo", {}).arguments == "{}"


@pytest.mark.parametrize(
    "schema",
    [None, [], {"required": "all"}, {"properties": [], "required": ["a"]}, {"required": [1, {}]}],
)
def test_a_schema_of_any_shape_gives_a_call(schema: Any) -> None:
    assert arguments_of(schema) == {}


def test_the_tools_of_attached_servers_stand_beside_the_script(
    member_client: Client, everything: Server
) -> None:
    job = make(attachments=(AttachmentData("everything"),))
    html = member_client.get(f"/jobs/{job.pk}/settings/").content.decode()
    assert 'data-server="everything" data-tool="echo" data-arguments="{}"' in html
