"""The dialog of an added server that wants a login goes there by itself, once (P37)."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Locator, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from secrets_vault.services import ensure_key_ring
from servers.models import Check, Server
from tests.e2e.conftest import SignIn
from tests.fakes.login_rows import logged_in, oauth_server
from umpteenth.accounts.models import User

pytestmark = pytest.mark.usefixtures("faults")
ELSEWHERE = "/healthz"


@pytest.fixture
def page(page: Page, live_server: LiveServer, sign_in: SignIn) -> Page:
    """Signed in, with a clock that only the test moves once the page is open."""
    ensure_key_ring()
    sign_in(page)
    return page


@pytest.fixture
def asked(page: Page) -> list[str]:
    """The requests to begin a login; each is answered with an address to go to."""
    found: list[str] = []

    def answer(route: Route) -> None:
        found.append(route.request.post_data or "")
        route.fulfill(status=200, headers={"HX-Redirect": ELSEWHERE}, body="")

    page.route("**/oauth/login", answer)
    return found


def address() -> str:
    """Where the browser is after the form that added a server."""
    server = oauth_server()
    check = Check.objects.create(
        server=server,
        connection_version=server.connection_version,
        requested_by=User.objects.get(username="alice"),
        status="done",
        outcome="login_required",
        error="401 Unauthorized",
    )
    return f"/servers/?check={check.pk}&new=1"


def soon(page: Page) -> Locator:
    return page.locator("dialog[open] .login-soon")


def opened(page: Page) -> None:
    page.clock.install()
    page.goto(address())
    place = page.locator("dialog[open] .login-place")
    expect(place).to_contain_text("auth.example.com")
    expect(soon(page)).to_be_visible()
    # What it says of the address is gone, so that neither Back nor a reload goes again.
    assert "new=" not in page.url


def test_it_shows_where_it_goes_and_goes_there_once(page: Page, asked: list[str]) -> None:
    opened(page)
    assert asked == []
    page.clock.run_for(4000)
    page.wait_for_url(f"**{ELSEWHERE}")
    assert len(asked) == 1
    page.go_back()
    expect(page.locator("dialog[open] .login-place")).to_be_visible()
    page.clock.run_for(10_000)
    page.reload()
    expect(page.locator("dialog[open] .login-place")).to_be_visible()
    expect(soon(page)).to_be_hidden()
    page.clock.run_for(10_000)
    assert len(asked) == 1


@pytest.mark.parametrize("how", ["Stay here", "Close", "Escape"])
def test_whoever_stays_is_not_sent_away(how: str, page: Page, asked: list[str]) -> None:
    opened(page)
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.locator("dialog[open]").get_by_text(how, exact=True).click()
    page.clock.run_for(10_000)
    assert asked == []
    if how == "Stay here":
        expect(soon(page)).to_be_hidden()
        expect(page.locator("dialog[open] form[data-login] button")).to_be_focused()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{ELSEWHERE}")
        assert len(asked) == 1
    else:
        expect(page.locator("dialog[open]")).to_have_count(0)


def test_whoever_does_not_wait_goes_once(page: Page, asked: list[str]) -> None:
    opened(page)
    page.locator("dialog[open]").get_by_role("button", name="Log in").click()
    page.wait_for_url(f"**{ELSEWHERE}")
    assert len(asked) == 1


def test_a_link_to_the_same_test_sends_nobody_away(page: Page, asked: list[str]) -> None:
    page.clock.install()
    where = address()
    server = Server.objects.get()
    logged_in(server, ended="refused")
    page.goto(where)
    expect(page.locator("dialog[open] .login-place")).to_be_visible()
    page.clock.run_for(10_000)
    assert asked == []


def test_a_login_under_way_says_so_and_is_not_begun_twice(page: Page) -> None:
    held: list[Route] = []
    page.route("**/oauth/login", lambda route: held.append(route))
    oauth_server()
    page.goto("/servers/")
    button = page.get_by_role("row", name="github").locator("form[data-login] button").first
    button.click()
    expect(button).to_be_disabled()
    expect(button.locator(".login-busy")).to_be_visible()
    expect(button.locator(".login-idle")).to_be_hidden()
    # The row is fetched anew meanwhile, since a check of the server has ended.
    with page.expect_response("**/row/"):
        page.evaluate("htmx.trigger(document.body, 'rows')")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    expect(button).to_be_disabled()
    assert len(held) == 1
    held[0].fulfill(status=200, headers={"HX-Redirect": ELSEWHERE}, body="")
    page.wait_for_url(f"**{ELSEWHERE}")


def test_logging_out_asks_in_a_dialog(page: Page) -> None:
    """P52: in the row's menu; nothing happens before the answer."""
    sent: list[Route] = []

    def answer(route: Route) -> None:
        sent.append(route)
        route.fulfill(status=200, headers={"HX-Redirect": ELSEWHERE}, body="")

    page.route("**/oauth/logout", answer)
    logged_in(oauth_server(state="connected"))
    page.goto("/servers/")
    row = page.get_by_role("row", name="github")
    row.get_by_label("More for github").click()
    row.get_by_role("link", name="Log out").click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("Log out of github?")
    assert sent == []
    dialog.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"**{ELSEWHERE}")
    assert len(sent) == 1


