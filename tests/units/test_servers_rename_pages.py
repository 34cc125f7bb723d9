"""A new name is asked about where something knows the server by its name (U37, U38)."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from jobs.definition import JobData
from jobs.services import AttachmentData, create_job
from servers.models import Server
from tests.fakes.server_rows import http_server
from tests.units.forms_of_pages import Fields, fields_of

pytestmark = pytest.mark.django_db

CALLS = "#!/bin/sh\nump mcp call github search '{}'\n"


@pytest.fixture
def server() -> Server:
    """Attached to one job, and called by its name in that job's script."""
    server = http_server(headers={"X-Api-Key": "canary-1"})
    create_job(actor=None, data=JobData("nightly", CALLS, attachments=(AttachmentData("github"),)))
    return server


def address(server: Server) -> str:
    return reverse("servers:edit", args=[server.pk])


def opened(client: Client, server: Server) -> Fields:
    return fields_of(client.get(address(server)).content.decode(), "server-form")


def test_a_rename_lists_what_names_the_server_and_asks(
    server: Server, administrator_client: Client
) -> None:
    data = {**opened(administrator_client, server), "name": ["gh"], "description": ["New"]}
    response = administrator_client.post(address(server), data)
    text = response.content.decode()
    assert response.status_code == 422
    assert "Rename github to gh?" in text
    [notes] = re.findall(r'class="plain-list rename-notes">(.*?)</ul>', text, flags=re.S)
    assert notes.count("nightly") == 2
    assert "Stays attached" in notes
    server.refresh_from_db()
    assert (server.name, server.description) == ("github", "")
    assert fields_of(text, "server-form")["name"] == ["gh"]


def test_the_button_of_the_question_renames_and_keeps_unseen_values(
    server: Server, administrator_client: Client
) -> None:
    """E07."""
    data = {**opened(administrator_client, server), "name": ["gh"]}
    text = administrator_client.post(address(server), data).content.decode()
    [button] = re.findall(r'<button[^>]*name="renaming_confirmed" value="(.*?)">', text)
    before = bytes(Server.objects.get().private)
    again = {**fields_of(text, "server-form"), "renaming_confirmed": button}
    assert administrator_client.post(address(server), again).status_code == 303
    server.refresh_from_db()
    assert (server.name, bytes(server.private)) == ("gh", before)


def test_a_name_that_was_not_confirmed_is_asked_about_again(
    server: Server, administrator_client: Client
) -> None:
    data = {**opened(administrator_client, server), "name": ["third"], "renaming_confirmed": "gh"}
    response = administrator_client.post(address(server), data)
    assert response.status_code == 422
    assert "Rename github to third?" in response.content.decode()


def test_enter_in_a_field_does_not_confirm(server: Server, administrator_client: Client) -> None:
    """Browsers press the first button of a form then."""
    data = {**opened(administrator_client, server), "name": ["gh"]}
    text = administrator_client.post(address(server), data).content.decode()
    form = text[text.index('<form id="server-form"') :]
    first = re.search(r'<button[^>]*type="submit"[^>]*>', form)
    assert first is not None
    assert "renaming_confirmed" not in first[0]


def test_any_other_change_is_not_asked_about(server: Server, administrator_client: Client) -> None:
    data = {**opened(administrator_client, server), "description": ["New"]}
    assert administrator_client.post(address(server), data).status_code == 303


def test_a_server_that_nothing_knows_is_renamed_at_once(administrator_client: Client) -> None:
    server = http_server()
    data = {**opened(administrator_client, server), "name": ["gh"]}
    assert administrator_client.post(address(server), data).status_code == 303
    server.refresh_from_db()
    assert server.name == "gh"


def test_a_bad_new_name_is_an_error_and_no_question(
    server: Server, administrator_client: Client
) -> None:
    data = {**opened(administrator_client, server), "name": ["no good"]}
    text = administrator_client.post(address(server), data).content.decode()
    assert "can hold only letters" in text
    assert "Rename github" not in text
