"""The job form: create and settings, the MCP servers card (P60, P63-P69) and the Secrets card."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from jobs.definition import AttachmentData, JobData, SecretData
from jobs.forms.skeleton import arguments_of, call_of
from jobs.models import Attachment, Job
from jobs.services import create_job
from secrets_vault.services import ensure_key_ring, set_secret
from servers.models import Server, Tool
from tests.fakes.server_rows import after_success, stdio_server
from tests.fakes.timelines import HOSTILE
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db
SCRIPT = "#!/usr/bin/env bash\ntrue\n"


@pytest.fixture(autouse=True)
def _keys(db: None) -> None:
    ensure_key_ring()


@pytest.fixture
def everything() -> Server:
    return after_success(stdio_server("everything"), "echo", "add", "zip")


def make(**values: Any) -> Job:
    return create_job(actor=None, data=JobData(**({"name": "digest", "script": SCRIPT} | values)))


def fields(**values: Any) -> dict[str, Any]:
    """What a browser posts."""
    base = {
        "name": "digest",
        "description": "",
        "timeout": "900",
        "network": "none",
        "overlap": "skip",
        "enabled": "on",
        "script": SCRIPT,
        "cron": "",
        "timezone": "UTC",
        "version": "1",
    }
    return {key: value for key, value in (base | values).items() if value is not None}


def posted(client: Client, job: Job, **values: Any) -> Any:
    return client.post(f"/jobs/{job.pk}/settings/", fields(**values))


def card(client: Client, job: Job) -> str:
    html = client.get(f"/jobs/{job.pk}/settings/").content.decode()
    return html.split('id="servers"')[1].split('id="secrets"')[0]


def allowed(job: Job) -> Any:
    return Attachment.objects.get(job=job).allowed_tools


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


# MCP servers card


def test_a_new_attachment_allows_all_tools(member_client: Client, everything: Server) -> None:
    """P63, P64: without script the list itself attaches."""
    job = make()
    posted(member_client, job, attach=str(everything.pk))
    assert allowed(job) is None
    assert "All tools" in card(member_client, job)


def test_the_chosen_server_comes_as_a_row_with_all_tools(
    member_client: Client, everything: Server
) -> None:
    """P64"""
    html = member_client.get("/jobs/attachment/", {"attach": str(everything.pk)}).content.decode()
    assert f'name="server" value="{everything.pk}"' in html
    assert ">All tools</button>" in html
    assert "<html" not in html


def test_a_server_that_is_gone_gives_no_row(member_client: Client) -> None:
    url = "/jobs/attachment/"
    missing = "00000000-0000-7000-8000-000000000000"
    assert member_client.get(url, {"attach": missing}).status_code == 404
    assert member_client.get(url, {"attach": "x"}).status_code == 404


def test_a_removed_row_detaches_on_save(member_client: Client, everything: Server) -> None:
    """P63"""
    job = make(attachments=(AttachmentData("everything"),))
    posted(member_client, job)
    assert not job.attachments.exists()


def test_without_script_a_box_removes_the_row(member_client: Client, everything: Server) -> None:
    job = make(attachments=(AttachmentData("everything"),))
    pk = str(everything.pk)
    posted(member_client, job, **{"server": pk, f"all-{pk}": "on", "detach": pk})
    assert not job.attachments.exists()


def test_single_tools_are_counted_on_the_button(member_client: Client, everything: Server) -> None:
    """P65, P67"""
    job = make()
    pk = str(everything.pk)
    posted(member_client, job, **{"server": pk, f"tool-{pk}": ["echo", "zip"]})
    assert allowed(job) == ["echo", "zip"]
    assert "2 of 3 tools" in card(member_client, job)


def test_all_tools_includes_tools_that_come_later(
    member_client: Client, everything: Server
) -> None:
    """P66"""
    job = make(attachments=(AttachmentData("everything"),))
    after_success(everything, "echo", "add", "zip", "brand-new")
    html = card(member_client, job)
    assert "All tools" in html
    assert re.search(r'value="brand-new" checked', html)


def test_ticking_every_tool_by_hand_is_all_tools_again(
    member_client: Client, everything: Server
) -> None:
    """P68"""
    job = make(attachments=(AttachmentData("everything", ("echo",)),))
    pk = str(everything.pk)
    posted(member_client, job, **{"server": pk, f"tool-{pk}": ["echo", "add", "zip"]})
    assert allowed(job) is None
    assert ">All tools</button>" in card(member_client, job)


def test_before_any_test_the_text_stands_where_the_checklist_would(
    member_client: Client,
) -> None:
    """P69"""
    stdio_server("fresh")
    job = make(attachments=(AttachmentData("fresh"),))
    html = card(member_client, job)
    assert "test the server to pick tools" in html
    assert "data-tools-label" not in html


def test_an_untested_server_keeps_the_tools_that_a_file_allowed(member_client: Client) -> None:
    server = stdio_server("fresh")
    job = make(attachments=(AttachmentData("fresh", ("echo",)),))
    html = card(member_client, job)
    assert f'<input type="hidden" name="tool-{server.pk}" value="echo">' in html
    posted(member_client, job, **{"server": str(server.pk), f"tool-{server.pk}": ["echo"]})
    assert allowed(job) == ["echo"]


def test_a_disabled_server_is_marked(member_client: Client, everything: Server) -> None:
    """P60"""
    job = make(attachments=(AttachmentData("everything"),))
    assert ">Disabled</span>" not in card(member_client, job)
    Server.objects.update(enabled=False)
    assert ">Disabled</span>" in card(member_client, job)


def test_an_allowed_tool_that_vanished_is_flagged(
    member_client: Client, everything: Server
) -> None:
    job = make(attachments=(AttachmentData("everything", ("echo", "old-tool")),))
    html = card(member_client, job)
    assert "1 tool gone" in html
    assert "No longer offered" in html
    assert "1 of 3 tools" in html


def test_a_list_with_a_vanished_tool_never_becomes_all_tools(
    member_client: Client, everything: Server
) -> None:
    """Flagged, not dropped, and never opened to tools that nobody chose."""
    names = ["echo", "add", "zip", "old-tool"]
    job = make(attachments=(AttachmentData("everything", tuple(names)),))
    html = card(member_client, job)
    assert "1 tool gone" in html
    assert "3 of 3 tools" in html
    pk = str(everything.pk)
    posted(member_client, job, **{"server": pk, f"tool-{pk}": names})
    assert allowed(job) == names


def test_a_list_that_names_all_tools_of_today_stays_a_list(
    member_client: Client, everything: Server
) -> None:
    """P68 is about ticking by hand: a save of something else widens nothing."""
    names = ["echo", "add", "zip"]
    job = make(attachments=(AttachmentData("everything", tuple(names)),))
    assert "3 of 3 tools" in card(member_client, job)
    pk = str(everything.pk)
    posted(member_client, job, description="new", **{"server": pk, f"tool-{pk}": names})
    job.refresh_from_db()
    assert (job.description, allowed(job)) == ("new", names)


def test_before_any_test_no_tool_counts_as_gone(member_client: Client) -> None:
    stdio_server("fresh")
    job = make(attachments=(AttachmentData("fresh", ("echo",)),))
    assert "tool gone" not in card(member_client, job)
    assert "no longer offered" not in member_client.get(f"/jobs/{job.pk}/").content.decode()


def test_the_overview_names_the_tools_that_vanished(
    member_client: Client, everything: Server
) -> None:
    names = ("echo", *(f"old-{number}" for number in range(5)))
    job = make(attachments=(AttachmentData("everything", names),))
    html = member_client.get(f"/jobs/{job.pk}/").content.decode()
    assert "5 tools no longer offered" in html
    assert "old-0, old-1, old-2</span> and 2 more" in html
    assert f'href="/jobs/{job.pk}/settings/#servers"' in html


@pytest.mark.parametrize(
    ("policy", "word", "sentence"),
    [
        ({"blocked_tools": ["zip"]}, "Hidden by policy", "policy blocks it."),
        ({"allowed_tools": ["echo", "add"]}, "Hidden by policy", "among the server"),
        ({"trust": "guarded"}, "Only creator runs", "runs started by creator."),
        (
            {"trust": "guarded", "tool_levels": {"zip": ["creator", "agent"]}},
            "Only creator and agent runs",
            "creator or agent.",
        ),
        ({"trust": "guarded", "allowed_trust_levels": ["creator", "agent", "public"]}, "", ""),
        ({}, "", ""),
    ],
)
def test_a_tool_that_the_policy_of_its_server_restricts_is_marked(
    member_client: Client, everything: Server, policy: dict[str, Any], word: str, sentence: str
) -> None:
    """A12-A15, A30, A56"""
    Server.objects.update(policy=policy)
    Tool.objects.filter(name="zip").update(destructive=True)
    job = make(attachments=(AttachmentData("everything"),))
    html = card(member_client, job)
    badges = re.findall(r'badge-lock" title="([^"]*)">.*?</svg>([^<]*)<', html)
    assert [(name, sentence in said) for said, name in badges] == ([(word, True)] if word else [])


def test_no_tool_at_all_is_a_choice_too(member_client: Client, everything: Server) -> None:
    job = make(attachments=(AttachmentData("everything"),))
    posted(member_client, job, server=str(everything.pk))
    assert allowed(job) == []
    assert "0 of 3 tools" in card(member_client, job)


@pytest.mark.parametrize("server", ["x", "00000000-0000-7000-8000-000000000000", "\0"])
def test_a_server_that_makes_no_sense_is_left_out(member_client: Client, server: str) -> None:
    job = make()
    assert posted(member_client, job, server=server).status_code == 303
    assert not job.attachments.exists()


def test_the_card_costs_the_same_queries_for_any_number_of_servers(
    member_client: Client, everything: Server, django_assert_max_num_queries: Any
) -> None:
    names = [f"server-{n}" for n in range(8)]
    for name in names:
        after_success(stdio_server(name), "echo")
    job = make(attachments=tuple(AttachmentData(name) for name in names))
    with django_assert_max_num_queries(12):
        member_client.get(f"/jobs/{job.pk}/settings/")


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
