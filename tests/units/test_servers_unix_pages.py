"""Unix sockets in the form and the list (U12)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from servers import checks
from servers.models import Server
from servers.services import read_private
from tests.fakes.server_rows import http_server, unix_server
from tests.units.forms_of_pages import fields_of
from umpteenth.core.config import NetworkOptions

pytestmark = pytest.mark.django_db

CREATE = reverse("servers:create")
UNIX: dict[str, Any] = {
    "name": "engine",
    "transport": "unix",
    "socket_path": "/run/engine/mcp.sock",
    "uri": "http://localhost/rpc",
    "url": "https://left-over.example/",
    "header_name": ["X-Team"],
    "header_value": ["search"],
}


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


@pytest.fixture
def no_private_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    options = settings.OPTIONS.model_copy(
        update={"network": NetworkOptions(allow_private_targets=False)}
    )
    monkeypatch.setattr(settings, "OPTIONS", options)


def test_a_server_at_a_socket_is_saved_with_its_uri_and_headers(
    administrator_client: Client,
) -> None:
    assert administrator_client.post(CREATE, UNIX).status_code == 303
    server = Server.objects.get()
    assert (server.transport, server.socket_path, server.url) == (
        "unix",
        "/run/engine/mcp.sock",
        "http://localhost/rpc",
    )
    assert read_private(server).headers == (("X-Team", "search"),)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("socket_path", "", "Enter the path of the socket"),
        ("socket_path", "~/mcp.sock", "Write the whole path"),
        ("socket_path", f"/{'x' * 108}", "109 bytes"),
        ("socket_path", "/run/engine/", "This is a directory"),
        ("uri", "", "Enter the address that is used over the socket"),
        ("uri", "localhost/rpc", "must begin with https:// or http://"),
        ("uri", "http://me:pw@localhost/", "user name or password"),
        ("uri", "http://localhost/#x", "# part"),
    ],
)
def test_errors_stand_under_the_fields_of_the_socket(
    field: str, value: str, words: str, administrator_client: Client
) -> None:
    response = administrator_client.post(CREATE, {**UNIX, field: value})
    text = response.content.decode()
    assert response.status_code == 422
    [sentence] = re.findall(rf'id="id_{field}-error">\s*<p>.*?</svg>(.*?)</p>', text, flags=re.S)
    assert words in sentence
    assert fields_of(text, "server-form")[field] == [value]
    assert not Server.objects.exists()


def test_the_form_saved_as_it_was_opened_changes_nothing(administrator_client: Client) -> None:
    """E07, E08."""
    unix_server(headers={"X-Api-Key": "canary-1"}, url="http://localhost/rpc?key=canary-2")
    before = Server.objects.values().get()
    address = reverse("servers:edit", args=[before["id"]])
    text = administrator_client.get(address).content.decode()
    assert "canary" not in text
    response = administrator_client.post(address, fields_of(text, "server-form"))
    assert response.status_code == 303
    assert Server.objects.values().get() == before


def test_a_kept_value_does_not_follow_to_another_socket(administrator_client: Client) -> None:
    server = unix_server(headers={"X-Api-Key": "canary-1"})
    address = reverse("servers:edit", args=[server.pk])
    text = administrator_client.get(address).content.decode()
    data = {**fields_of(text, "server-form"), "socket_path": "/run/other.sock"}
    response = administrator_client.post(address, data)
    assert response.status_code == 422
    assert "enter this value again" in response.content.decode()


def test_where_private_targets_are_off_the_choice_says_so(
    administrator_client: Client, no_private_targets: None
) -> None:
    text = administrator_client.get(CREATE).content.decode()
    [choice] = re.findall(r'<input[^>]*value="unix"[^>]*>', text)
    assert " disabled" in choice
    assert "network.allow_private_targets is false" in text
    response = administrator_client.post(CREATE, UNIX)
    assert response.status_code == 422
    assert "Unix sockets are switched off here" in response.content.decode()
    assert not Server.objects.exists()


def test_an_existing_one_can_still_be_opened_there(
    administrator_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = unix_server()
    options = settings.OPTIONS.model_copy(
        update={"network": NetworkOptions(allow_private_targets=False)}
    )
    monkeypatch.setattr(settings, "OPTIONS", options)
    text = administrator_client.get(reverse("servers:edit", args=[server.pk])).content.decode()
    [choice] = re.findall(r'<input[^>]*value="unix"[^>]*>', text)
    assert " checked" in choice
    assert " disabled" not in choice


def test_members_do_not_add_sockets(member_client: Client) -> None:
    assert member_client.post(CREATE, UNIX).status_code == 403
    assert not Server.objects.exists()


def test_the_list_shows_the_socket_and_finds_it(member_client: Client) -> None:
    unix_server()
    http_server()
    text = member_client.get(reverse("servers:list"), {"q": "engine/mcp"}).content.decode()
    assert "Unix socket" in text
    assert 'title="/run/engine/mcp.sock http://localhost/mcp"' in text
    assert "github" not in text


def test_an_outdated_form_shows_another_socket(administrator_client: Client) -> None:
    server = unix_server()
    address = reverse("servers:edit", args=[server.pk])
    data = fields_of(administrator_client.get(address).content.decode(), "server-form")
    Server.objects.update(socket_path="/run/theirs.sock", version=2)
    response = administrator_client.post(address, {**data, "uri": ["http://localhost/x"]})
    found = {item.label: (item.theirs, item.yours) for item in response.context["differences"]}
    assert found == {
        "Socket": ("/run/theirs.sock", "/run/engine/mcp.sock"),
        "URI": ("http://localhost/mcp", "http://localhost/x"),
    }
