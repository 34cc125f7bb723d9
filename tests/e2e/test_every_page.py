"""Every page that a link leads to, once of each kind: title, heading, labels, width, axe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Page

from tests.e2e.actions import expect_succeeded, run_now
from tests.e2e.conftest import DESK, PHONE, Complaints, NewPage
from tests.e2e.site import NODE_MODULES

AXE = (NODE_MODULES / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
RUN_AXE = "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
# The kinds of pages that the crawl must have met, so that it cannot pass by meeting none.
EXPECTED = {
    "/",
    "/account/password/",
    "/jobs/",
    "/jobs/new/",
    "/jobs/*/",
    "/jobs/*/delete/",
    "/jobs/*/environment/",
    "/jobs/*/run/",
    "/jobs/*/runs/",
    "/jobs/*/settings/",
    "/jobs/*/state/",
    "/runs/",
    "/runs/*/",
    "/runs/*/?tab=outputs",
    "/runs/*/?tab=raw",
    "/servers/",
    "/servers/new/",
    "/servers/*/",
    "/servers/checks/*/",
    "/servers/*/delete/",
    "/servers/*/edit/",
    "/servers/*/tool/",
    "/settings/audit/",
    "/settings/environments/*/",
    "/settings/environments/*/delete/",
    "/settings/environments/new/",
    "/settings/general/",
    "/settings/people/",
    "/settings/sandboxes/",
    "/settings/secrets/",
    "/settings/secrets/new/",
    "/settings/secrets/*/edit/",
    "/settings/tokens/",
    "/settings/tokens/new/",
    "/settings/tokens/*/revoke/",
}


def kind(url: str) -> str:
    """The page's address without ids and without queries other than a tab."""
    parts = urlsplit(url)
    tab = f"?{parts.query}" if parts.query.startswith("tab=") else ""
    return UUID.sub("*", parts.path) + tab


def pages(page: Page, starts: list[str]) -> Iterator[str]:
    """Opens one page of each kind and yields its kind."""
    waiting, met = list(starts), set(map(kind, starts))
    links = """links => links.map(link =>
        [new URL(link.getAttribute('href'), location.href).href, link.hasAttribute('download')])"""
    while waiting:
        url = waiting.pop(0)
        page.goto(url)
        for link, is_download in page.locator("a[href]").evaluate_all(links):
            same_site = urlsplit(link).netloc == urlsplit(page.url).netloc
            is_file = is_download or "/blobs/" in link or "/artifacts/" in link
            if same_site and not is_file and kind(link) not in met:
                met.add(kind(link))
                waiting.append(link)
        yield kind(url)


def server_page(page: Page, name: str) -> str:
    """The address of a tested server, which has tools and checks to link to."""
    page.goto("/servers/")
    link = page.get_by_role("link", name=name, exact=True)
    return urljoin(page.url, link.get_attribute("href"))


def faults(page: Page, width: int) -> Iterator[str]:
    title = page.title()
    if not re.fullmatch(r".+ · Umpteenth", title):
        yield f"title {title!r}"
    if (count := page.locator("h1").count()) != 1:
        yield f"{count} headings of the first level"
    wide = page.evaluate("document.scrollingElement.scrollWidth")
    if wide > width:
        yield f"{wide} px wide"
    page.evaluate(AXE)
    for violation in page.evaluate(RUN_AXE)["violations"]:
        nodes = [node["html"][:160] for node in violation["nodes"][:3]]
        yield f"axe {violation['id']} ({violation['impact']}): {violation['help']}: {nodes}"


DARK_PHONE = {"viewport": PHONE, "color_scheme": "dark"}
LIGHT_DESK = {"viewport": DESK, "color_scheme": "light"}


@pytest.mark.parametrize("options", [LIGHT_DESK, DARK_PHONE], ids=["light desk", "dark phone"])
def test_every_page_is_named_labelled_and_fits(open_page: NewPage, options: dict[str, Any]) -> None:
    page = open_page(**options)
    run_now(page, "leaves outputs")
    expect_succeeded(page)
    found: list[str] = []
    seen: set[str] = set()
    for name in pages(page, [page.url, server_page(page, "everything")]):
        seen.add(name)
        found += [f"{name}: {fault}" for fault in faults(page, options["viewport"]["width"])]
    assert not found, "\n".join(found)
    assert sorted(EXPECTED - seen) == []


def test_a_breach_of_the_policy_would_be_heard(alice: Page, complaints: Complaints) -> None:
    """What every other test relies on."""
    alice.goto("/")
    with alice.expect_event("console"):
        alice.evaluate("document.body.setAttribute('style', 'color: red')")
    assert "inline style" in complaints.found.pop()
    with alice.context.expect_event("weberror"):
        alice.evaluate("setTimeout(() => { throw new Error('heard') })")
    assert "heard" in complaints.found.pop()
