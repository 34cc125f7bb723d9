"""The frame of all pages in a browser: keyboard, dialogs, theme, phone, no script."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from jobs.definition import JobData
from jobs.services import create_job
from secrets_vault.services import ensure_key_ring
from tests.conftest import PASSWORD
from tests.e2e.conftest import SignIn
from umpteenth.accounts.models import User

PAGES = (
    "/",
    "/jobs/",
    "/jobs/new/",
    "/runs/",
    "/servers/",
    "/servers/new/",
    "/settings/secrets/",
    "/settings/secrets/new/",
    "/settings/sandboxes/",
    "/settings/people/",
    "/settings/people/add/",
    "/settings/general/",
    "/settings/audit/",
    "/account/password/",
    "/search",
    "/nowhere",
)


def _active(page: Page) -> str:
    words: str = page.evaluate("document.activeElement.textContent.trim()")
    return words


def test_the_palette_is_used_by_keyboard_alone(
    page: Page, sign_in: SignIn, faults: list[str]
) -> None:
    sign_in(page)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Search")).to_be_focused()
    page.keyboard.type("settings")
    options = page.get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.type(" people")
    expect(options).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/settings/people/")


def test_the_palette_gives_the_focus_back(page: Page, sign_in: SignIn) -> None:
    sign_in(page)
    page.get_by_role("link", name="Jobs", exact=True).focus()
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Jobs", exact=True)).to_be_focused()


def test_a_dialog_holds_the_focus_shows_errors_and_tells_the_outcome(
    page: Page, sign_in: SignIn, faults: list[str]
) -> None:
    sign_in(page)
    page.goto("/settings/people/")
    page.get_by_role("link", name="Add person").click()
    dialog = page.get_by_role("dialog", name="Add person")
    expect(dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.type("carol")
    dialog.get_by_label("One-time password").fill("short")
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("at least 10 characters.")).to_be_visible()
    expect(dialog.get_by_label("One-time password")).to_be_focused()
    dialog.get_by_label("One-time password").fill("a phrase to tell")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts").get_by_text("carol can sign in now.")).to_be_visible()
    expect(page.get_by_role("row", name="carol")).to_be_visible()


def test_escape_closes_a_dialog_and_returns_to_its_opener(page: Page, sign_in: SignIn) -> None:
    sign_in(page)
    page.goto("/settings/people/")
    page.get_by_role("link", name="Add person").click()
    expect(page.get_by_role("dialog").get_by_label("Name")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert _active(page) == "Add person"


def test_a_stray_click_keeps_what_was_typed(page: Page, sign_in: SignIn) -> None:
    sign_in(page)
    page.goto("/settings/people/")
    page.get_by_role("link", name="Add person").click()
    page.get_by_role("dialog").get_by_label("Name").fill("carol")
    page.mouse.click(5, 5)
    expect(page.get_by_role("dialog").get_by_label("Name")).to_have_value("carol")
    page.get_by_role("dialog").get_by_label("Name").fill("")
    page.mouse.click(5, 5)
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_menu_is_whole_and_moves_by_arrows(page: Page, sign_in: SignIn) -> None:
    """It lies in a scrolling table, which must not cut it off."""
    sign_in(page)
    page.goto("/settings/people/")
    page.get_by_label("Actions for alice").focus()
    page.keyboard.press("Enter")
    last = page.get_by_role("link", name="Deactivate")
    expect(last).to_be_in_viewport(ratio=1)
    page.keyboard.press("ArrowDown")
    assert _active(page) == "Change role"
    page.keyboard.press("ArrowUp")
    assert _active(page) == "Deactivate"
    page.keyboard.press("Escape")
    expect(page.get_by_label("Actions for alice")).to_be_focused()


def test_the_theme_is_kept_and_follows_the_system_at_first(
    browser: Browser, live_server: LiveServer, sign_in: SignIn
) -> None:
    context = browser.new_context(base_url=live_server.url, color_scheme="dark")
    page = context.new_page()
    sign_in(page)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Switch between light and dark").click()
    light = page.evaluate(background)
    assert dark != light
    page.goto("/settings/people/")
    assert page.evaluate(background) == light
    context.close()


def test_an_ended_session_leads_to_sign_in_and_back(page: Page, sign_in: SignIn) -> None:
    sign_in(page)
    page.goto("/settings/people/")
    page.context.clear_cookies(name="sessionid")
    page.get_by_role("link", name="Add person").click()
    page.wait_for_url("**/sign-in/?next=/settings/people/")
    page.get_by_label("Name").fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/settings/people/")


def test_back_after_sign_out_shows_no_page(page: Page, sign_in: SignIn) -> None:
    sign_in(page)
    page.goto("/settings/people/")
    page.locator("summary.person").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in/")
    page.go_back()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_unsaved_changes_are_announced_and_can_be_discarded(
    page: Page, sign_in: SignIn, faults: list[str]
) -> None:
    job = create_job(actor=None, data=JobData("nightly", "#!/bin/sh\necho hi\n"))
    sign_in(page)
    page.goto(f"/jobs/{job.pk}/settings/")
    bar = page.locator("[data-unsaved-bar]")
    expect(bar).to_be_hidden()
    page.get_by_label("Description").fill("changed")
    expect(bar).to_be_visible()
    bar.get_by_role("button", name="Discard").click()
    expect(page.get_by_label("Description")).to_have_value("")
    expect(bar).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_breaks_the_policy_or_is_wider_than_a_phone(
    browser: Browser, live_server: LiveServer, sign_in: SignIn, scheme: str
) -> None:
    ensure_key_ring()
    faults: list[str] = []
    context = browser.new_context(
        base_url=live_server.url,
        viewport={"width": 390, "height": 844},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    page.on(
        "console",
        lambda message: (
            faults.append(f"{page.url}: {message.text}")
            if "Content Security Policy" in message.text
            else None
        ),
    )
    sign_in(page)
    for url in PAGES:
        page.goto(url)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            faults.append(f"{url} is {width} px wide")
    context.close()
    assert faults == []


def test_people_are_managed_without_script(
    browser: Browser, live_server: LiveServer, sign_in: SignIn
) -> None:
    context = browser.new_context(base_url=live_server.url, java_script_enabled=False)
    page = context.new_page()
    sign_in(page)
    page.goto("/settings/people/")
    page.get_by_role("link", name="Add person").click()
    page.wait_for_url("**/settings/people/add/")
    page.get_by_label("Name").fill("carol")
    page.get_by_label("One-time password").fill("a phrase to tell")
    page.get_by_role("button", name="Add person").click()
    expect(page.get_by_text("carol can sign in now.")).to_be_visible()
    page.get_by_label("Actions for carol").click()
    page.get_by_role("link", name="Deactivate").click()
    page.get_by_role("button", name="Deactivate").click()
    expect(page.get_by_text("carol has been deactivated.")).to_be_visible()
    assert not User.objects.get(username="carol").is_active
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate("document.documentElement.dataset.bsTheme") == "dark"
    context.close()
