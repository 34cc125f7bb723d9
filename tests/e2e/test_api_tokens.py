"""Settings, API tokens: made in a dialog, shown once, used by a program, revoked."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import APIRequestContext, BrowserContext, Page, Playwright, expect
from pytest_django.live_server_helper import LiveServer

from tests.e2e.actions import dialog
from tests.e2e.conftest import SignIn

pytestmark = pytest.mark.django_db(transaction=True)


def call(program: APIRequestContext, token: str) -> int:
    return program.get("/api/", headers={"Authorization": f"Bearer {token}"}).status


def test_a_token_is_made_copied_used_and_revoked(
    page: Page,
    context: BrowserContext,
    playwright: Playwright,
    live_server: LiveServer,
    sign_in: SignIn,
    faults: list[str],
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    program = playwright.request.new_context(base_url=live_server.url)
    sign_in(page)
    page.goto("/settings/tokens/")
    page.get_by_role("link", name="New token").first.click()
    dialog(page).get_by_label("Name").fill("night script")
    dialog(page).get_by_role("button", name="Create token").click()

    token = dialog(page).get_by_label("Token", exact=True).input_value()
    assert re.fullmatch(r"ump_[A-Za-z0-9]{40}", token)
    dialog(page).get_by_role("button", name="Copy the token").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == token
    assert call(program, token) == 200

    # What is shown only once is not lost by a stray click; the list below knows it already.
    page.mouse.click(2, 2)
    expect(dialog(page)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("row").filter(has_text="night script")).to_contain_text("Active")
    expect(page.locator("#token-text")).to_have_count(0)
    assert token not in page.content()

    page.get_by_label("Actions for night script").click()
    page.get_by_role("link", name="Revoke").click()
    dialog(page).get_by_role("button", name="Revoke token").click()
    expect(page.get_by_text("night script has been revoked.")).to_be_visible()
    assert call(program, token) == 401
    program.dispose()
