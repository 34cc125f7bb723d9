"""Logins in the browser: from adding a server to logging out, and all that goes wrong on the way.

The provider is the tests' own; its page has the buttons Approve and Deny (issue 4, section 7).
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator, Set
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.actions import dialog, server_row
from tests.e2e.conftest import PATIENCE, Complaints, NewPage
from tests.e2e.site import Site
from tests.fakes.oauth_server import OAuthServer, Variant, running
from tests.real.conftest import Site as Told
from tests.real.conftest import eventually

# What the fake returns of its request: the header that nobody may see.
CALLS = """#!/usr/bin/env bash
ump mcp call {name} echo '{{"message": "good morning"}}'
ump mcp call {name} headers '{{}}'
"""


@pytest.fixture
def provider() -> Iterator[OAuthServer]:
    variant = Variant(decision="ask", auth_methods=("client_secret_post",))
    with running(OAuthServer(variant)) as provider:
        yield provider


@pytest.fixture
def told(site: Site) -> Iterator[Told]:
    """The site, to be asked about its data."""
    paths = {name: value for name, value in site.environ.items() if name not in ("PATH", "HOME")}
    told = Told(site.data_dir, paths)
    yield told
    if told.helper is not None:
        told.helper.communicate()


def new_name() -> str:
    return f"guarded-{uuid4().hex[:6]}"


def add_server(page: Page, provider: OAuthServer) -> str:
    """By the form; its name. The dialog of its first test is open then."""
    name = new_name()
    page.goto("/servers/new/")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("radio", name="HTTP").check()
    page.get_by_label("URL", exact=True).fill(provider.url)
    page.get_by_role("button", name="Add server").click()
    expect(dialog(page).get_by_role("heading", name=f"Test {name}")).to_be_visible()
    return name


def expect_at_provider(page: Page, provider: OAuthServer) -> None:
    page.wait_for_url(f"{provider.endpoint('authorize')}*")
    expect(page.get_by_role("heading", name=re.compile("Let (Umpteenth|ours) in"))).to_be_visible()


def decide(page: Page, button: str) -> None:
    page.get_by_role("button", name=button).click()
    page.wait_for_url(re.compile(r"/servers/"))
    assert not re.search(r"code=|state=|iss=|error", page.url), page.url


def badge(page: Page, name: str) -> Locator:
    return server_row(page, name).locator(".server-auth")


def log_in(page: Page, provider: OAuthServer, name: str) -> None:
    """From the row to the provider's page."""
    page.goto("/servers/")
    server_row(page, name).get_by_role("button", name="Log in").first.click()
    expect_at_provider(page, provider)


def add_and_log_in(page: Page, provider: OAuthServer) -> str:
    name = add_server(page, provider)
    expect_at_provider(page, provider)
    decide(page, "Approve")
    expect(page.get_by_text(f"Logged in to {name}.")).to_be_visible()
    return name


def written(secret: str) -> set[str]:
    """As it is, in hexadecimal, and as it stands inside of base64, wherever it begins there."""
    data = secret.encode()
    inside = {base64.b64encode(bytes(before) + data)[4:-4].decode() for before in range(3)}
    return {secret, data.hex(), *inside}


def expect_hidden(
    site: Site,
    told: Told,
    page: Page,
    provider: OAuthServer,
    name: str,
    kinds: Set[str] = frozenset({"access", "refresh", "code", "secret"}),
) -> None:
    """Neither data, logs, pages nor commands show anything that must stay secret."""
    secrets = provider.grants.secrets
    assert {secret.partition("-")[0] for secret in secrets} >= kinds
    forms = {form for secret in secrets for form in written(secret)}

    def assert_hidden(text: str, where: object) -> None:
        assert not [form for form in forms if form in text], where

    files = [path for path in site.data_dir.rglob("*") if path.is_file()]
    assert any(name.encode() in path.read_bytes() for path in files)  # the database is among them
    for path in [*files, site.log]:
        assert_hidden(path.read_bytes().decode("latin-1"), path)
    for place in places_of(page, name):
        answer = page.request.get(place)
        assert answer.ok, (place, answer.status)
        assert_hidden(answer.text(), place)
    for words in (
        ["mcp", "show", name],
        ["mcp", "show", name, "--json"],
        ["mcp", "list", "--json"],
    ):
        done = told.run(*words)
        assert done.returncode == 0, done.stderr
        assert_hidden(done.stdout + done.stderr, words)


def places_of(page: Page, name: str) -> list[str]:
    page.goto("/servers/")
    sheet = page.get_by_role("link", name=name, exact=True).get_attribute("href")
    assert sheet
    places = ["/servers/", sheet, f"{sheet}edit/", f"/api/mcp-{sheet[1:-1]}", "/api/mcp-servers"]
    runs = page.goto("/runs/") and page.locator("a[href^='/runs/']").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )
    return [*places, "/settings/audit/", "/", *(runs or [])]


