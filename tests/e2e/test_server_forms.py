"""MCP Servers: options, tool policy, sockets and new names, in the form and on the sheet."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.e2e.actions import dialog, server_row
from tests.e2e.conftest import Complaints, NewPage
from tests.e2e.stock import SECRET


def edit(page: Page, server: str) -> None:
    page.goto("/servers/")
    page.get_by_label(f"More for {server}").click()
    page.get_by_role("link", name="Edit").click()
    expect(page.get_by_role("heading", name=f"Edit {server}")).to_be_visible()


def unfolded(page: Page, title: str) -> Locator:
    """The folded part of the form, opened."""
    part = page.locator("details.fold-card").filter(has=page.get_by_role("heading", name=title))
    part.locator("summary").click()
    return part


def save(page: Page) -> None:
    page.get_by_role("button", name="Save server").click()
    expect(page.get_by_text("is saved")).to_be_visible()


def test_only_the_fields_and_options_of_the_chosen_transport_are_shown(alice: Page) -> None:
    """P18, U12, U15."""
    alice.goto("/servers/new/")
    advanced = unfolded(alice, "Advanced")
    fields = {
        name: alice.get_by_role("textbox", name=name)
        for name in ("Command", "URL", "Socket", "URI", "TCP connection", "Bearer token")
    }
    shown = {
        "stdio": {"Command"},
        "HTTP": {"URL", "TCP connection", "Bearer token"},
        "Unix socket": {"Socket", "URI", "Bearer token"},
    }
    for transport, names in shown.items():
        alice.get_by_role("radio", name=transport).check()
        for name, field in fields.items():
            expect(field).to_be_visible(visible=name in names)
        # What all transports have stays.
        expect(advanced.get_by_label("Calls at once")).to_be_visible()


def test_a_client_that_logs_in_by_itself_is_told_of_no_callback(alice: Page) -> None:
    """P56: it has none; and its secret cannot be left empty."""
    alice.goto("/servers/new/")
    alice.get_by_role("radio", name="HTTP").check()
    part = unfolded(alice, "OAuth client")
    for kind, is_person in (("The client logs in by itself", False), ("A person logs in", True)):
        part.get_by_role("radio", name=kind).check()
        expect(part.get_by_text("Callback URL")).to_be_visible(visible=is_person)
        expect(part.get_by_text("Leave it empty")).to_be_visible(visible=is_person)
        expect(part.get_by_text("needs one")).to_be_visible(visible=not is_person)


def test_the_key_button_of_the_bearer_token_writes_the_name_of_a_secret(alice: Page) -> None:
    """U24, P12."""
    alice.goto("/servers/new/")
    alice.get_by_role("radio", name="HTTP").check()
    advanced = unfolded(alice, "Advanced")
    advanced.get_by_label("Bearer token").fill("something else")
    advanced.get_by_role("button", name="Insert a secret").click()
    alice.get_by_role("option", name=SECRET).click()
    expect(advanced.get_by_label("Bearer token")).to_have_value(f"@{SECRET}")


def test_a_wrong_option_opens_its_part_and_gets_the_focus(
    alice: Page, complaints: Complaints
) -> None:
    complaints.expected = (422,)
    edit(alice, "shared")
    part = unfolded(alice, "Advanced")
    part.get_by_label("Calls at once").fill("lots")
    alice.get_by_role("button", name="Save server").click()
    expect(part.get_by_label("Calls at once")).to_be_focused()
    expect(part.get_by_text("must be a whole number from 1 to 256")).to_be_visible()
    part.get_by_label("Calls at once").fill("2")
    save(alice)
    alice.get_by_text("Options and limits").click()
    row = alice.get_by_role("row").filter(has_text="max_inflight_calls")
    expect(row).to_contain_text("Set here")


def test_a_policy_is_ticked_and_shown_on_the_tools(alice: Page) -> None:
    """A12, A13, A29, A56."""
    edit(alice, "everything")
    policy = unfolded(alice, "Tool policy")
    levels = policy.get_by_text("Who may start the runs that use its tools")
    expect(levels).to_be_hidden()
    policy.get_by_role("radio", name="Guarded.").check()
    expect(levels).to_be_visible()
    expect(policy.get_by_label("echo allowed")).to_be_hidden()
    policy.get_by_label("Search tools").fill("get-sum")
    expect(policy.get_by_label("echo blocked")).to_be_hidden()
    policy.get_by_label("get-sum blocked").check()
    single = policy.get_by_label("Tool", exact=True)
    expect(single).to_have_count(1)
    single.select_option("echo")
    expect(single).to_have_count(2)
    save(alice)
    line = alice.locator(".tool").filter(has=alice.locator(".tool-name", has_text="get-sum"))
    expect(line).to_contain_text("Blocked")

    edit(alice, "everything")
    expect(policy.get_by_label("get-sum blocked")).to_be_checked()
    policy.get_by_label("get-sum blocked").uncheck()
    expect(single.first).to_have_value("echo")
    policy.get_by_role("button", name="Remove this row").first.click()
    policy.get_by_role("radio", name="Open.").check()
    save(alice)
    expect(alice.get_by_text("restricted by the policy")).to_have_count(0)


def test_a_new_name_is_asked_about_before_it_is_saved(
    open_page: NewPage, complaints: Complaints
) -> None:
    """U37, U38."""
    complaints.expected = (422,)
    alice = open_page()
    edit(alice, "fake")
    alice.get_by_label("Name", exact=True).fill("renamed")
    alice.get_by_role("button", name="Save server").click()
    question = alice.get_by_role("alert")
    expect(question).to_contain_text("Rename fake to renamed?")
    expect(question.get_by_role("link", name="leaks").first).to_be_visible()
    expect(question.get_by_role("button", name="Rename and save")).to_be_focused()
    # Another tab still knows it by its name.
    other = open_page()
    other.goto("/servers/")
    expect(server_row(other, "fake")).to_be_visible()


def test_tools_are_searched_on_the_sheet(alice: Page) -> None:
    alice.goto("/servers/")
    alice.get_by_role("link", name="everything", exact=True).click()
    sheet = dialog(alice)
    expect(sheet.locator(".tool-name", has_text="echo")).to_be_visible()
    sheet.get_by_label("Search tools").fill("get-sum")
    expect(sheet.locator(".tool-name")).to_have_text(["get-sum"])
    sheet.get_by_text("Arguments", exact=True).click()
    expect(sheet.locator(".params")).to_contain_text("number")
    sheet.get_by_label("Search tools").fill("no such tool")
    expect(sheet.get_by_text("No tool matches")).to_be_visible()


def test_check_now_opens_the_test_over_the_sheet(alice: Page) -> None:
    """Issue 3, section 4."""
    alice.goto("/servers/")
    alice.get_by_role("link", name="everything", exact=True).click()
    alice.locator("#sheet").get_by_role("button", name="Check now").click()
    shown = alice.locator("#dialog")
    expect(shown.locator(".outcome")).to_contain_text("Connected")
    alice.keyboard.press("Escape")
    expect(alice.locator("#sheet .health")).to_contain_text("Connected just now")
