"""Adding and editing a server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from servers import checks, services
from servers.definition import Entry
from servers.forms.server import ServerForm
from servers.models import Check, Server
from servers.services import read_private, update_server
from tests.fakes.server_rows import after_success, http_data, http_server, stdio_server
from tests.units.forms_of_pages import Fields
from tests.units.forms_of_pages import fields_of as sent_by

pytestmark = pytest.mark.django_db

CREATE = reverse("servers:create")


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


def edit_address(server: Server) -> str:
    return reverse("servers:edit", args=[server.pk])


def fields_of(html: str) -> Fields:
    return sent_by(html, "server-form")


def opened(client: Client, server: Server) -> dict[str, Any]:
    return dict(fields_of(client.get(edit_address(server)).content.decode()))


STDIO: dict[str, Any] = {
    "name": "everything",
    "transport": "stdio",
    "command": "npx",
    "arg": ["-y", "server-everything", ""],
    "env_name": ["KEY", ""],
    "env_value": ["{{secret:KEY}}", ""],
    "env_kept": ["", ""],
    "env_digest": ["", ""],
}


def test_stdio_is_preset_and_all_transports_are_explained(administrator_client: Client) -> None:
    """P2, P9, P18."""
    text = administrator_client.get(CREATE).content.decode()
    assert fields_of(text)["transport"] == ["stdio"]
    choices = re.findall(
        r'name="transport" value="(\w+)".*?<strong>([\w ]+)</strong>', text, flags=re.S
    )
    assert choices == [("stdio", "stdio"), ("http", "HTTP"), ("unix", "Unix socket")]
    assert "Take this when a service offers both" in text


def test_what_must_be_filled_in_is_marked(administrator_client: Client) -> None:
    text = administrator_client.get(CREATE).content.decode()
    assert re.findall(r'class="form-label required" for="id_(\w+)"', text) == [
        "name",
        "command",
        "url",
        "socket_path",
        "uri",
    ]


def test_the_form_asks_for_what_either_transport_needs(administrator_client: Client) -> None:
    """P10, P16, P19."""
    text = administrator_client.get(CREATE).content.decode()
    asked = re.sub(r"</?template[^>]*>", "", text)
    assert {"name", "transport", "url", "header_name", "header_value"} <= set(fields_of(asked))
    assert {"command", "arg", "env_name", "env_value"} <= set(fields_of(asked))
    for words in ("Headers", "Command", "Arguments", "Environment", "github, not gh-final-v2"):
        assert words in text


def test_a_new_server_is_saved_and_tested_at_once(administrator_client: Client) -> None:
    """P13: without script the test has a page of its own."""
    response = administrator_client.post(CREATE, STDIO)
    server = Server.objects.get()
    check = Check.objects.get()
    assert response.status_code == 303
    assert response["Location"] == reverse("servers:check", args=[check.pk])
    assert (server.args, check.server) == (["-y", "server-everything"], server)
    assert read_private(server).env == (("KEY", "{{secret:KEY}}"),)


def test_with_script_the_list_opens_the_dialog_of_the_test(administrator_client: Client) -> None:
    response = administrator_client.post(CREATE, STDIO, headers={"HX-Request": "true"})
    address = f"{reverse('servers:list')}?check={Check.objects.get().pk}&new=1"
    assert response["HX-Redirect"] == address
    assert "data-open-check" in administrator_client.get(address).content.decode()
    nonsense = administrator_client.get(reverse("servers:list"), {"check": "x"})
    assert "data-open-check" not in nonsense.content.decode()


def test_a_package_that_is_missing_is_asked_for_in_the_next_argument(
    administrator_client: Client,
) -> None:
    response = administrator_client.post(CREATE, {**STDIO, "arg": ["-y", ""]})
    text = response.content.decode()
    assert response.status_code == 422
    assert not Server.objects.exists()
    [row] = re.findall(r'<textarea[^>]*aria-describedby="arg-2-error"[^>]*></textarea>', text)
    assert 'aria-invalid="true"' in row
    assert "npx needs a package to start: name it as an argument" in text


def test_errors_stand_under_their_fields_and_nothing_typed_is_lost(
    administrator_client: Client,
) -> None:
    data = {
        **STDIO,
        "name": "no good",
        "env_name": ["1X", "Y"],
        "env_value": ["typed", ""],
        "url": "https://h.example/",
        "header_name": ["X"],
        "header_value": ["kept as well"],
    }
    response = administrator_client.post(CREATE, data)
    text = response.content.decode()
    assert response.status_code == 422
    assert not Server.objects.exists()
    assert "can hold only letters, digits, _ and -" in text
    assert "no digit at first" in text
    assert text.count('aria-invalid="true"') == 2
    again = fields_of(text)
    assert again["env_value"][0] == "typed"
    assert again["url"] == ["https://h.example/"]
    assert again["header_value"][0] == "kept as well"


def test_a_name_that_exists_is_refused_under_its_field(administrator_client: Client) -> None:
    stdio_server()
    response = administrator_client.post(CREATE, STDIO)
    assert "exists already" in response.content.decode()
    assert Server.objects.count() == 1


def test_the_edit_form_never_holds_a_literal_value(administrator_client: Client) -> None:
    """E07: references are shown as they are."""
    headers = {"X-Api-Key": "canary-1", "Authorization": "Bearer {{secret:TOKEN}}"}
    server = http_server(headers=headers, url="https://h.example/mcp?key=canary-2")
    text = administrator_client.get(edit_address(server)).content.decode()
    assert "canary" not in text
    assert "Bearer {{secret:TOKEN}}" in text
    assert "Stored, not shown" in text
    assert "has a query" in text


def test_saving_the_form_as_it_was_opened_changes_nothing(administrator_client: Client) -> None:
    """E07, E08."""
    headers = {"X-Api-Key": "canary-1", "Authorization": "Bearer {{secret:TOKEN}}"}
    server = http_server(headers=headers, url="https://h.example/mcp?key=canary-2")
    before = Server.objects.values().get()
    response = administrator_client.post(edit_address(server), opened(administrator_client, server))
    assert response.status_code == 303
    assert Server.objects.values().get() == before


def test_a_stdio_server_saved_as_it_was_opened_stays_byte_for_byte(
    administrator_client: Client,
) -> None:
    """E08: empty arguments, line breaks and blanks included."""
    args = ("-y", "", "a\nb", " c ", '""x')
    server = stdio_server(args=args, env={"EMPTY": "", "PEM": "-----\nline\n-----\n"})
    before = Server.objects.values().get()
    data = opened(administrator_client, server)
    data["arg"] = [text.replace("\n", "\r\n") for text in data["arg"]]
    administrator_client.post(edit_address(server), data)
    assert Server.objects.values().get() == before


def test_only_the_changed_field_changes(administrator_client: Client) -> None:
    server = after_success(http_server(headers={"X-Api-Key": "canary-1"}), "echo")
    data = {**opened(administrator_client, server), "description": "New"}
    administrator_client.post(edit_address(server), data)
    saved = Server.objects.get()
    assert (saved.description, saved.tool_count, saved.state) == ("New", 1, "connected")
    assert read_private(saved).headers == (("X-Api-Key", "canary-1"),)


def test_a_row_without_its_name_and_value_is_removed(administrator_client: Client) -> None:
    """Clearing is explicit: emptying the name works without script too."""
    server = http_server(headers={"X-Api-Key": "canary-1", "X-Two": "2"})
    data = opened(administrator_client, server)
    data["header_name"][0] = ""
    administrator_client.post(edit_address(server), data)
    assert read_private(Server.objects.get()).headers == (("X-Two", "2"),)


def test_the_stored_query_is_forgotten_only_when_asked(administrator_client: Client) -> None:
    server = http_server(url="https://h.example/mcp?key=canary-2")
    data = {**opened(administrator_client, server), "forget_query": "on"}
    administrator_client.post(edit_address(server), data)
    assert read_private(Server.objects.get()).query == ""


def test_an_outdated_form_is_refused_and_shows_both_values(administrator_client: Client) -> None:
    headers = {"X-Api-Key": "canary-1", "X-Ref": "{{secret:A}}", "X-Same": "same"}
    server = http_server(headers=headers, description="Old")
    data = {**opened(administrator_client, server), "description": "Mine"}
    entries = (
        Entry("X-Api-Key", "canary-theirs"),
        Entry("X-Ref", "{{secret:B}}"),
        Entry("X-Same", None, kept="X-Same"),
        Entry("X-New", "canary-new"),
    )
    theirs = http_data(description="Theirs", headers=entries)
    update_server(server, actor=None, data=theirs, version=1)
    response = administrator_client.post(edit_address(server), data)
    text = response.content.decode()
    assert response.status_code == 422
    assert "changed this server while you were editing it" in text
    assert "canary" not in text
    found = {item.label: (item.theirs, item.yours) for item in response.context["differences"]}
    assert found == {
        "Description": ("Theirs", "Mine"),
        "Header X-Api-Key": ("changed", "as it was"),
        "Header X-Ref": ("{{secret:B}}", "{{secret:A}}"),
        "Header X-New": ("a hidden value", "not there"),
    }
    assert Server.objects.get().description == "Theirs"
    again = administrator_client.post(edit_address(server), fields_of(text))
    assert again.status_code == 303
    saved = Server.objects.get()
    assert saved.description == "Mine"
    assert dict(read_private(saved).headers)["X-Api-Key"] == "canary-theirs"


def test_a_form_of_a_deleted_server_says_so(administrator_client: Client) -> None:
    server = http_server()
    data = opened(administrator_client, server)
    Server.objects.all().delete()
    response = administrator_client.post(edit_address(server), data)
    assert response.status_code == 404


def test_a_form_without_a_version_is_outdated(administrator_client: Client) -> None:
    server = http_server()
    data = {**opened(administrator_client, server), "version": "x"}
    assert administrator_client.post(edit_address(server), data).status_code == 422


def test_a_server_whose_key_is_lost_can_be_opened_and_saved(administrator_client: Client) -> None:
    """E09."""
    server = http_server(headers={"X-Api-Key": "canary-1"})
    Server.objects.update(key_id="gone")
    before = bytes(Server.objects.get().private)
    text = administrator_client.get(edit_address(server)).content.decode()
    assert "cannot be decrypted" in text
    data = {**fields_of(text), "description": "x"}
    assert administrator_client.post(edit_address(server), data).status_code == 303
    assert bytes(Server.objects.get().private) == before


def test_rows_of_unequal_length_are_no_error() -> None:
    from django.http import QueryDict

    form = ServerForm(QueryDict("transport=http&name=a&header_name=X&header_name=Y&header_value=1"))
    assert form.is_valid()
    assert [(row.name, row.value) for row in form.headers] == [("X", "1"), ("Y", "")]


def test_a_transport_that_is_none_is_refused_under_the_choice(administrator_client: Client) -> None:
    response = administrator_client.post(CREATE, {**STDIO, "transport": "pigeon"})
    assert response.status_code == 422
    assert 'id="id_transport-error"' in response.content.decode()
    assert not Server.objects.exists()


def test_a_server_that_is_deleted_while_it_is_saved_ends_on_the_list(
    administrator_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = http_server()
    data = opened(administrator_client, server)

    def too_late(*arguments: Any, **values: Any) -> Server:
        raise services.ServerGone("The server github was deleted meanwhile.")

    monkeypatch.setattr(services, "update_server", too_late)
    response = administrator_client.post(edit_address(server), data, follow=True)
    assert response.redirect_chain == [(reverse("servers:list"), 303)]
    assert "github was deleted meanwhile" in response.content.decode()