def run_by_schedule(told: Told, server: str) -> str:
    """A job that uses the server is due: its run."""
    job = f"uses {server}"
    fields = {
        "name": job,
        "script": CALLS.format(name=server),
        "servers": {server: "all"},
        "schedule": {"cron": "0 9 1 1 *", "timezone": "UTC"},
    }
    told.ask("create", json.dumps(fields))
    told.ask("make_due", job)
    [run] = eventually(lambda: told.ask("runs", job), "the scheduled run")
    assert run["trigger"] == "schedule"
    return str(run["id"])


def test_the_life_of_a_login(alice: Page, site: Site, told: Told, provider: OAuthServer) -> None:
    """P37-P39, P43, P44, P46, P52: added, approved, used by a run after the access token is over,
    logged out; and no token, code or secret is left anywhere."""
    name = add_server(alice, provider)
    host = f"127.0.0.1:{provider.provider.port}"
    expect(dialog(alice).get_by_text(host).first).to_be_visible()
    expect_at_provider(alice, provider)
    decide(alice, "Approve")
    expect(alice.get_by_text(f"Logged in to {name}.")).to_be_visible()
    expect(dialog(alice).locator(".outcome")).to_contain_text("Connected")
    expect(dialog(alice).get_by_text("echo", exact=True).first).to_be_visible()
    dialog(alice).get_by_role("link", name="Close").click()
    expect(badge(alice, name)).to_contain_text("OAuth")

    provider.grants.expire_access_tokens()
    run_id = run_by_schedule(told, name)
    alice.goto(f"/runs/{run_id}/")
    expect(alice.locator(".run-head .state")).to_have_text("Succeeded")
    assert provider.grants.outcomes == [("authorization_code", "ok"), ("refresh_token", "ok")]
    shown = json.dumps([event["payload"] for event in told.ask("events", run_id)])
    assert "good morning" in shown
    assert "authorization" in shown.lower()  # whose value is masked, as what follows shows

    expect_hidden(site, told, alice, provider, name)
    alice.goto("/servers/")
    server_row(alice, name).get_by_label(f"More for {name}").click()
    server_row(alice, name).get_by_role("link", name="Log out").click()
    dialog(alice).get_by_role("button", name="Log out").click()
    expect(badge(alice, name)).to_contain_text("Not logged in")
    assert provider.count("revoke") >= 1
    expect_hidden(site, told, alice, provider, name)


def test_whoever_denies_is_told_and_nothing_is_stored(alice: Page, provider: OAuthServer) -> None:
    """P47, I07: the provider's own words, as text."""
    provider.variant.error_description = "<b>Not today</b>"
    name = add_server(alice, provider)
    expect_at_provider(alice, provider)
    decide(alice, "Deny")
    expect(alice.get_by_text("<b>Not today</b>").first).to_be_visible()
    expect(badge(alice, name)).to_contain_text("Not logged in")
    assert provider.count("token") == 0


def test_nobody_else_finishes_a_login_and_nobody_finishes_it_twice(
    open_page: NewPage, provider: OAuthServer, complaints: Complaints
) -> None:
    """I07, I08: another person's callback changes nothing, so that the first one's still works."""
    complaints.expected = (403, 404, 422)
    alice, carol = open_page("alice"), open_page("carol")
    name = add_server(alice, provider)
    expect_at_provider(alice, provider)
    back = provider.visit(alice.url)
    carol.goto(back)
    expect(carol.get_by_text("Somebody else began this login").first).to_be_visible()
    assert provider.count("token") == 0
    alice.goto(back)
    expect(alice.get_by_text(f"Logged in to {name}.")).to_be_visible()
    assert provider.grants.outcomes == [("authorization_code", "ok")]
    alice.goto(back)
    expect(alice.get_by_text("No login like this one is under way").first).to_be_visible()
    expect(badge(alice, name)).to_contain_text("OAuth")
    assert provider.grants.outcomes == [("authorization_code", "ok")]


def test_somebody_who_is_not_signed_in_finishes_nothing(
    open_page: NewPage, provider: OAuthServer, complaints: Complaints
) -> None:
    """P41, I08."""
    complaints.expected = (401, 403)
    alice, stranger = open_page("alice"), open_page(None)
    name = add_server(alice, provider)
    expect_at_provider(alice, provider)
    back = provider.visit(alice.url)
    stranger.goto(back)
    expect(stranger.get_by_text("sign in").first).to_be_visible()
    assert provider.count("token") == 0
    alice.goto(back)
    expect(alice.get_by_text(f"Logged in to {name}.")).to_be_visible()


def test_two_tabs_may_log_in_one_after_the_other(alice: Page, provider: OAuthServer) -> None:
    name = add_server(alice, provider)
    expect_at_provider(alice, provider)
    second = alice.context.new_page()
    log_in(second, provider, name)
    decide(second, "Approve")
    expect(second.get_by_text(f"Logged in to {name}.")).to_be_visible()
    decide(alice, "Approve")
    expect(alice.get_by_text(f"Logged in to {name}.")).to_be_visible()
    alice.goto("/servers/")
    expect(badge(alice, name)).to_contain_text("OAuth")
    assert [outcome for _, outcome in provider.grants.outcomes] == ["ok", "ok"]


