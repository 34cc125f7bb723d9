"""The main path by keyboard alone, on a phone's width, in the dark."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.e2e.actions import dialog, expect_succeeded, lines
from tests.e2e.conftest import PHONE, NewPage
from tests.e2e.site import Site

MOST_STOPS = 80
IS_MARKED = """element => {
  const box = element.closest('label.choice') || element;
  return [element, box].some(one => {
    const style = getComputedStyle(one);
    return style.outlineStyle !== 'none' || style.boxShadow !== 'none';
  });
}"""


def tab_to(page: Page, target: Locator) -> None:
    """Tab there; where the focus stands must be visible."""
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            assert target.evaluate(IS_MARKED), "The focus cannot be seen."
            return
    raise AssertionError(f"Tab does not lead to {target}.")


def fits(page: Page) -> None:
    """No page scrolls sideways on a phone."""
    wide = page.evaluate("document.scrollingElement.scrollWidth")
    assert wide <= PHONE["width"], f"{page.url} is {wide} px wide"


def test_a_server_is_added_tested_and_used_by_keyboard_alone_on_a_phone_in_the_dark(
    site: Site, open_page: NewPage
) -> None:
    page = open_page(viewport=PHONE, color_scheme="dark")
    add_server(page, site.fake)
    follow_its_test(page)
    run_a_job(page)


def add_server(page: Page, address: str) -> None:
    page.goto("/servers/")
    fits(page)
    tab_to(page, page.get_by_role("link", name="Add server"))
    page.keyboard.press("Enter")
    name = page.get_by_label("Name", exact=True)
    tab_to(page, name)
    page.keyboard.type("by-keyboard")
    tab_to(page, page.get_by_role("radio", name="stdio"))
    page.keyboard.press("ArrowDown")
    fits(page)
    tab_to(page, page.get_by_label("URL", exact=True))
    page.keyboard.type(address)
    tab_to(page, page.get_by_role("button", name="Add server"))
    page.keyboard.press("Space")


def follow_its_test(page: Page) -> None:
    expect(dialog(page).get_by_text("Connected", exact=True)).to_be_visible()
    fits(page)
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    tab_to(page, page.get_by_role("link", name="by-keyboard", exact=True))
    page.keyboard.press("Enter")
    expect(dialog(page).get_by_role("heading", name="by-keyboard")).to_be_visible()
    fits(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="by-keyboard", exact=True)).to_be_focused()


def run_a_job(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type("run leaves outputs")
    action = page.get_by_role("option", name="Run leaves outputs now")
    expect(action).to_be_visible()
    while action.get_attribute("aria-selected") != "true":
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(dialog(page).get_by_role("button", name="Run now")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*/")
    expect_succeeded(page)
    fits(page)
    tab_to(page, lines(page, "echo").locator("summary"))
    page.keyboard.press("Enter")
    expect(lines(page, "echo").get_by_text("Echo: good morning")).to_be_visible()
    fits(page)
    page.evaluate("scrollTo(0, 0)")
    page.get_by_role("link", name="Timeline", exact=True).focus()
    tab_to(page, page.get_by_role("link", name="Outputs 2"))
    page.keyboard.press("Enter")
    expect(page.get_by_text("19 and 23 are 42.")).to_be_visible()
    fits(page)
