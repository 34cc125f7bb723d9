"""The MCP servers card of a job's form with a server of thousands of tools (P63-P68)."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.definition import AttachmentData
from jobs.forms.attached import MAX_CALLS, MAX_LISTED
from jobs.models import Job
from secrets_vault.services import ensure_key_ring
from servers.models import Server
from tests.fakes.job_forms import allowed, make, posted
from tests.fakes.server_rows import after_success, stdio_server

pytestmark = pytest.mark.django_db
NAMES = tuple(f"tool-{number:04}" for number in range(2000))
SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "description": "x" * 500}}}


@pytest.fixture
def huge(db: None) -> Server:
    ensure_key_ring()
    server = after_success(stdio_server("huge"), *NAMES)
    server.tools.update(input_schema={**SCHEMA, "required": ["text"]})
    return server


def settings(client: Client, job: Job, query: str = "") -> str:
    return client.get(f"/jobs/{job.pk}/settings/{query}").content.decode()


def boxes(page: str) -> list[str]:
    return re.findall(r'name="tool-[^"]*" value="([^"]*)"', page)


def ticked(page: str) -> list[str]:
    return re.findall(r'name="tool-[^"]*" value="([^"]*)" checked', page)


def late(page: str) -> Any:
    """The names that stand for the checklist."""
    [value] = re.findall(r'name="tools-[^"]*" value="([^"]*)"', page)
    return json.loads(html.unescape(value))


def opened(client: Client, huge: Server, **fields: Any) -> str:
    """What comes when the tools button is pressed."""
    response = client.post(f"/jobs/attachment/{huge.pk}/tools/", fields)
    assert response.status_code == 200
    return response.content.decode()


def test_the_page_stays_small(member_client: Client, huge: Server) -> None:
    """Neither a box nor a ready call for each of thousands of tools."""
    job = make(attachments=(AttachmentData("huge"),))
    with CaptureQueriesContext(connection) as captured:
        page = settings(member_client, job)
    assert len(page) < 80_000
    assert boxes(page) == []
    assert page.count("data-call ") == MAX_CALLS
    assert f"The first {MAX_CALLS};" in page
    schemas = [query["sql"] for query in captured if "input_schema" in query["sql"]]
    assert [sql.count(",") <= MAX_CALLS + 5 for sql in schemas] == [True]


def test_a_chosen_server_comes_as_a_small_row_too(member_client: Client, huge: Server) -> None:
    row = member_client.get("/jobs/attachment/", {"attach": str(huge.pk)}).content.decode()
    assert len(row) < 60_000
    assert (boxes(row), late(row)) == ([], [])


def test_a_server_with_some_tools_has_them_on_the_page(member_client: Client, huge: Server) -> None:
    after_success(huge, *NAMES[:MAX_LISTED])
    page = settings(member_client, make(attachments=(AttachmentData("huge"),)))
    assert boxes(page) == list(NAMES[:MAX_LISTED])
    assert "data-late" not in page


@pytest.mark.parametrize("names", [None, (), NAMES[:2], (*NAMES[:3], "old-tool"), NAMES[:512]])
def test_a_save_without_opening_the_list_keeps_it(
    member_client: Client, huge: Server, names: tuple[str, ...] | None
) -> None:
    job = make(attachments=(AttachmentData("huge", names),))
    page, pk = settings(member_client, job), str(huge.pk)
    everything = {f"all-{pk}": "on"} if names is None else {}
    fields = {"server": pk, f"tools-{pk}": json.dumps(late(page)), **everything}
    posted(member_client, job, description="new", **fields)
    job.refresh_from_db()
    assert job.description == "new"
    assert allowed(job) == (None if names is None else list(names))


def test_the_button_counts_what_is_not_listed_yet(member_client: Client, huge: Server) -> None:
    job = make(attachments=(AttachmentData("huge", (*NAMES[:3], "old-tool")),))
    page = settings(member_client, job)
    assert ">3 of 2000 tools</button>" in page
    assert "1 tool gone" in page


def test_the_list_comes_as_the_form_stands(member_client: Client, huge: Server) -> None:
    pk = str(huge.pk)
    names = json.dumps([NAMES[3], "old-tool"])
    page = opened(member_client, huge, **{"server": [pk, "x"], f"tools-{pk}": names})
    assert boxes(page) == [*NAMES, "old-tool"]
    assert ticked(page) == [NAMES[3], "old-tool"]
    assert "No longer offered" in page
    assert f'id="tools-list-{pk}"' in page
    assert ticked(opened(member_client, huge, **{"server": pk, f"all-{pk}": "on"})) == [*NAMES]
    assert ticked(opened(member_client, huge, **{"server": pk, f"tools-{pk}": "[]"})) == []


def test_the_list_of_a_server_that_is_gone_is_not_found(
    member_client: Client, huge: Server
) -> None:
    url = f"/jobs/attachment/{huge.pk}/tools/"
    assert member_client.get(url).status_code == 405
    huge.delete()
    assert member_client.post(url).status_code == 404


def test_without_script_the_page_brings_the_list(member_client: Client, huge: Server) -> None:
    job = make(attachments=(AttachmentData("huge", NAMES[:2]),))
    address = f"/jobs/{job.pk}/settings/?list={huge.pk}#servers"
    assert f'href="{address}"' in settings(member_client, job)
    page = settings(member_client, job, f"?list={huge.pk}")
    assert (len(boxes(page)), ticked(page)) == (len(NAMES), list(NAMES[:2]))
    assert page.count("data-call ") == MAX_CALLS
    assert boxes(settings(member_client, job, "?list=x")) == []


@pytest.mark.parametrize(
    "text", ["", "x", "{", "7", "null", '{"a": 1}', "[1, null, [[]]]", "[" * 9999]
)
def test_a_list_that_makes_no_sense_allows_nothing(
    member_client: Client, huge: Server, text: str
) -> None:
    job, pk = make(attachments=(AttachmentData("huge"),)), str(huge.pk)
    assert posted(member_client, job, **{"server": pk, f"tools-{pk}": text}).status_code == 303
    assert allowed(job) == []
