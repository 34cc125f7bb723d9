"""What a server's new name changes elsewhere, and when a person is asked about it."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.definition import AttachmentData, JobData
from jobs.services import create_job
from jobs.usage import names_server
from secrets_vault.services import set_secret
from servers.definition import ServerData
from servers.models import Server
from servers.services import InvalidServer, RenameUnconfirmed, rename_notes, update_server
from servers.usage import Usage
from tests.fakes.server_rows import http_data, http_server

pytestmark = pytest.mark.django_db


def edit(server: Server, data: ServerData, **values: Any) -> Server:
    return update_server(server, actor=None, data=data, version=server.version, **values)


def test_a_new_name_lists_what_knows_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """U37, U38: jobs, scripts, and secrets that are for servers of certain names."""
    server = http_server()
    monkeypatch.setattr("servers.usage._finders", [lambda _: [Usage("job", "nightly", "/j/1")]])
    script = Usage("script of job", "nightly", "/j/1", "Calls github by name.")
    monkeypatch.setattr("servers.usage._mention_finders", [lambda _: [script]])
    set_secret(actor=None, name="TOKEN", value="value-1", allowed_servers=["github"])
    set_secret(actor=None, name="OTHER", value="value-2", allowed_servers=["github2"])
    set_secret(actor=None, name="ANY", value="value-3")
    job, mention, secret = rename_notes(server, "gitlab")
    assert (job.kind, job.name) == ("job", "nightly")
    assert "under new names" in job.note
    assert mention == script
    assert (secret.kind, secret.name) == ("secret", "TOKEN")
    assert "stops working for github" in secret.note
    assert rename_notes(server, "github") == []


def test_a_rename_asks_once_where_something_knows_the_name() -> None:
    """U38."""
    server = http_server()
    set_secret(actor=None, name="TOKEN", value="value-1", allowed_servers=["github"])
    with pytest.raises(RenameUnconfirmed) as caught:
        edit(server, http_data("gitlab"), renaming_confirmed=False)
    assert [note.name for note in caught.value.notes] == ["TOKEN"]
    assert caught.value.new_name == "gitlab"
    assert Server.objects.get().name == "github"
    assert edit(server, http_data(description="x"), renaming_confirmed=False).version == 2
    saved = edit(Server.objects.get(), http_data("gitlab"), renaming_confirmed=True)
    assert saved.name == "gitlab"


def test_a_rename_that_nothing_notices_asks_nothing() -> None:
    assert edit(http_server(), http_data("gitlab"), renaming_confirmed=False).name == "gitlab"


def test_faults_of_the_form_come_before_the_question() -> None:
    set_secret(actor=None, name="TOKEN", value="value-1", allowed_servers=["github"])
    with pytest.raises(InvalidServer):
        edit(http_server(), http_data("git lab"), renaming_confirmed=False)


@pytest.mark.parametrize(
    "script",
    [
        "ump mcp call github list_issues '{}'",
        "for i in 1 2; do ump  mcp call github x; done",
        "ump mcp tools github --json",
        "ump mcp tools --json github",
        'out="$(ump mcp call "github" x)"',
        "/ump/bin/ump mcp call \\\n    github x",
        "subprocess.run(['ump', 'mcp', 'call', 'github', tool])",
        'call(["ump","mcp","call","github"])',
    ],
)
def test_a_script_that_calls_a_server_by_name_names_it(script: str) -> None:
    """U38: in a shell or in a program's list of words."""
    assert names_server(f"#!/bin/sh\n{script}\n", "github")


@pytest.mark.parametrize(
    "script",
    [
        "ump mcp call github2 x",
        "ump mcp call my-github x",
        "ump mcp call github-x y",
        "ump mcp call GitHub x",
        "ump mcp call other github",
        "ump state get github",
        "echo github",
        'ump mcp call "$SERVER" x',
        "jump mcp call github x",
    ],
)
def test_a_script_that_only_resembles_it_does_not(script: str) -> None:
    assert not names_server(script, "github")


def test_jobs_are_found_by_attachment_and_by_script() -> None:
    """U38: whatever the name stands in, with the page to go to."""
    server = http_server("a-b")
    script = "#!/bin/sh\nump mcp call a-b echo '{}'\n"
    attached = (AttachmentData("a-b", None),)
    create_job(actor=None, data=JobData(name="one", script=script, attachments=attached))
    create_job(actor=None, data=JobData(name="two", script=script))
    create_job(actor=None, data=JobData(name="three", script="#!/bin/sh\necho a-b\n"))
    notes = rename_notes(server, "c")
    found = [(note.kind, note.name) for note in notes]
    assert found == [("job", "one"), ("script of job", "one"), ("script of job", "two")]
    assert all(note.url.startswith("/jobs/") for note in notes)
    assert "Calls a-b by name" in notes[1].note
