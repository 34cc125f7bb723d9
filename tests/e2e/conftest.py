"""A real site, a real browser, and a watch for whatever a page complains about.

Each pytest process has one site, filled by `stock`; tests change nothing in it that another
test reads. Only the main journey starts with an empty site of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, WebError, expect
from pytest_django.live_server_helper import LiveServer

from tests.e2e.site import Site, everything_over_http, fake_over_http, running_site

PATIENCE = 20_000.0  # milliseconds; nearly all answers take less than one of these twenty seconds
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
CHROMIUM = {
    "executable_path": "/usr/bin/chromium",
    "args": [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ],
}
expect.set_options(timeout=PATIENCE)


class _Loop:
    """Playwright's event loop counts as running between its calls, for the whole session.

    Asynchronous tests in the same process need loops of their own: it is set aside meanwhile.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def set_aside(self) -> None:
        self._loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)

    def put_back(self) -> None:
        if self._loop is not None:
            asyncio._set_running_loop(self._loop)


_loop = _Loop()


@pytest.fixture(autouse=True)
def _set_aside_event_loop() -> Iterator[None]:
    _loop.put_back()
    yield
    _loop.set_aside()


@pytest.fixture(scope="session")
def browser(launch_browser: Callable[[], Browser]) -> Iterator[Browser]:
    browser = launch_browser()
    yield browser
    _loop.put_back()
    browser.close()


@pytest.fixture(scope="session")
def base_url() -> None:
    """In place of the plugin's own, which pytest warns about; each context says its address."""


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    return CHROMIUM


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    with (
        running_site(directory) as site,
        everything_over_http(directory) as everything,
        fake_over_http() as fake,
    ):
        site.fill(everything=everything, fake=fake)
        yield site


@pytest.fixture
def empty_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """As it is after the first start."""
    with running_site(tmp_path_factory.mktemp("empty")) as site:
        yield site


@dataclass
class Complaints:
    """What pages wrote to the console or threw. A test may expect answers with some statuses."""

    found: list[str] = field(default_factory=list)
    expected: tuple[int, ...] = ()

    def watch(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", self._error)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        if any(f"status of {status}" in message.text for status in self.expected):
            return
        place = message.location
        self.found.append(f"{message.text} ({place.get('url')}:{place.get('lineNumber')})")

    def _error(self, error: WebError) -> None:
        self.found.append(str(error.error))


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    complaints = Complaints()
    yield complaints
    assert not complaints.found, "\n".join(complaints.found)


NewPage = Callable[..., Page]


@pytest.fixture
def open_page(request: pytest.FixtureRequest, complaints: Complaints, new_context: Any) -> NewPage:
    """Opens a page in a browser of its own, as somebody (None: not signed in).

    Further arguments are those of Playwright's `new_context`.
    """

    def opened(person: str | None = "alice", site: Site | None = None, **options: Any) -> Page:
        here = site or request.getfixturevalue("site")
        context = new_context(**{"base_url": here.address, "viewport": DESK, **options})
        context.set_default_timeout(PATIENCE)
        complaints.watch(context)
        if person is not None:
            context.add_cookies([here.cookie(person)])
        page: Page = context.new_page()
        return page

    return opened


@pytest.fixture
def alice(open_page: NewPage) -> Page:
    """A page of Alice, an administrator, at her desk."""
    return open_page()


# For tests of the frame alone, which need neither worker nor sandbox: the site is a thread of
# the test process, its data the test database.


@pytest.fixture
def context(new_context: Any, live_server: LiveServer) -> BrowserContext:
    context: BrowserContext = new_context(base_url=live_server.url)
    return context


@pytest.fixture
def faults(page: Page) -> Iterator[list[str]]:
    """What the page throws or what breaks the content security policy; none at the end."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    page.on(
        "console",
        lambda message: (
            found.append(f"{page.url}: {message.text}")
            if "Content Security Policy" in message.text
            else None
        ),
    )
    yield found
    assert found == []


SignIn = Callable[[Page], None]


@pytest.fixture
def sign_in(live_server: LiveServer, administrator_client: Client) -> SignIn:
    """Makes a page one of Alice's, at the dashboard."""

    def signed_in(page: Page) -> None:
        value = administrator_client.cookies["sessionid"].value
        page.context.add_cookies([{"name": "sessionid", "value": value, "url": live_server.url}])
        page.goto("/")

    return signed_in
