"""A run's page while the run goes on, and what of a run may be seen."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.e2e.actions import dialog, expect_succeeded, lines, open_job, run_now, state
from tests.e2e.conftest import Complaints, NewPage
from tests.e2e.stock import HOSTILE, SECRET, SECRET_VALUE

CANCEL_LIMIT = 10_000  # milliseconds; what issue 2 allows


def cancel(page: Page) -> None:
    page.get_by_role("button", name="Cancel").click()
    expect(state(page)).to_have_text("Cancelled", timeout=CANCEL_LIMIT)
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


def test_a_live_run_says_what_it_waits_for_and_can_be_cancelled(alice: Page) -> None:
    run_now(alice, "waits")
    waiting = lines(alice, "hang")
    expect(waiting.locator(".line-outcome")).to_have_text("Running")
    expect(alice.locator("#timeline-now")).to_contain_text("hang")
    cancel(alice)
    expect(waiting.locator(".line-outcome")).not_to_have_text("Running")
    expect(alice.locator("#timeline-now")).to_be_empty()


def test_a_double_click_starts_one_run(alice: Page) -> None:
    sent: list[str] = []
    alice.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
    open_job(alice, "leaks")
    alice.get_by_role("link", name="Run now").click()
    dialog(alice).get_by_role("button", name="Run now").dblclick()
    alice.wait_for_url("**/runs/*/")
    expect_succeeded(alice)
    assert len([line for line in sent if line.startswith("POST")]) == 1


def test_a_refused_form_can_be_sent_again(alice: Page, complaints: Complaints) -> None:
    complaints.expected = (422,)
    open_job(alice, "leaks")
    alice.get_by_role("link", name="Run now").click()
    # Each fault has words of its own, so that the second answer is not taken for the first.
    for text, fault in [("{", "property name"), ("[", "Expecting value")]:
        dialog(alice).get_by_label("Input (JSON)").fill(text)
        dialog(alice).get_by_role("button", name="Run now").click()
        expect(dialog(alice)).to_contain_text(fault)
    dialog(alice).get_by_label("Input (JSON)").fill("{}")
    dialog(alice).get_by_role("button", name="Run now").click()
    alice.wait_for_url("**/runs/*/")
    expect_succeeded(alice)


def test_a_reload_in_mid_run_resumes_without_a_line_twice(alice: Page) -> None:
    run_now(alice, "talks")
    expect(alice.locator("#timeline .line").nth(12)).to_be_visible()
    alice.reload()
    seen = alice.locator("#timeline .line").count()
    expect(alice.locator("#timeline .line").nth(seen + 5)).to_be_visible()
    ids = "nodes => nodes.map(node => node.id)"
    shown = alice.locator("#timeline .line").evaluate_all(ids)
    assert len(shown) == len(set(shown))
    numbers = [int(name[1:]) for name in shown]
    assert numbers == sorted(numbers)
    cancel(alice)


def test_following_stops_when_the_reader_scrolls_up_and_starts_again(alice: Page) -> None:
    run_now(alice, "talks")
    expect(alice.locator("#timeline .line").nth(45)).to_be_visible()
    expect(alice.locator("#timeline .line").last).to_be_in_viewport()
    follow = alice.get_by_role("button", name="Follow output")
    expect(follow).to_be_hidden()
    alice.mouse.move(640, 400)
    alice.mouse.wheel(0, -600)
    expect(follow).to_be_visible()
    place = alice.evaluate("scrollY")
    seen = alice.locator("#timeline .line").count()
    expect(alice.locator("#timeline .line").nth(seen + 2)).to_be_attached()
    assert alice.evaluate("scrollY") == place
    follow.click()
    expect(alice.locator("#timeline .line").last).to_be_in_viewport()
    expect(follow).to_be_hidden()
    cancel(alice)


def test_hostile_text_of_a_tool_is_text_and_a_secret_shows_by_its_name_alone(alice: Page) -> None:
    """A28, E07: also in the raw record and the output to download."""
    run_now(alice, "leaks")
    expect_succeeded(alice)
    expect(alice.locator(".console").first).to_contain_text(f"the token is [secret {SECRET}]")
    call = lines(alice, "content")
    call.locator("summary").click()
    expect(call.locator(".line-body")).to_contain_text(HOSTILE)
    assert alice.locator("#timeline img, #timeline script").count() == 0
    echo = lines(alice, "echo")
    echo.locator("summary").click()
    expect(echo.locator(".line-body")).to_contain_text(f"[secret {SECRET}]")
    assert SECRET_VALUE not in alice.content()
    alice.get_by_role("link", name="Raw").click()
    expect(alice.get_by_label("Run as JSON", exact=True)).to_be_visible()
    expect(alice).not_to_have_title("owned")
    assert SECRET_VALUE not in alice.content()
    with alice.expect_download() as download:
        alice.get_by_role("link", name="Download everything").click()
    assert SECRET_VALUE not in download.value.path().read_text()


def test_the_list_of_runs_and_a_second_persons_page_follow_a_run(open_page: NewPage) -> None:
    alice, bob = open_page("alice"), open_page("bob")
    run_now(alice, "waits")
    expect(lines(alice, "hang")).to_be_visible()
    bob.goto("/runs/")
    row = bob.get_by_role("row", name="waits").first
    expect(row).to_contain_text("Running")
    cancel(alice)
    expect(row).to_contain_text("Cancelled")
