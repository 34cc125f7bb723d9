"""What the sheet of a server tells of its login, and what it offers."""

from __future__ import annotations

import html as markup
import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from servers.models import Login, PendingLogin, Server
from tests.fakes.login_rows import ACCESS, REFRESH, advertised, logged_in, oauth_server
from tests.fakes.server_rows import after_success, changed, http_server, stdio_server
from tests.units.server_sheets import facts_of, plain, sheet
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def login_section(client: Client, server: Server) -> str:
    html = sheet(client, server)
    begin = html.index('aria-labelledby="login-title"')
    return markup.unescape(plain("<x " + html[begin : html.index("</section>", begin)]))


@pytest.fixture
def moment() -> Any:
    with time_machine.travel(timezone.now(), tick=False) as traveller:
        yield traveller


def test_the_sheet_tells_all_of_a_login_and_none_of_its_tokens(
    administrator_client: Client, administrator: User, moment: Any
) -> None:
    """P43; issue 4, section 2: the sheet says which client was used and why."""
    server = after_success(oauth_server(), "echo")
    login = logged_in(server, lasts=HOUR, logged_in_by=administrator)
    words = login_section(administrator_client, server)
    assert "auth.example.com" in words
    assert "Logged in just now by alice" in words
    assert "Ends in 1 h ; renewed by itself" in words
    assert "read write" in words
    assert "Registered by itself with the authorization server" in words
    assert "Log in again" in words
    assert "Log out" in words
    assert facts_of(administrator_client, server)["Auth"] == "OAuth"
    html = sheet(administrator_client, server)
    Login.objects.filter(pk=login.pk).update(expires_at=None, can_refresh=False)
    words = login_section(administrator_client, server)
    assert "The provider does not say when it ends ; the provider gave nothing to renew it" in words
    for secret in (ACCESS, REFRESH):
        assert secret not in html


def test_what_was_found_is_shown_with_its_addresses(member_client: Client) -> None:
    """Issue 4, section 1; U60: without the query, which may hold anything."""
    found = advertised(registration_endpoint="", revocation_endpoint="https://auth.example.com/r")
    raw = found.as_json() | {"resource_metadata_url": "https://h.example/doc?key=canary"}
    raw["challenge_scopes"] = ["read", "files"]
    raw["warnings"] = ["The provider does not say that it takes S256."]
    words = login_section(member_client, oauth_server(oauth_found=raw))
    assert "Resource https://api.example.org/mcp" in words
    assert "https://h.example/doc" in words
    assert "canary" not in words
    assert "https://auth.example.com/.well-known/oauth-authorization-server" in words
    assert "Next login Asks for read files" in words
    assert "It registers no clients" in words
    assert "so that the tokens end there as well" in words
    assert "The provider does not say that it takes S256." in words


def test_a_provider_without_documents_says_so(member_client: Client) -> None:
    """The default endpoints of revision 2025-03-26."""
    raw = advertised(metadata_url="").as_json() | {"resource_metadata_url": ""}
    assert "default ones of revision 2025-03-26" in login_section(
        member_client, oauth_server(oauth_found=raw)
    )


def test_what_another_version_has_found_breaks_no_page(member_client: Client) -> None:
    for raw in ({"provider": None}, {"resource": "x"}, {"provider": {"issuer": "x"}}):
        server = oauth_server(f"s{Server.objects.count()}", oauth_found=raw)
        assert member_client.get(reverse("servers:detail", args=[server.pk])).status_code == 200


def test_what_was_tried_in_vain_is_shown(member_client: Client) -> None:
    """A08: every address with its answer."""
    tried = "https://h/.well-known/x: 404 Not Found\nhttps://h/y: no JSON <html>"
    server = changed(http_server(), oauth_error=tried, state="login_required", last_error="401")
    html = sheet(member_client, server)
    assert "https://h/.well-known/x: 404 Not Found" in html
    assert "no JSON &lt;html&gt;" in html


def test_a_server_without_anything_of_logins_has_no_such_section(member_client: Client) -> None:
    for server in (stdio_server(), http_server()):
        assert "login-title" not in sheet(member_client, server)


def test_a_missing_client_is_told_before_somebody_tries(
    administrator_client: Client, member_client: Client
) -> None:
    """P55, word for word; with a Client ID nothing is missing."""
    sentence = (
        "he authorization server doesn't support dynamic client registration, so the server needs "
        "an OAuth client ID"
    )
    raw = advertised(registration_endpoint="").as_json()
    server = oauth_server(oauth_found=raw)
    html = sheet(administrator_client, server)
    assert sentence in markup.unescape(plain(html))
    assert f"{reverse('servers:edit', args=[server.pk])}#oauth" in html
    assert "An administrator can enter it." in login_section(member_client, server)
    changed(server, oauth_client_id="me")
    words = login_section(member_client, server)
    assert sentence not in words
    assert "The Client ID in this server's settings" in words