def test_a_link_to_the_client_opens_its_folded_part(page: Page) -> None:
    server = oauth_server()
    page.goto(f"/servers/{server.pk}/edit/#oauth")
    expect(page.get_by_role("textbox", name="Callback URL")).to_be_visible()
    page.get_by_role("button", name="Copy the Callback URL").click()
    expect(page.locator(".toast-card")).to_be_visible()


def test_toasts_and_announcements_reach_people_over_an_open_dialog(page: Page) -> None:
    """P39: the toast of a login and the dialog of its test come together. Behind a dialog nothing
    is read out, nor can it be clicked."""
    oauth_server()
    page.goto("/servers/")
    page.evaluate("umpteenth.toast('Logged in to github.', 'error')")
    page.get_by_role("link", name="github", exact=True).click()
    sheet = page.locator("#sheet[open]")
    expect(sheet).to_contain_text("auth.example.com")
    expect(sheet.get_by_text("Logged in to github.")).to_be_visible()
    page.evaluate("umpteenth.announce('A step')")
    expect(sheet.get_by_role("status").filter(has_text="A step")).to_have_count(1)
    sheet.get_by_role("button", name="Dismiss").click()
    expect(page.locator(".toast-card")).to_have_count(0)
    expect(sheet).to_be_visible()
    page.keyboard.press("Escape")
    page.evaluate("umpteenth.toast('Saved.', 'success')")
    expect(page.locator("body > #toasts")).to_contain_text("Saved.")


@pytest.mark.parametrize("place", ["list", "sheet", "test"])
def test_without_script_the_form_leads_to_the_provider_all_the_same(
    place: str,
    new_context: Any,
    live_server: LiveServer,
    administrator_client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The policy stops forms whose answers lead to another site, which a login does."""
    ensure_key_ring()
    elsewhere = live_server.url.replace("localhost", "127.0.0.1") + ELSEWHERE
    assert elsewhere not in live_server.url
    monkeypatch.setattr("servers.oauth.login.begin_login", lambda *args, **more: elsewhere)
    context = new_context(base_url=live_server.url, java_script_enabled=False)
    value = administrator_client.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": value, "url": live_server.url}])
    page: Page = context.new_page()
    check = address().partition("=")[2].partition("&")[0]
    places = {
        "list": "/servers/",
        "sheet": f"/servers/{Server.objects.get().pk}/",
        "test": f"/servers/checks/{check}/",
    }
    page.goto(places[place])
    page.get_by_role("button", name="Log in").first.click()
    page.wait_for_url(elsewhere)
