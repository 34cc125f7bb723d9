"""A job's form with a server of thousands of tools: the checklist comes when it is opened."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from jobs.definition import AttachmentData
from secrets_vault.services import ensure_key_ring
from tests.e2e.conftest import SignIn
from tests.fakes.job_forms import make
from tests.fakes.server_rows import after_success, stdio_server

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
NAMES = tuple(f"tool-{number:04}" for number in range(2000))


def test_the_list_is_fetched_once_and_stands_as_the_form_does(
    page: Page, sign_in: SignIn, faults: list[str]
) -> None:
    """P65-P68."""
    ensure_key_ring()
    after_success(stdio_server("huge"), *NAMES)
    job = make(attachments=(AttachmentData("huge", NAMES[:2]),))
    sign_in(page)
    page.goto(f"/jobs/{job.pk}/settings/")
    button, form = page.locator("[data-tools-label]"), page.locator("form.job-form")
    expect(button).to_have_text("2 of 2000 tools")
    button.click()
    tools = page.get_by_role("dialog", name="Tools of huge")
    expect(tools.get_by_label("tool-0001", exact=True)).to_be_checked()
    expect(tools.get_by_label("tool-0002", exact=True)).not_to_be_checked()
    tools.get_by_label("Filter tools").fill("1999")
    expect(tools.locator("[data-tools-list] li:visible")).to_have_count(1)
    # Only looking changed nothing.
    assert "is-dirty" not in (form.get_attribute("class") or "")
    tools.get_by_label("tool-1999", exact=True).check()
    expect(button).to_have_text("3 of 2000 tools")
    tools.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    assert job.attachments.get().allowed_tools == [*NAMES[:2], NAMES[-1]]


def test_all_tools_is_counted_before_the_list_is_there(
    page: Page, sign_in: SignIn, faults: list[str]
) -> None:
    ensure_key_ring()
    after_success(stdio_server("huge"), *NAMES)
    job = make(attachments=(AttachmentData("huge", NAMES[:2]),))
    sign_in(page)
    page.route("**/jobs/attachment/**", lambda route: route.abort())
    page.goto(f"/jobs/{job.pk}/settings/")
    button = page.locator("[data-tools-label]")
    button.click()
    everything = page.get_by_role("dialog", name="Tools of huge").get_by_label("All tools")
    expect(everything).to_be_enabled()
    everything.check()
    expect(button).to_have_text("All tools")
    everything.uncheck()
    expect(button).to_have_text("2 of 2000 tools")
