"""From the claim link to a finished run, as the README promises it (issue 2, section 7)."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.e2e.actions import dialog, expect_succeeded, go_to, lines
from tests.e2e.conftest import NewPage
from tests.e2e.site import EVERYTHING, Site

SCRIPT = """#!/usr/bin/env bash
set -euo pipefail
ump step "Talk to everything"
ump mcp call everything echo '{"message": "hello from a run"}'
ump mcp call everything get-sum '{"a": 19, "b": 23}'
sleep 1
ump output set answer 42
echo "all is well" > /ump/outputs/report.txt
ump summary "19 and 23 are 42."
"""


def test_a_new_administrator_gets_from_the_claim_link_to_the_outputs_of_a_run(
    empty_site: Site, open_page: NewPage
) -> None:
    page = open_page(None, empty_site)
    claim(page, empty_site)
    add_secret(page)
    add_server_and_watch_its_test(page)
    make_job_with_two_tools(page)
    run_it_and_watch_the_timeline(page)
    read_the_outputs(page)
    sign_out(page)


def claim(page: Page, site: Site) -> None:
    page.goto(site.claim_link)
    page.get_by_label("Name").fill("alice")
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Create account").click()
    expect(page.get_by_role("heading", name="First steps")).to_be_visible()
    expect(page.get_by_role("heading", name="Add a server")).to_have_count(1)


def add_secret(page: Page) -> None:
    go_to(page, "Settings")
    go_to(page, "Secrets")
    page.get_by_role("link", name="New secret").first.click()
    dialog(page).get_by_label("Name").fill("EVERYTHING_KEY")
    dialog(page).get_by_label("Value", exact=True).fill("a-key-of-no-worth")
    dialog(page).get_by_role("button", name="Create secret").click()
    expect(page.get_by_role("link", name="EVERYTHING_KEY")).to_be_visible()


def add_server_and_watch_its_test(page: Page) -> None:
    """P1, P6, P12, P13, P18, P19, P28-P30."""
    go_to(page, "MCP Servers")
    page.get_by_role("link", name="Add server").first.click()
    expect(page.get_by_label("stdio")).to_be_checked()
    page.get_by_label("Name", exact=True).fill("everything")
    page.get_by_label("Command", exact=True).fill("node")
    page.get_by_label("Argument", exact=True).first.fill(str(EVERYTHING))
    page.get_by_label("Argument", exact=True).nth(1).fill("stdio")
    page.get_by_label("Variable", exact=True).first.fill("API_KEY")
    environment = page.get_by_role("group", name="Environment")
    environment.get_by_role("button", name="Insert a secret").first.click()
    page.get_by_role("option", name="EVERYTHING_KEY").click()
    value = environment.get_by_label("Value", exact=True).first
    expect(value).to_have_value("{{secret:EVERYTHING_KEY}}")
    page.get_by_role("button", name="Add server").click()
    steps = dialog(page).get_by_role("list").get_by_role("listitem")
    expect(
        steps.filter(has_text=re.compile("Waiting|Starting|Connecting|Listing")).last
    ).to_have_text(re.compile(r"\d+(\.\d+)? (ms|s)"))
    expect(dialog(page).get_by_text("Connected", exact=True)).to_be_visible()
    assert int(dialog(page).locator(".outcome-tools span").inner_text()) >= 13
    expect(dialog(page).get_by_text("echo", exact=True)).to_be_visible()
    dialog(page).get_by_role("link", name="Close").click()
    row = page.get_by_role("row", name="everything")
    expect(row).to_contain_text(re.compile(r"1\d · just now"))


def make_job_with_two_tools(page: Page) -> None:
    """P63-P68."""
    go_to(page, "Jobs")
    page.get_by_role("link", name="New job").first.click()
    page.get_by_label("Name", exact=True).fill("first job")
    page.get_by_label("Script", exact=True).fill(SCRIPT)
    page.get_by_label("Attach a server").select_option(label="everything")
    button = page.get_by_role("button", name="All tools")
    button.click()
    tools = page.get_by_role("dialog", name="Tools of everything")
    tools.get_by_label("All tools").uncheck()
    tools.get_by_text("echo", exact=True).click()
    tools.get_by_text("get-sum", exact=True).click()
    expect(page.locator("[data-tools-label]")).to_have_text(re.compile(r"^2 of 1\d tools$"))
    tools.get_by_role("button", name="Done").click()
    expect(tools).to_be_hidden()
    page.get_by_role("button", name="Create job").click()
    expect(page.get_by_role("heading", name="first job", level=1)).to_be_visible()


def run_it_and_watch_the_timeline(page: Page) -> None:
    """P27; the page gets every line by itself, so a mark on it must survive until the end."""
    page.get_by_role("link", name="Run now").click()
    dialog(page).get_by_role("button", name="Run now").click()
    page.wait_for_url("**/runs/*/")
    page.evaluate("document.body.dataset.mark = 'same page'")
    first, second = lines(page, "echo"), lines(page, "get-sum")
    expect(first.locator(".line-outcome")).to_have_text("Done")
    expect(second.locator(".line-outcome")).to_have_text("Done")
    expect_succeeded(page)
    expect(page.locator("body")).to_have_attribute("data-mark", "same page")
    expect(first).to_have_count(1)
    first.locator("summary").click()
    expect(first.get_by_text("Echo: hello from a run")).to_be_visible()


def read_the_outputs(page: Page) -> None:
    page.get_by_role("link", name="Outputs").click()
    expect(page.get_by_text("19 and 23 are 42.")).to_be_visible()
    expect(page.get_by_role("row", name="answer")).to_contain_text("42")
    with page.expect_download() as download:
        page.get_by_role("link", name="report.txt").click()
    assert download.value.path().read_text() == "all is well\n"
    page.get_by_role("link", name="Raw").click()
    expect(page.get_by_label("Events, one JSON object a line")).to_contain_text('"tool.call"')


def sign_out(page: Page) -> None:
    page.locator("summary.person").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in/"))
    page.goto("/runs/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