def test_a_login_that_is_over_says_why(member_client: Client, moment: Any) -> None:
    """P47: in the provider's own words."""
    server = oauth_server()
    words = "invalid_grant: <revoked>"
    logged_in(server, ended="refused", ended_at=timezone.now() - HOUR, ended_reason=words)
    assert "invalid_grant: &lt;revoked&gt;" in sheet(member_client, server)
    assert "Over since 1 h ago" in login_section(member_client, server)


def test_a_login_that_only_ran_out_says_what_that_means(member_client: Client) -> None:
    """P48."""
    server = oauth_server()
    logged_in(server, lasts=-HOUR, refresh=False)
    words = login_section(member_client, server)
    over = "The access token is over, and the provider gave no refresh token."
    assert f"{over} Runs that use the server fail until somebody logs in again." in words
    changed(server, has_authorization=True)
    assert "Runs that use the server fail" not in login_section(member_client, server)
    assert "Ends" not in words


def test_rights_that_calls_lacked_are_named_until_the_login_has_them(
    member_client: Client,
) -> None:
    """403 `insufficient_scope`."""
    server = oauth_server(oauth_wanted="write admin")
    login = logged_in(server)
    words = login_section(member_client, server)
    assert "Calls were refused for want of rights: admin ." in words
    assert "Next login Asks for write admin Client" in words
    Login.objects.filter(pk=login.pk).update(scopes="read write admin")
    assert "want of rights" not in login_section(member_client, server)


def test_a_failed_attempt_is_told_where_a_login_is_to_be_had(member_client: Client) -> None:
    """Not beside what is lacking, which is why it failed."""
    server = oauth_server(oauth_failure="It said no.", oauth_failed_at=timezone.now() - HOUR)
    told = "The last attempt to log in failed 1 h ago : It said no."
    assert told in login_section(member_client, server)
    lacking = advertised(registration_endpoint="").as_json()
    changed(server, oauth_found=lacking)
    assert told not in login_section(member_client, server)
    changed(server, oauth_client_id="ours", oauth_kind="machine")
    assert told not in login_section(member_client, server)


def test_scopes_of_the_settings_are_named_as_such(member_client: Client) -> None:
    """P58; not where calls have asked for more."""
    server = oauth_server(oauth_scopes="read files")
    assert "Asks for read files as the settings say" in login_section(member_client, server)
    changed(server, oauth_wanted="admin")
    words = login_section(member_client, server)
    assert "Asks for read files admin" in words
    assert "as the settings say" not in words


def test_a_login_that_is_not_used_says_so(administrator_client: Client) -> None:
    """P49: the header beats it; it can still be ended."""
    server = changed(oauth_server(), has_authorization=True)
    logged_in(server, lasts=DAY, refresh=False)
    words = login_section(administrator_client, server)
    assert "The login is kept and not used" in words
    assert "Log out" in words
    assert "data-login" not in sheet(administrator_client, server)
    assert "Log in again before that" not in words


def test_a_client_that_the_provider_may_have_forgotten_can_be_registered_again(
    administrator_client: Client, administrator: User
) -> None:
    """A29: offered where the login is in trouble, or one did not come back."""
    server = oauth_server()
    assert "Register again" not in sheet(administrator_client, server)
    begun = timezone.now() - timedelta(minutes=3)
    pending = PendingLogin.objects.create(
        server=server,
        person=administrator,
        private=b"",
        created_at=begun,
        expires_at=begun + HOUR,
    )
    words = login_section(administrator_client, server)
    assert "A login that was begun 3 min ago did not come back." in words
    assert "Register again" in words
    assert "register it again" in words
    changed(server, oauth_client_id="ours")
    words = login_section(administrator_client, server)
    assert "compare Client ID and Callback URL" in words
    assert "egister again" not in words
    assert "register it" not in words
    changed(server, oauth_client_id="")
    pending.delete()
    login = logged_in(server)
    assert "Register again" not in sheet(administrator_client, server)
    Login.objects.filter(pk=login.pk).update(ended="refused")
    html = sheet(administrator_client, server)
    assert 'name="register_again" value="on"' in html
    Login.objects.filter(pk=login.pk).update(client_kind="operator")
    assert "Register again" not in sheet(administrator_client, server)


def test_the_sheet_offers_to_renew_itself_after_a_login(member_client: Client) -> None:
    server = oauth_server()
    [address] = re.findall(r'hx-get="([^"]*/news/[^"]*)"', sheet(member_client, server))
    assert "New result" not in member_client.get(address).content.decode()
    login = logged_in(server)
    assert "New result" in member_client.get(address).content.decode()
    [address] = re.findall(r'hx-get="([^"]*/news/[^"]*)"', sheet(member_client, server))
    Login.objects.filter(pk=login.pk).update(version=2)
    assert "New result" in member_client.get(address).content.decode()


def test_members_are_told_whom_to_ask(member_client: Client) -> None:
    server = oauth_server()
    html = sheet(member_client, server)
    assert "Ask an administrator" in html
    assert re.search(r"<button[^>]*disabled[^>]*>.*?Log in</button>", html, flags=re.S)
    assert reverse("servers_api:oauth_login", args=[server.pk]) not in html
