"""MCP Servers: how tests end, that they outlive the page, and two people at one server."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.actions import dialog, server_row
from tests.e2e.conftest import Complaints, NewPage


def start_test(page: Page, server: str) -> Locator:
    """Returns the dialog that follows it."""
    page.goto("/servers/")
    server_row(page, server).get_by_role("button", name=f"Test {server}").click()
    expect(dialog(page).get_by_role("heading", name=f"Test {server}")).to_be_visible()
    return dialog(page)


def outcome(place: Locator | Page) -> Locator:
    return place.locator(".outcome")


def test_a_failed_connection_shows_the_exit_code_and_the_end_of_stderr(alice: Page) -> None:
    """P32, and the fault "server that dies at once" of issue 2."""
    shown = start_test(alice, "dies")
    expect(outcome(shown)).to_contain_text("Connection failed")
    expect(outcome(shown)).to_contain_text(re.compile(r"after \d+(\.\d)? m?s"))
    expect(shown.get_by_text("Exit code 7", exact=True)).to_be_visible()
    expect(shown.locator(".stderr")).to_contain_text("Error: API_KEY is not set")
    shown.get_by_role("link", name="Close").click()
    expect(server_row(alice, "dies").locator(".server-tools")).to_have_text("Not tested")


def test_a_server_that_wants_a_login_says_so_and_points_to_headers(alice: Page) -> None:
    """P31."""
    shown = start_test(alice, "locked")
    expect(outcome(shown)).to_contain_text("Login required")
    shown.get_by_role("link", name="Add an Authorization header").click()
    expect(alice.get_by_role("heading", name="Edit locked")).to_be_visible()
    expect(alice.get_by_label("Header", exact=True).first).to_be_in_viewport()


def test_a_test_goes_on_through_a_reload_and_can_be_cancelled(alice: Page) -> None:
    """P34, and the faults "server that never answers" and "reloaded in mid-test" of issue 2."""
    shown = start_test(alice, "mute")
    expect(shown.get_by_text("warming up")).to_be_visible()
    check = shown.locator("#check").get_attribute("data-check")
    alice.reload()
    expect(shown.locator("#check")).to_have_attribute("data-check", check or "")
    expect(shown.get_by_text("warming up")).to_be_visible()
    # It may have joined the health check that began with the site.
    passed = re.compile(r"^(\d+ min )?\d+(\.\d)? s$")
    expect(shown.locator(".check-step-time").last).to_have_text(passed)
    shown.get_by_role("button", name="Cancel").click()
    expect(outcome(shown)).to_contain_text("Cancelled")
    shown.get_by_role("button", name="Test again").click()
    expect(shown.get_by_text("warming up")).to_be_visible()
    # The same on the page of its own, where a second person finds it.
    alice.goto(f"/servers/checks/{shown.locator('#check').get_attribute('data-check')}/")
    expect(alice.get_by_text("warming up")).to_be_visible()
    alice.get_by_role("button", name="Cancel").click()
    expect(outcome(alice)).to_contain_text("Cancelled")


def test_a_second_editor_sees_both_values_and_loses_nothing(
    open_page: NewPage, complaints: Complaints
) -> None:
    """Two people edit one server at once (issue 2, section 4)."""
    complaints.expected = (422,)
    alice, carol = open_page("alice"), open_page("carol")
    for page in (alice, carol):
        page.goto("/servers/")
        page.get_by_label("More for shared").click()
        page.get_by_role("link", name="Edit").click()
        expect(page.get_by_role("heading", name="Edit shared")).to_be_visible()
    alice.get_by_label("Description").fill("Alice was here")
    alice.get_by_role("button", name="Save server").click()
    expect(alice.get_by_text("shared is saved")).to_be_visible()

    carol.get_by_label("Description").fill("Carol knows better")
    carol.get_by_label("Header", exact=True).first.fill("X-Team")
    headers = carol.get_by_role("group", name="Headers")
    headers.get_by_label("Value", exact=True).first.fill("search")
    carol.get_by_role("button", name="Save server").click()
    differing = carol.get_by_role("alert").get_by_role("row", name="Description")
    expect(differing).to_contain_text("Alice was here")
    expect(differing).to_contain_text("Carol knows better")
    expect(carol.get_by_label("Description")).to_have_value("Carol knows better")
    expect(carol.get_by_label("Header", exact=True).first).to_have_value("X-Team")
    alice.reload()
    expect(alice.get_by_text("Alice was here")).to_be_visible()

    carol.get_by_role("button", name="Save server").click()
    # Exactly, for the form's own heading holds the name too: a browser that is still on its way
    # when its window is closed does not close it.
    expect(carol.get_by_role("heading", name="shared", exact=True)).to_be_visible()
    expect(carol.get_by_text("Carol knows better")).to_be_visible()


def test_a_member_may_test_a_server_and_not_change_it(open_page: NewPage) -> None:
    bob = open_page("bob")
    bob.goto("/servers/")
    expect(bob.get_by_role("link", name="Add server")).to_have_count(0)
    expect(bob.get_by_role("switch")).to_have_count(0)
    shown = start_test(bob, "fake")
    expect(outcome(shown)).to_contain_text("Connected")


def test_the_switch_saves_at_once(alice: Page) -> None:
    """P59."""
    alice.goto("/servers/")
    switch = server_row(alice, "dies").get_by_role("switch")
    with alice.expect_response("**/enabled/"):
        switch.click()
    alice.reload()
    expect(switch).not_to_be_checked()
    with alice.expect_response("**/enabled/"):
        switch.click()
    alice.reload()
    expect(switch).to_be_checked()


def test_a_command_line_in_one_field_is_split_and_the_pressed_button_still_saves(
    alice: Page,
) -> None:
    alice.goto("/servers/new/")
    alice.get_by_label("Name", exact=True).fill("split")
    alice.get_by_label("Command", exact=True).fill("no-such-program --one two")
    # The field is left by pressing the button, which the new rows would push away.
    alice.get_by_role("button", name="Add server").click()
    expect(outcome(dialog(alice))).to_contain_text("Connection failed")
    alice.goto("/servers/")
    expect(server_row(alice, "split")).to_contain_text("no-such-program --one two")


def test_a_row_with_an_open_menu_is_renewed_when_the_menu_closes(alice: Page) -> None:
    """Live updates never move what is under the pointer (screens)."""
    alice.goto("/servers/")
    row = server_row(alice, "fake")
    name = (row.get_attribute("id") or "").replace("server-", "row-")
    alice.get_by_label("More for fake").click()
    alice.evaluate("name => htmx.trigger(document.body, name)", name)
    expect(row.get_by_role("link", name="Edit")).to_be_visible()
    with alice.expect_response("**/row/"):
        alice.keyboard.press("Escape")
    expect(row.get_by_role("link", name="Edit")).to_be_hidden()


def test_a_menu_that_opens_right_after_scrolling_stays_open_until_it_is_moved(alice: Page) -> None:
    """A browser tells of scrolling a frame late."""
    alice.set_viewport_size({"width": 1280, "height": 300})
    alice.goto("/servers/")
    alice.get_by_label("More for shared").evaluate(
        """async button => {
            scrollTo({top: document.documentElement.scrollHeight, behavior: "instant"});
            button.click();
            for (const frame of [1, 2, 3]) await new Promise(requestAnimationFrame);
        }"""
    )
    edit = server_row(alice, "shared").get_by_role("link", name="Edit")
    expect(edit).to_be_visible()
    alice.evaluate("scrollTo(0, 0)")
    expect(edit).to_be_hidden()


def test_a_menu_that_opens_while_its_row_is_fetched_stays_open(alice: Page) -> None:
    """The answer that comes in then is dropped, and asked for again when the menu closes."""
    held: list[Route] = []
    alice.goto("/servers/")
    row = server_row(alice, "fake")
    name = (row.get_attribute("id") or "").replace("server-", "row-")
    alice.route("**/row/", lambda route: held.append(route))
    with alice.expect_request("**/row/"):
        alice.evaluate("name => htmx.trigger(document.body, name)", name)
    alice.get_by_label("More for fake").click()
    with alice.expect_response("**/row/"):
        held[0].continue_()
    alice.evaluate("() => new Promise(done => setTimeout(done, 100))")
    expect(row.get_by_role("link", name="Edit")).to_be_visible()
    alice.unroute("**/row/")
    with alice.expect_response("**/row/"):
        alice.keyboard.press("Escape")
    expect(row.get_by_role("link", name="Edit")).to_be_hidden()
