"""Logins on the list and in the test dialog; how they are begun there and ended."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from servers.models import Check, Login, Server
from servers.services import set_enabled
from tests.fakes.login_rows import advertised, logged_in, oauth_server
from tests.fakes.server_rows import after_success, changed, http_server, stdio_server
from tests.units.server_sheets import plain
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def login_url(server: Server) -> str:
    return reverse("servers_api:oauth_login", args=[server.pk])


def log_out_url(server: Server) -> str:
    return reverse("servers:log_out", args=[server.pk])


def row(client: Client, server: Server) -> str:
    return client.get(reverse("servers:row", args=[server.pk])).content.decode()


def words_of(html: str) -> str:
    """What stands visibly beside the menu of a row."""
    beside = html[html.index('<div class="server-buttons">') :]
    beside = beside.partition('<details class="menu"')[0]
    shown = re.sub(r"<form[^>]*\shidden[ >].*?</form>", "", beside, flags=re.S)
    unseen = r'<span class="(visually-hidden|login-busy)">.*?</span>'
    return plain(re.sub(unseen, "", shown, flags=re.S)).strip()


def ended(server: Server, person: User | None, **values: Any) -> Check:
    """The first test of a server that has just been added: it wants a login."""
    usual = {
        "connection_version": server.connection_version,
        "requested_by": person,
        "status": "done",
        "outcome": "login_required",
        "error": "401 Unauthorized",
        "finished_at": timezone.now(),
    }
    return Check.objects.create(server=server, **{**usual, **values})


def check_page(client: Client, check: Check) -> str:
    return client.get(reverse("servers:check", args=[check.pk])).content.decode()


@pytest.fixture
def moment() -> Any:
    with time_machine.travel(timezone.now(), tick=False) as traveller:
        yield traveller


# The list


def test_a_row_that_wants_a_login_offers_it_in_the_place_of_test(
    administrator_client: Client,
) -> None:
    """P38, P47, P48. The test stays in the menu."""
    over = oauth_server("over")
    logged_in(over, lasts=-HOUR, refresh=False)
    refused = oauth_server("refused")
    logged_in(refused, ended="refused")
    for server in (oauth_server(), over, refused):
        html = row(administrator_client, server)
        assert words_of(html) == "Log in"
        assert html.count(f'action="{login_url(server)}"') == 1
        assert f'form="test-{server.pk}"' in html


def test_a_login_that_lacks_rights_can_be_made_again_at_once(
    administrator_client: Client, administrator: User
) -> None:
    """403 `insufficient_scope`: the login works, and the server wants more."""
    server = oauth_server(oauth_wanted="admin")
    logged_in(server, lasts=HOUR)
    assert words_of(row(administrator_client, server)) == "Log in"
    html = check_page(administrator_client, ended(server, administrator))
    assert f'action="{login_url(server)}"' in html
    assert "data-login-go" not in html


@pytest.mark.parametrize(
    "server",
    [
        lambda: stdio_server(),
        lambda: http_server("unknown"),
        lambda: http_server("bearer", headers={"Authorization": "x"}),
        lambda: changed(http_server("none"), oauth_advertised=False),
        lambda: oauth_server("machine", oauth_kind="machine", oauth_client_id="me"),
        lambda: changed(oauth_server("header"), has_authorization=True),
    ],
)
def test_where_no_login_leads_anywhere_the_row_offers_the_test(
    server: Any, administrator_client: Client
) -> None:
    """P14, P35, P49-P51: the action of these badges is a test, or nothing."""
    made = server()
    html = row(administrator_client, made)
    assert words_of(html) == "Test"
    assert login_url(made) not in html


def test_a_login_that_works_can_be_renewed_and_ended_in_the_menu(
    administrator_client: Client,
) -> None:
    """P46: nothing has to be done; P52."""
    server = after_success(oauth_server(), "echo")
    assert log_out_url(server) not in row(administrator_client, server)
    logged_in(server, lasts=HOUR)
    html = row(administrator_client, Server.objects.get())
    assert words_of(html) == "Test"
    menu = plain(html[html.index('<details class="menu"') :])
    assert "Log in again" in menu
    assert "Log out" in menu
    assert log_out_url(server) in html


def test_members_test_and_see_no_way_to_log_in_or_out(member_client: Client) -> None:
    server = oauth_server()
    logged_in(server, ended="refused")
    html = row(member_client, server)
    assert words_of(html) == "Test"
    assert login_url(server) not in html
    assert log_out_url(server) not in html
    assert "Not logged in" in html


def test_a_login_that_is_about_to_end_warns_in_the_list(member_client: Client, moment: Any) -> None:
    """Issue 4, section 4: in a few words, the whole sentence on hover, whatever the state is."""
    ending = after_success(oauth_server("ending"), "echo")
    logged_in(ending, lasts=2 * DAY, refresh=False)
    failing = oauth_server("failing", state="failed")
    logged_in(failing, refresh_failures=2, refresh_error="503 <Busy>")
    well = after_success(oauth_server("well"), "echo")
    logged_in(well, lasts=HOUR)
    html = row(member_client, ending)
    assert "Login ends in 2 days" in plain(html)
    assert "cannot be refreshed. Log in again before that." in html
    assert "Connected" not in plain(html[html.index("server-description") :])
    html = row(member_client, failing)
    assert re.search(r"Failed just now\s+Login cannot be refreshed", plain(html))
    assert "503 &lt;Busy&gt;" in html
    assert "Login" not in plain(row(member_client, well))


@pytest.mark.parametrize("role", ["administrator_client", "member_client"])
def test_a_list_of_any_length_asks_equally_often(role: str, request: pytest.FixtureRequest) -> None:
    """P46-P51: badges of 2 and of 24 servers, most of them with logins."""
    from django.db import connection

    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            client.get(reverse("servers:list"))
        return len(asked)

    client = request.getfixturevalue(role)
    logged_in(oauth_server("first"), lasts=HOUR)
    http_server("token", options={"token_ref": "@GONE"})
    before = queries()
    for number in range(22):
        logged_in(oauth_server(f"s{number}"), lasts=DAY, refresh=bool(number % 2))
    assert queries() == before <= 12


def test_rows_learn_that_somebody_has_logged_in_or_that_a_login_is_over(
    member_client: Client,
) -> None:
    old = timezone.now() - DAY
    servers = [oauth_server(name) for name in ("new", "over", "old")]
    Server.objects.update(checked_at=old, updated_at=old)
    logged_in(servers[0])
    logged_in(servers[1], logged_in_at=old, ended="refused", ended_at=timezone.now())
    logged_in(servers[2], logged_in_at=old)
    since = f"{timezone.now() - timedelta(minutes=1):%Y-%m-%dT%H:%M:%S%z}"
    address = reverse("servers:changes")
    response = member_client.get(address, {"since": since}, headers=HTMX)
    assert set(json.loads(response["HX-Trigger"])) == {f"row-{one.pk}" for one in servers[:2]}


# The test dialog


def test_the_dialog_offers_the_login_and_shows_where_it_leads(
    administrator_client: Client, member_client: Client, administrator: User
) -> None:
    """P31, I06."""
    server = oauth_server()
    check = ended(server, administrator)
    html = check_page(administrator_client, check)
    assert "You log in at <strong>auth.example.com</strong>" in html
    assert f'action="{login_url(server)}"' in html
    html = check_page(member_client, check)
    assert "Ask an administrator" in html
    assert "You log in" not in html
    assert "An administrator logs in at <strong>auth.example.com</strong>" in html
    assert login_url(server) not in html


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("https://auth.example.com:8443/authorize?x=1", "auth.example.com:8443"),
        # The first letter is a Cyrillic one.
        ("https://\u0430uth.example.com/a", "xn--uth-5cd.example.com"),
        ("http://[::1]:9/a", "[::1]:9"),
    ],
)
def test_the_host_is_shown_as_the_dns_has_it(
    endpoint: str, shown: str, administrator_client: Client, administrator: User
) -> None:
    """I06: a letter that looks like another one leads nobody astray."""
    raw = advertised(authorization_endpoint=endpoint).as_json()
    check = ended(oauth_server(oauth_found=raw), administrator)
    assert f"<strong>{shown}</strong>" in check_page(administrator_client, check)


def test_a_server_that_names_no_way_in_keeps_the_hint_to_headers(
    administrator_client: Client, administrator: User
) -> None:
    check = ended(http_server(), administrator, hint="Tried https://h/x: 404")
    html = check_page(administrator_client, check)
    assert "Tried https://h/x: 404" in html
    assert "Add an Authorization header" in html
    assert "data-login" not in html


def test_a_client_that_logs_in_by_itself_is_pointed_to_its_secret(
    administrator_client: Client, administrator: User
) -> None:
    server = oauth_server(oauth_kind="machine", oauth_client_id="me")
    html = check_page(administrator_client, ended(server, administrator))
    assert "look at its Client ID and secret" in html
    assert "data-login" not in html


def goes(client: Client, check: Check) -> bool:
    return "data-login-go" in check_page(client, check)


def test_the_dialog_of_an_added_server_goes_to_the_login_by_itself(
    administrator_client: Client, administrator: User
) -> None:
    """P37; with a way to stop, and the host in view (I06)."""
    check = ended(oauth_server(), administrator)
    html = check_page(administrator_client, check)
    assert goes(administrator_client, check)
    assert "data-login-stop" in html
    assert "auth.example.com" in html


@pytest.mark.parametrize(
    "otherwise",
    [
        "somebody else's test",
        "a later test",
        "an edited server",
        "an old test",
        "logged in before",
        "no client",
        "no document",
        "connected",
    ],
)
def test_nothing_else_goes_to_a_login_by_itself(
    otherwise: str, administrator_client: Client, administrator: User, member: User, moment: Any
) -> None:
    """No link, reload or later test sends a browser away."""
    server = oauth_server()
    check = ended(server, member if otherwise == "somebody else's test" else administrator)
    if otherwise == "a later test":
        Server.objects.update(created_at=timezone.now() - HOUR)
    elif otherwise == "an edited server":
        changed(server, version=2)
    elif otherwise == "an old test":
        moment.shift(HOUR)
    elif otherwise == "logged in before":
        logged_in(server, ended="refused")
    elif otherwise == "no client":
        changed(server, oauth_found=advertised(registration_endpoint="").as_json())
    elif otherwise == "no document":
        # Of a server that takes a key, the default addresses lead nowhere.
        guessed = advertised(metadata_url="").as_json() | {"resource_metadata_url": ""}
        changed(server, oauth_found=guessed)
    elif otherwise == "connected":
        Check.objects.update(outcome="connected")
    assert not goes(administrator_client, check)


def test_the_dialog_leads_to_the_client_that_is_missing(
    administrator_client: Client, administrator: User
) -> None:
    """P55."""
    server = oauth_server(oauth_found=advertised(registration_endpoint="").as_json())
    html = check_page(administrator_client, ended(server, administrator))
    assert "Enter a Client ID" in html
    assert f'href="{reverse("servers:edit", args=[server.pk])}#oauth"' in html
    changed(server, oauth_client_id="me")
    html = check_page(administrator_client, ended(server, administrator))
    assert "Enter a Client ID" not in html


def test_a_member_goes_nowhere(member_client: Client, member: User) -> None:
    assert not goes(member_client, ended(oauth_server(), member))


# Logging out


def test_logging_out_asks_first_and_names_what_it_means(
    administrator_client: Client, administrator: User
) -> None:
    """P52."""
    server = oauth_server()
    login = logged_in(server)
    html = administrator_client.get(log_out_url(server)).content.decode()
    assert "Log out of github?" in html
    assert "Runs that use the server fail until somebody logs in again." in html
    assert f'action="{reverse("servers_api:oauth_logout", args=[server.pk])}"' in html
    assert Login.objects.filter(pk=login.pk).exists()
    fragment = administrator_client.get(log_out_url(server), headers=HTMX).content.decode()
    assert fragment.lstrip().startswith('<div class="dialog-head">')


def test_who_is_not_logged_in_cannot_log_out(administrator_client: Client) -> None:
    server = oauth_server()
    response = administrator_client.get(log_out_url(server), follow=True)
    assert "Nobody is logged in to github." in response.content.decode()


# Leaving for the provider


def policy(client: Client, address: str) -> str:
    return client.get(address).headers["Content-Security-Policy"]


def test_only_pages_with_a_login_let_their_forms_leave(
    administrator_client: Client, member_client: Client, administrator: User
) -> None:
    """Without script the form's answer leads to the provider, which `form-action` would stop;
    wherever nothing leads out, it stays closed, and nothing else is ever opened."""
    plain_server, server = http_server("plain"), oauth_server("wants")
    check = ended(server, administrator)
    open_to_all = [
        reverse("servers:list"),
        reverse("servers:detail", args=[server.pk]),
        reverse("servers:check", args=[check.pk]),
    ]
    for address in open_to_all:
        assert "form-action" not in policy(administrator_client, address)
        assert "script-src 'self'" in policy(administrator_client, address)
        assert "form-action 'self'" in policy(member_client, address)
    closed = [
        reverse("servers:detail", args=[plain_server.pk]),
        reverse("servers:edit", args=[server.pk]),
        reverse("servers:create"),
        reverse("dashboard"),
    ]
    for address in closed:
        assert "form-action 'self'" in policy(administrator_client, address)
    server.delete()
    assert "form-action 'self'" in policy(administrator_client, reverse("servers:list"))


def test_a_disabled_server_can_be_logged_in_to(administrator_client: Client) -> None:
    """A login is no run: it may be made before the server is enabled."""
    server = oauth_server()
    set_enabled(server, actor=None, enabled=False)
    assert login_url(server) in row(administrator_client, server)
