"""The addresses of logins, as browsers and programs meet them (issue 4, section 3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from servers import checks
from servers.models import Check, Login, PendingLogin, Server
from tests.fakes.mcp_http import running
from tests.fakes.oauth_server import OAuthServer, Variant
from tests.fakes.oauth_steps import added_server
from tests.fakes.server_rows import stdio_server
from tests.units.conftest import ClientFor, SetAppUrl
from umpteenth.accounts.models import User
from umpteenth.accounts.tokens import create_token

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
LIST = "/servers/"


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer()) as server:
        yield server


def at(name: str, server: Server) -> str:
    return reverse(f"servers_api:{name}", args=[server.pk])


def start(
    client: Client, server: Server, headers: dict[str, str] | None = None, **data: str
) -> str:
    response = client.post(at("oauth_login", server), data, headers={**BROWSER, **(headers or {})})
    assert response.status_code == 303, response.content
    return str(response["Location"])


def come_back(client: Client, back: str) -> Any:
    """The browser follows the provider's redirect."""
    parts = urlsplit(back)
    return client.get(f"{parts.path}?{parts.query}", headers=BROWSER)


def toast(response: Any) -> str:
    """The newest one that waits."""
    return [str(message) for message in get_messages(response.wsgi_request)][-1]


def test_a_login_from_button_to_tools(fake: OAuthServer, administrator_client: Client) -> None:
    """P38, P39: toast, test dialog, and no parameter of the answer in the address."""
    server = added_server(fake)
    address = start(administrator_client, server)
    assert address.startswith(fake.endpoint("authorize"))
    response = come_back(administrator_client, fake.visit(address))
    check = Check.objects.get(server=server)
    assert response.status_code == 303
    assert response["Location"] == f"{LIST}?check={check.pk}"
    assert toast(response) == "Logged in to notes."
    assert Login.objects.filter(server=server).exists()
    page = administrator_client.get(response["Location"]).content.decode()
    state = dict(parse_qsl(urlsplit(address).query))["state"]
    assert not [secret for secret in (state, *fake.grants.secrets) if secret in page]


def test_htmx_is_told_where_to_go(fake: OAuthServer, administrator_client: Client) -> None:
    """A redirect would be followed by the script, which the provider does not let in."""
    response = administrator_client.post(at("oauth_login", added_server(fake)), headers=HTMX)
    assert response.status_code == 200
    assert response["HX-Redirect"].startswith(fake.endpoint("authorize"))


def test_where_the_browser_comes_back_to_is_where_it_is(
    fake: OAuthServer, administrator_client: Client
) -> None:
    """P40: the path word for word."""
    server = added_server(fake)
    address = start(administrator_client, server)
    query = dict(parse_qsl(urlsplit(address).query))
    path = f"/api/mcp-servers/{server.pk}/oauth/callback"
    assert query["redirect_uri"] == f"http://testserver{path}"


@pytest.mark.parametrize(
    ("headers", "works"),
    [
        ({"Origin": "https://ump.example.org", "Host": "ump.example.org"}, True),
        # TLS ends at a proxy that the configuration does not name.
        ({"Host": "ump.example.org"}, True),
        ({"Origin": "https://ump.example.org:443", "Host": "ump.example.org"}, True),
        ({"Origin": "http://10.0.0.5:8080", "Host": "10.0.0.5:8080"}, False),
        ({"Host": "10.0.0.5:8080"}, False),
        ({"Origin": "http://ump.example.org", "Host": "ump.example.org"}, False),
    ],
    ids=str,
)
def test_a_browser_at_another_address_than_app_url_is_told_before_it_leaves(
    headers: dict[str, str],
    works: bool,
    fake: OAuthServer,
    administrator_client: Client,
    set_app_url: SetAppUrl,
) -> None:
    """P40: it would come back without its session."""
    set_app_url("https://ump.example.org")
    server = added_server(fake)
    address = start(administrator_client, server, headers)
    if works:
        query = dict(parse_qsl(urlsplit(address).query))
        assert query["redirect_uri"].startswith("https://ump.example.org/api/mcp-servers/")
        return
    assert address == LIST
    assert fake.count("register") == 0
    page = administrator_client.get(LIST, headers={"Host": "ump.example.org"}).content.decode()
    assert "Open Umpteenth at https://ump.example.org and log in there" in page


def test_what_fails_before_the_provider_is_a_toast(administrator_client: Client) -> None:
    """P55, on the page that asked."""
    with running(OAuthServer(Variant(registration="none"))) as fake:
        server = added_server(fake)
        sheet = reverse("servers:detail", args=[server.pk])
        address = at("oauth_login", server)
        response = administrator_client.post(address, {"next": sheet}, headers=BROWSER)
    assert response["Location"] == sheet
    assert toast(response).startswith(
        "Login to notes failed: the authorization server doesn't support dynamic client "
        "registration, so the server needs an OAuth client ID."
    )


