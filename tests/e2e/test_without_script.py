"""Everything can be read and saved without JavaScript."""

from __future__ import annotations

import time

from playwright.sync_api import Locator, Page, expect

from tests.e2e.actions import go_to
from tests.e2e.conftest import PATIENCE, NewPage
from tests.e2e.site import Site
from tests.e2e.stock import PASSWORD

SCRIPT = """#!/usr/bin/env bash
ump mcp call plain echo '{"message": "no script needed"}'
"""


def reload_until(page: Page, found: Locator) -> None:
    """As a reader without script does, who is told to."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not found.is_visible():
        assert time.monotonic() < deadline, page.content()
        page.reload()


def test_a_server_a_job_and_a_run_need_no_script(site: Site, open_page: NewPage) -> None:
    page = open_page(None, java_script_enabled=False)
    page.goto("/")
    page.get_by_label("Name").fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    add_server(page, site.fake)
    make_job(page)
    run_it(page)


def add_server(page: Page, address: str) -> None:
    go_to(page, "MCP Servers")
    page.get_by_role("link", name="Add server").click()
    page.get_by_label("Name", exact=True).fill("plain")
    page.get_by_role("radio", name="HTTP").check()
    page.get_by_label("URL", exact=True).fill(address)
    page.get_by_role("button", name="Add server").click()
    expect(page.get_by_role("heading", name="Test plain", level=1)).to_be_visible()
    reload_until(page, page.get_by_text("Connected", exact=True))


def make_job(page: Page) -> None:
    go_to(page, "Jobs")
    page.get_by_role("link", name="New job").click()
    page.get_by_label("Name", exact=True).fill("plain job")
    page.get_by_label("Script", exact=True).fill(SCRIPT)
    page.get_by_label("Attach a server").select_option(label="plain")
    allow_a_domain(page)
    page.get_by_role("button", name="Create job").click()
    expect(page.get_by_role("heading", name="plain job", level=1)).to_be_visible()
    expect(page.get_by_text("api.example.org", exact=True)).to_be_visible()


def allow_a_domain(page: Page) -> None:
    """What belongs to a choice is there with that choice only."""
    domains = page.get_by_label("Allowed domains", exact=True)
    private = page.get_by_label("Allow private network")
    expect(page.get_by_role("radio", name="Internet access", exact=True)).to_be_checked()
    expect(private).to_be_visible()
    expect(domains).to_be_hidden()
    page.get_by_role("radio", name="No network", exact=True).check()
    expect(private).to_be_hidden()
    page.get_by_role("radio", name="Allowed domains only", exact=True).check()
    domains.fill("API.example.org")
    expect(private).to_be_visible()


def run_it(page: Page) -> None:
    page.get_by_role("link", name="Run now").click()
    page.get_by_role("main").get_by_role("button", name="Run now").click()
    expect(page.get_by_role("heading", name="plain job #1")).to_be_visible()
    reload_until(page, page.locator(".run-head").get_by_text("Succeeded"))
    call = page.locator("#timeline details").filter(has_text="echo")
    call.locator("summary").click()
    call.get_by_role("link", name="Show details").click()
    expect(call.locator(".panes")).to_contain_text("no script needed")
    page.get_by_role("link", name="Outputs").click()
    expect(page.get_by_text("This run left no outputs")).to_be_visible()
