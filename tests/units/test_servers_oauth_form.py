"""The part "OAuth client" of the form (P56-P58)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from servers import checks
from servers.models import Server
from servers.services import read_private
from tests.fakes.server_rows import http_server, stdio_server
from tests.units.conftest import SetAppUrl
from tests.units.forms_of_pages import Fields, fields_of

pytestmark = pytest.mark.django_db

CREATE = reverse("servers:create")
NEW = {"name": "github", "transport": "http", "url": "https://api.example.org/mcp"}
REFERENCE = "{{secret:CLIENT_SECRET}}"
LITERAL = "canary-of-a-client-secret"
KEY = "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----"
PART = {"oauth-kind": "person", "oauth-client_id": "me", "oauth-scopes": "read write"}


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


def edit_address(server: Server) -> str:
    return reverse("servers:edit", args=[server.pk])


def form_of(client: Client, server: Server) -> str:
    return client.get(edit_address(server)).content.decode()


def part(html: str) -> str:
    return html[html.index('id="oauth"') : html.index('id="advanced"')]


def sent(client: Client, server: Server, **changes: str) -> Any:
    """The form as it was opened, with these changes."""
    fields: Fields = fields_of(form_of(client, server), "server-form")
    return client.post(edit_address(server), {**fields, **changes})


def with_client(client: Client, secret: str = "", **changes: str) -> Server:
    """A server whose client somebody has entered in the form."""
    server = http_server()
    response = sent(client, server, **{**PART, "oauth-client_secret": secret, **changes})
    assert response.status_code == 303, response.content.decode()
    server.refresh_from_db()
    return server


def is_open(html: str) -> bool:
    return re.search(r'id="oauth"[^>]*\sopen>', html) is not None


def test_the_callback_url_stands_there_once_the_server_exists(
    administrator_client: Client,
) -> None:
    """P40, P56: to be copied, as the provider wants to know it."""
    server = http_server()
    path = reverse("servers_api:oauth_callback", args=[server.pk])
    html = part(form_of(administrator_client, server))
    assert f'value="http://testserver{path}" readonly' in html
    assert 'data-copy-from="#callback-url"' in html
    new = part(administrator_client.get(CREATE).content.decode())
    assert "It is known once the server is saved" in new
    assert "callback-url" not in new


def test_the_callback_url_follows_app_url_and_warns_where_the_browser_is_elsewhere(
    administrator_client: Client, set_app_url: SetAppUrl
) -> None:
    """P40: the login would come back without a session."""
    server = http_server()
    set_app_url("https://ump.example.org")
    html = part(form_of(administrator_client, server))
    path = reverse("servers_api:oauth_callback", args=[server.pk])
    assert f'value="https://ump.example.org{path}"' in html
    assert "Open Umpteenth at https://ump.example.org and log in there" in html
    assert "http://testserver" in html
    same = administrator_client.get(
        edit_address(server), headers={"host": "ump.example.org"}, secure=True
    )
    assert "Open Umpteenth at" not in same.content.decode()


@pytest.mark.parametrize("kind", ["person", "machine"])
def test_what_does_not_concern_the_kind_of_login_is_hidden(
    kind: str, administrator_client: Client
) -> None:
    """Nobody comes back from a provider to which the client goes by itself."""
    server = with_client(administrator_client, REFERENCE, **{"oauth-kind": kind})
    html = part(form_of(administrator_client, server))
    hidden = re.findall(r'data-of-kind="(\w+)" hidden>', html)
    shown = re.findall(r'data-of-kind="(\w+)">', html)
    assert set(shown) == {kind}
    assert set(hidden) == {"person", "machine"} - {kind}
    callback = re.search(r'class="mb-3 oauth-callback"[^>]*>', html)
    assert callback is not None
    assert ("hidden" in callback[0]) == (kind == "machine")


def test_a_client_is_stored_and_shown_again(administrator_client: Client) -> None:
    """P57, P58: a reference is shown, since it is none of the secret."""
    server = with_client(administrator_client, REFERENCE)
    assert (server.oauth_client_id, server.oauth_scopes) == ("me", "read write")
    assert read_private(server).client_secret == REFERENCE
    html = part(form_of(administrator_client, server))
    assert REFERENCE in html
    assert 'data-secret-for="id_oauth-client_secret"' in html
    assert "Client ID, secret, scopes" in html


def test_a_new_server_gets_its_client_at_once(administrator_client: Client) -> None:
    response = administrator_client.post(CREATE, {**NEW, **PART, "oauth-client_secret": LITERAL})
    assert response.status_code == 303
    server = Server.objects.get()
    assert server.oauth_client_id == "me"
    assert read_private(server).client_secret == LITERAL


@pytest.mark.parametrize("secret", [LITERAL, KEY])
def test_a_stored_secret_is_never_sent_to_a_browser_and_kept(
    secret: str, administrator_client: Client
) -> None:
    """E07."""
    server = with_client(administrator_client, secret)
    html = form_of(administrator_client, server)
    assert "canary" not in html
    assert "Stored, not shown; type to replace it" in part(html)
    assert sent(administrator_client, server, description="Other").status_code == 303
    server.refresh_from_db()
    assert read_private(server).client_secret.replace("\r\n", "\n") == secret


def test_a_stored_secret_is_replaced_by_what_is_typed_and_forgotten_by_a_tick(
    administrator_client: Client,
) -> None:
    server = with_client(administrator_client, LITERAL)
    assert "oauth-forget_secret" in form_of(administrator_client, server)
    sent(administrator_client, server, **{"oauth-client_secret": REFERENCE})
    assert read_private(Server.objects.get()).client_secret == REFERENCE
    assert "oauth-forget_secret" not in form_of(administrator_client, server)
    sent(administrator_client, server, **{"oauth-client_secret": LITERAL})
    sent(administrator_client, server, **{"oauth-forget_secret": "on"})
    server.refresh_from_db()
    assert read_private(server).client_secret == ""
    assert server.oauth_client_id == "me"


def test_an_emptied_reference_is_gone(administrator_client: Client) -> None:
    """P57: empty for a public client."""
    server = with_client(administrator_client, REFERENCE)
    sent(administrator_client, server, **{"oauth-client_secret": ""})
    assert read_private(Server.objects.get()).client_secret == ""


def test_a_form_without_the_part_keeps_the_client(administrator_client: Client) -> None:
    """What an older page or a program sends says nothing of it."""
    server = with_client(administrator_client, LITERAL)
    fields = fields_of(form_of(administrator_client, server), "server-form")
    old = {name: value for name, value in fields.items() if not name.startswith("oauth-")}
    response = administrator_client.post(edit_address(server), {**old, "description": "Other"})
    assert response.status_code == 303
    server.refresh_from_db()
    assert (server.description, server.oauth_client_id) == ("Other", "me")
    assert read_private(server).client_secret == LITERAL


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("client_id", "a\x7fb", "contains a character that no client ID can hold"),
        ("client_secret", "{{secret:}}", "secret"),
        ("scopes", "read,write, more,", "not by commas"),
        ("kind", "robot", "Choose who logs in"),
    ],
)
def test_what_is_wrong_stands_under_its_field_in_an_open_part(
    field: str, value: str, sentence: str, administrator_client: Client
) -> None:
    server = http_server()
    response = sent(administrator_client, server, **{**PART, f"oauth-{field}": value})
    html = response.content.decode()
    assert response.status_code == 422
    assert is_open(html)
    [error] = re.findall(rf'id="id_oauth-{field}-error">(.*?)</div>', part(html), flags=re.S)
    assert sentence in error


def test_a_client_that_logs_in_by_itself_needs_its_secret(administrator_client: Client) -> None:
    server = http_server()
    machine = {**PART, "oauth-kind": "machine", "oauth-client_id": "me"}
    response = sent(administrator_client, server, **machine)
    assert response.status_code == 422
    assert "needs its client secret" in part(response.content.decode())
    sent(administrator_client, server, **machine, **{"oauth-client_secret": REFERENCE})
    server.refresh_from_db()
    assert server.oauth_kind == "machine"
    html = part(form_of(administrator_client, server))
    assert re.search(r'name="oauth-kind" value="machine" checked', html)
    assert "logs in by itself" in html


def test_the_part_is_folded_until_something_is_set(administrator_client: Client) -> None:
    assert not is_open(administrator_client.get(CREATE).content.decode())
    assert not is_open(form_of(administrator_client, http_server("plain")))
    assert is_open(form_of(administrator_client, with_client(administrator_client)))


def test_other_transports_have_no_client(administrator_client: Client) -> None:
    """Its fields are on the page for whoever changes the transport, and are not read."""
    server = stdio_server()
    assert 'id="oauth" data-for="http"' in form_of(administrator_client, server)
    assert sent(administrator_client, server, **PART).status_code == 303
    server.refresh_from_db()
    assert server.oauth_client_id == ""


def test_an_outdated_form_shows_what_it_would_overwrite(administrator_client: Client) -> None:
    """Secrets are only called hidden."""
    server = with_client(administrator_client, LITERAL)
    fields = fields_of(form_of(administrator_client, server), "server-form")
    sent(administrator_client, server, **{"oauth-client_id": "theirs", "oauth-scopes": "admin"})
    changes = {
        "oauth-client_id": "mine",
        "oauth-client_secret": "another-canary",
        "oauth-kind": "robot",
    }
    response = administrator_client.post(edit_address(server), {**fields, **changes})
    html = response.content.decode()
    assert response.status_code == 422
    notice = html[html.index("changed this server") : html.index('id="id_name"')]
    words = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", notice))
    for difference in ("Client ID", "theirs", "mine", "admin", "read write", "Client secret"):
        assert difference in words
    assert "canary" not in words
    assert "a hidden value" in words
    assert "a new value" in words