def test_a_program_gets_the_reason_as_json(administrator_client: Client) -> None:
    with running(OAuthServer(Variant(registration="none"))) as fake:
        response = administrator_client.post(at("oauth_login", added_server(fake)))
    assert response.status_code == 422
    assert "needs an OAuth client ID" in response.json()["detail"]


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "servers/", "\n//x"]
)
def test_errors_lead_to_no_other_site(target: str, administrator_client: Client) -> None:
    server = stdio_server()
    address = at("oauth_login", server)
    response = administrator_client.post(address, {"next": target}, headers=BROWSER)
    assert response["Location"] == LIST


def test_servers_without_logins_say_so(administrator_client: Client) -> None:
    """P35, P51."""
    response = administrator_client.post(at("oauth_login", stdio_server()), headers=BROWSER)
    assert toast(response).endswith(" failed: Only servers over HTTP have logins.")


@pytest.mark.parametrize("name", ["oauth_login", "oauth_logout"])
def test_members_learn_whom_to_ask(name: str, fake: OAuthServer, member_client: Client) -> None:
    response = member_client.post(at(name, added_server(fake)), headers=BROWSER)
    assert response.status_code == 403
    assert "Ask an administrator to log in." in response.content.decode()
    assert not PendingLogin.objects.exists()


@pytest.mark.parametrize("name", ["oauth_login", "oauth_logout", "oauth_callback"])
def test_an_api_token_neither_begins_nor_ends_a_login(
    name: str, fake: OAuthServer, alice: User
) -> None:
    """P41: 403 with a plain sentence."""
    text = create_token(owner=alice, name="ci", actor=alice)[1]
    headers = {"Authorization": f"Bearer {text}"}
    client = Client()
    send = client.get if name == "oauth_callback" else client.post
    response = send(at(name, added_server(fake)), headers=headers)
    assert response.status_code == 403
    assert "An API token can neither begin nor end a login" in response.json()["detail"]
    assert not PendingLogin.objects.exists()


def test_another_site_cannot_begin_a_login(fake: OAuthServer, alice: User) -> None:
    """CSRF-checked: nobody is sent to a provider by a page of somebody else."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    response = client.post(at("oauth_login", added_server(fake)), headers=BROWSER)
    assert response.status_code == 403
    assert fake.counts.total() == 0


def test_signed_out_the_answer_is_a_page_that_says_what_to_do(
    fake: OAuthServer, administrator_client: Client
) -> None:
    """I08: nothing is consumed, and no code ends up in an address to sign in."""
    server = added_server(fake)
    back = fake.visit(start(administrator_client, server))
    response = come_back(Client(), back)
    assert response.status_code == 403
    assert "Sign in, and start the login again" in response.content.decode()
    assert "location" not in response
    code = dict(parse_qsl(urlsplit(back).query))["code"]
    assert code not in response.content.decode()
    assert come_back(administrator_client, back)["Location"].startswith(f"{LIST}?check=")


def test_signed_in_anew_the_answer_is_of_another_session(
    fake: OAuthServer, administrator_client: Client, alice: User
) -> None:
    """I08."""
    server = added_server(fake)
    back = fake.visit(start(administrator_client, server))
    administrator_client.logout()
    administrator_client.force_login(alice)
    response = come_back(administrator_client, back)
    assert response["Location"] == LIST
    assert "another browser" in toast(response)
    assert fake.count("token") == 0


def test_another_persons_answer_is_refused(
    fake: OAuthServer, administrator_client: Client, member_client: Client
) -> None:
    """I08: second person's callback."""
    server = added_server(fake)
    back = fake.visit(start(administrator_client, server))
    response = come_back(member_client, back)
    assert "Only administrators" in toast(response)
    assert PendingLogin.objects.exists()


def test_an_answer_that_is_sent_again_changes_nothing(
    fake: OAuthServer, administrator_client: Client
) -> None:
    """I07: replayed callback, such as a reloaded page."""
    server = added_server(fake)
    back = fake.visit(start(administrator_client, server))
    come_back(administrator_client, back)
    login = Login.objects.get()
    response = come_back(administrator_client, back)
    assert response["Location"] == LIST
    assert "finished already" in toast(response)
    assert Login.objects.get().version == login.version


def test_a_denial_comes_back_as_a_toast_without_markup(administrator_client: Client) -> None:
    """I07: the description is shown as text."""
    variant = Variant(decision="access_denied", error_description="<script>alert(1)</script>")
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        response = come_back(administrator_client, fake.visit(start(administrator_client, server)))
    assert response["Location"] == LIST
    page = administrator_client.get(LIST).content.decode()
    sheet = administrator_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    assert "Login to notes failed: The login was not approved at 127.0.0.1" in page
    assert "The login was not approved at 127.0.0.1" in sheet
    for html in (page, sheet):
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html


