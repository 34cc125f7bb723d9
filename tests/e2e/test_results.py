"""What tools return, as people see it: pictures, long texts, and how far a call is."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.actions import expect_succeeded, lines, run_now, state
from tests.e2e.conftest import DESK
from tests.e2e.test_every_page import faults as faults_of


@pytest.fixture
def returned(alice: Page) -> Page:
    """The page of a run that goes on until it is cancelled."""
    run_now(alice, "returns things")
    expect(lines(alice, "progress").locator(".line-outcome")).to_have_text("Running")
    return alice


def finish(page: Page) -> None:
    page.get_by_role("button", name="Cancel").click()
    expect(state(page)).to_have_text("Cancelled")


def opened(page: Page, title: str) -> None:
    lines(page, title).locator("summary.line-head").click()
    expect(lines(page, title).locator(".panes")).to_be_visible()


def test_output_that_is_over_is_read_from_its_beginning(alice: Page) -> None:
    run_now(alice, "prints")
    expect_succeeded(alice)
    alice.reload()
    output = alice.locator(".console").first
    expect(output).to_contain_text("line 99")
    assert output.evaluate("node => node.scrollHeight > node.clientHeight")
    assert output.evaluate("node => node.scrollTop") == 0


def test_a_picture_passes_the_policy_of_the_page_and_is_seen(returned: Page) -> None:
    opened(returned, "get-tiny-image")
    picture = lines(returned, "get-tiny-image").get_by_alt_text("Image that the tool returned")
    expect(picture).to_be_visible()
    loaded = "image => image.decode().then(() => image.naturalWidth)"
    assert picture.evaluate(loaded) > 0
    assert list(faults_of(returned, DESK["width"])) == []
    finish(returned)
    returned.get_by_role("link", name="Outputs").click()
    expect(returned.get_by_role("heading", name="Files from tool results")).to_be_visible()


def test_a_long_result_is_read_page_by_page(returned: Page) -> None:
    finish(returned)
    opened(returned, "big")
    lines(returned, "big").get_by_role("link", name="Show all").click()
    expect(returned.get_by_role("heading", name="Result of big")).to_be_visible()
    assert list(faults_of(returned, DESK["width"])) == []
    returned.get_by_role("link", name="Next").click()
    expect(returned.get_by_label("Page", exact=True)).to_have_value("2")
    returned.get_by_label("Page", exact=True).fill("3")
    returned.keyboard.press("Enter")
    expect(returned.get_by_label("Page 3 of 3")).to_be_visible()
    expect(returned.get_by_role("link", name="Next")).to_have_count(0)
    returned.get_by_role("link", name="Timeline").click()
    expect(lines(returned, "big").locator(".panes")).to_be_visible()


def test_progress_comes_without_taking_the_open_line_away(returned: Page) -> None:
    opened(returned, "progress")
    body = lines(returned, "progress").locator(".panes").element_handle()
    detail = lines(returned, "progress").locator(".line-detail")
    expect(detail).to_contain_text("so far")
    before = detail.inner_text()
    expect(detail).not_to_have_text(before)
    assert body is not None
    assert body.evaluate("element => element.isConnected")
    finish(returned)
    expect(lines(returned, "progress").locator(".line-outcome")).not_to_have_text("Running")
