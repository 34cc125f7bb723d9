"""What people do on pages, for tests that are about something else."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect


def go_to(page: Page, place: str) -> None:
    """By the sidebar."""
    page.get_by_role("navigation", name="Main").get_by_role("link", name=place, exact=True).click()


def dialog(page: Page) -> Locator:
    return page.locator("dialog[open]")


def open_job(page: Page, name: str) -> None:
    page.goto("/jobs/")
    page.get_by_role("link", name=name, exact=True).click()


def run_now(page: Page, job: str) -> None:
    """Ends on the page of the run."""
    open_job(page, job)
    page.get_by_role("link", name="Run now").click()
    dialog(page).get_by_role("button", name="Run now").click()
    page.wait_for_url("**/runs/*/")


def state(page: Page) -> Locator:
    """The run's status at the top of its page."""
    return page.locator(".run-head .state")


def expect_succeeded(page: Page) -> None:
    expect(state(page)).to_have_text("Succeeded")


def lines(page: Page, title: str) -> Locator:
    """Lines of a timeline by their title."""
    return page.locator("#timeline .line").filter(has=page.locator(".line-title", has_text=title))


def server_row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