def test_the_provider_may_be_visited_once_more(administrator_client: Client) -> None:
    """invalid_scope: the browser goes on by itself."""
    variant = Variant(resource_scopes=("odd",), refuses_scopes=True)
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        again = come_back(administrator_client, fake.visit(start(administrator_client, server)))
        assert again["Location"].startswith(fake.endpoint("authorize"))
        come_back(administrator_client, fake.visit(again["Location"]))
    assert Login.objects.exists()


def test_a_test_that_was_begun_without_the_login_is_not_the_one_that_is_shown(
    fake: OAuthServer, administrator_client: Client
) -> None:
    """P39: the dialog shows what the login has unlocked."""
    server = added_server(fake)
    before = checks.request_check(server, actor=None)
    response = come_back(administrator_client, fake.visit(start(administrator_client, server)))
    assert response["Location"] != f"{LIST}?check={before.pk}"
    assert Check.objects.count() == 2


def test_log_out_leads_back_to_where_it_was_asked(
    fake: OAuthServer, administrator_client: Client
) -> None:
    """P52."""
    server = added_server(fake)
    come_back(administrator_client, fake.visit(start(administrator_client, server)))
    sheet = reverse("servers:detail", args=[server.pk])
    address = at("oauth_logout", server)
    response = administrator_client.post(address, {"next": sheet}, headers=BROWSER)
    assert (response.status_code, response["Location"]) == (303, sheet)
    assert toast(response) == "Logged out of notes."
    assert not Login.objects.exists()
    response = administrator_client.post(address, headers=HTMX)
    assert response["HX-Redirect"] == LIST
    assert "Nobody was logged in" in toast(response)


@pytest.mark.parametrize("method", ["get", "head", "put", "delete"])
def test_a_login_is_begun_by_a_form_alone(
    method: str, fake: OAuthServer, administrator_client: Client
) -> None:
    """A link or an image cannot send anybody off."""
    response = getattr(administrator_client, method)(at("oauth_login", added_server(fake)))
    assert response.status_code == 405
    assert fake.counts.total() == 0


def test_register_again_is_a_field_of_the_form(
    fake: OAuthServer, administrator_client: Client
) -> None:
    """A29."""
    server = added_server(fake)
    start(administrator_client, server)
    start(administrator_client, server, register_again="on")
    assert fake.count("register") == 2


def test_the_client_document_is_public_where_umpteenth_is(
    client: Client, fake: OAuthServer, set_app_url: SetAppUrl
) -> None:
    """draft-ietf-oauth-client-id-metadata-document: the address is the client's ID."""
    server = added_server(fake)
    address = at("oauth_client", server)
    assert client.get(address).status_code == 404
    set_app_url("https://ump.example.org")
    response = client.get(address)
    document = json.loads(response.content)
    assert document["client_id"] == f"https://ump.example.org{address}"
    assert document["client_name"] == "Umpteenth"
    assert document["redirect_uris"] == [f"https://ump.example.org{at('oauth_callback', server)}"]
    assert response["Content-Type"] == "application/json"
    assert response["Cache-Control"] == "public, max-age=3600"
    assert "sessionid" not in response.cookies


@pytest.mark.parametrize("url", ["http://ump.example.org", "https://localhost", "https://10.1.2.3"])
def test_where_no_provider_could_read_it_there_is_no_client_document(
    url: str, client: Client, fake: OAuthServer, set_app_url: SetAppUrl
) -> None:
    set_app_url(url)
    assert client.get(at("oauth_client", added_server(fake))).status_code == 404


def test_servers_without_logins_have_no_client_document(
    client: Client, set_app_url: SetAppUrl
) -> None:
    set_app_url("https://ump.example.org")
    assert client.get(at("oauth_client", stdio_server())).status_code == 404


def test_a_provider_that_reads_client_documents_is_given_ours(
    administrator_client: Client, set_app_url: SetAppUrl
) -> None:
    """Issue 4, section 2: before dynamic registration."""
    set_app_url("https://ump.example.org")
    variant = Variant(
        takes_client_documents=True, metadata={"client_id_metadata_document_supported": True}
    )
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        address = start(administrator_client, server, {"Host": "ump.example.org"})
        assert fake.count("register") == 0
    query = dict(parse_qsl(urlsplit(address).query))
    assert query["client_id"] == f"https://ump.example.org{at('oauth_client', server)}"


def test_servers_that_are_gone_have_no_login(
    administrator_client: Client, client_for: ClientFor
) -> None:
    server = stdio_server()
    addresses = [at(name, server) for name in ("oauth_login", "oauth_logout")]
    server.delete()
    for address in addresses:
        assert administrator_client.post(address).status_code == 404