def test_a_login_that_the_provider_ends_is_renewed_from_the_row(
    alice: Page, provider: OAuthServer
) -> None:
    """P47: the badge says so, and logging in again mends it."""
    name = add_and_log_in(alice, provider)
    provider.grants.revoke_all()
    alice.goto("/servers/")
    server_row(alice, name).get_by_role("button", name=f"Test {name}").click()
    expect(dialog(alice).locator(".outcome")).to_contain_text("Login required")
    alice.goto("/servers/")
    expect(badge(alice, name)).to_contain_text("Not logged in")
    log_in(alice, provider, name)
    decide(alice, "Approve")
    expect(alice.get_by_text(f"Logged in to {name}.")).to_be_visible()


def test_an_operators_client_is_entered_in_the_form(
    alice: Page, site: Site, told: Told, provider: OAuthServer
) -> None:
    """P55-P58: without registration the login fails in those words, until there is a client."""
    provider.variant.registration = "none"
    name = add_server(alice, provider)
    dialog(alice).get_by_role("link", name="Close").click()
    server_row(alice, name).get_by_role("button", name="Log in").first.click()
    sentence = "the authorization server doesn't support dynamic client registration, "
    sentence += "so the server needs an OAuth client ID"
    expect(alice.get_by_text(re.compile(sentence, re.IGNORECASE)).first).to_be_visible()

    alice.goto("/servers/")
    server_row(alice, name).get_by_label(f"More for {name}").click()
    server_row(alice, name).get_by_role("link", name="Edit").click()
    part = alice.locator("#oauth")
    part.locator("summary").first.click()
    secret = provider.grants.secret("secret")
    client = provider.add_client("ours", secret=secret, method="client_secret_post")
    client.redirect_uris = [part.get_by_label("Callback URL", exact=True).input_value()]
    assert client.redirect_uris[0].startswith(f"{site.address}/api/mcp-servers/")
    part.get_by_label("Client ID", exact=True).fill("ours")
    part.get_by_label("Client secret", exact=True).fill(secret)
    part.get_by_label("Scopes", exact=True).fill("read write")
    alice.get_by_role("button", name="Save server").click()
    expect(alice.get_by_text(f"{name} is saved")).to_be_visible()
    log_in(alice, provider, name)
    expect(alice.get_by_text("Scopes: read write")).to_be_visible()
    decide(alice, "Approve")
    expect(alice.get_by_text(f"Logged in to {name}.")).to_be_visible()
    assert {call["client_id"] for call in provider.sent("token")} == {"ours"}
    expect_hidden(site, told, alice, provider, name)


def test_a_login_needs_no_script(open_page: NewPage, provider: OAuthServer) -> None:
    """P38: the policy of the page lets a plain form lead to the provider."""
    page = open_page("alice", java_script_enabled=False)
    name = new_name()
    page.goto("/servers/new/")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("radio", name="HTTP").check()
    page.get_by_label("URL", exact=True).fill(provider.url)
    page.get_by_role("button", name="Add server").click()
    log_in_button = page.get_by_role("button", name="Log in").first
    deadline = time.monotonic() + PATIENCE / 1000
    while not log_in_button.is_visible():
        assert time.monotonic() < deadline, page.content()
        page.reload()
    log_in_button.click()
    expect_at_provider(page, provider)
    decide(page, "Approve")
    expect(page.get_by_text(f"Logged in to {name}.")).to_be_visible()


def test_a_client_that_logs_in_by_itself_needs_nobody(
    alice: Page, site: Site, told: Told, provider: OAuthServer
) -> None:
    """The kind of login for machines: client credentials, from the form to the tools."""
    secret = provider.grants.secret("secret")
    provider.add_client("robot", secret=secret, method="client_secret_post")
    provider.variant.metadata = {"grant_types_supported": ["client_credentials"]}
    name = new_name()
    alice.goto("/servers/new/")
    alice.get_by_label("Name", exact=True).fill(name)
    alice.get_by_role("radio", name="HTTP").check()
    alice.get_by_label("URL", exact=True).fill(provider.url)
    part = alice.locator("#oauth")
    part.locator("summary").first.click()
    part.get_by_role("radio", name="The client logs in by itself").check()
    part.get_by_label("Client ID", exact=True).fill("robot")
    part.get_by_label("Client secret", exact=True).fill(secret)
    alice.get_by_role("button", name="Add server").click()
    expect(dialog(alice).locator(".outcome")).to_contain_text("Connected")
    dialog(alice).get_by_role("link", name="Close").click()
    expect(badge(alice, name)).to_contain_text("OAuth")
    run_id = run_by_schedule(told, name)
    alice.goto(f"/runs/{run_id}/")
    expect(alice.locator(".run-head .state")).to_have_text("Succeeded")
    assert {grant for grant, _ in provider.grants.outcomes} == {"client_credentials"}
    assert provider.count("authorize") == 0
    expect_hidden(site, told, alice, provider, name, {"access", "secret"})
