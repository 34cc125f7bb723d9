"""The MCP servers card of a job's form (P60, P63-P69), and what became of allowed tools."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from jobs.definition import AttachmentData
from secrets_vault.services import ensure_key_ring
from servers.models import Server, Tool
from tests.fakes.job_forms import allowed, card, make, posted
from tests.fakes.server_rows import after_success, stdio_server

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _keys(db: None) -> None:
    ensure_key_ring()


@pytest.fixture
def everything() -> Server:
    return after_success(stdio_server("everything"), "echo", "add", "zip")


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
        ({"blocked_tools": ["zip"]}, "Blocked", "policy blocks it."),
        ({"allowed_tools": ["echo", "add"]}, "Not allowed", "among the server"),
        ({"trust": "guarded"}, "Creator only", "runs started by creator."),
        (
            {"trust": "guarded", "tool_levels": {"zip": ["creator", "agent"]}},
            "Creator and agent only",
            "creator or agent.",
        ),
        ({"trust": "guarded", "allowed_trust_levels": ["creator", "agent", "public"]}, "", ""),
        ({}, "", ""),
    ],
)
def test_a_tool_that_the_policy_of_its_server_restricts_is_marked(
    member_client: Client, everything: Server, policy: dict[str, Any], word: str, sentence: str
) -> None:
    """A12-A15, A30, A56; in the words of the server's own page."""
    Server.objects.update(policy=policy)
    Tool.objects.filter(name="zip").update(destructive=True)
    job = make(attachments=(AttachmentData("everything"),))
    html = card(member_client, job)
    badges = re.findall(r'badge-lock" title="([^"]*)">.*?</svg>([^<]*)<', html)
    assert [(name, sentence in said) for said, name in badges] == ([(word, True)] if word else [])


@pytest.mark.parametrize(
    ("hints", "badges"),
    [
        ({"read_only": False}, ["Destructive"]),
        ({"read_only": False, "destructive": False}, []),
        ({"read_only": True, "destructive": True}, ["Read-only"]),
        ({}, []),
    ],
)
def test_tools_carry_the_badges_of_the_page_of_their_server(
    member_client: Client, everything: Server, hints: dict[str, bool], badges: list[str]
) -> None:
    """P33, P73"""
    Tool.objects.exclude(name="zip").delete()
    unknown = {"read_only": None, "destructive": None, "open_world": None}
    Tool.objects.update(**{**unknown, **hints})
    html = card(member_client, make(attachments=(AttachmentData("everything"),)))
    assert re.findall(r'badge-(?:good|bad)">([^<]*)<', html) == badges


def test_no_call_is_offered_of_a_tool_that_no_run_may_use(
    member_client: Client, everything: Server
) -> None:
    Server.objects.update(policy={"blocked_tools": ["zip"], "trust": "guarded"})
    Tool.objects.filter(name="add").update(destructive=True)
    job = make(attachments=(AttachmentData("everything"),))
    html = member_client.get(f"/jobs/{job.pk}/settings/").content.decode()
    assert re.findall(r'data-tool="(\w+)"', html) == ["echo", "add"]


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
