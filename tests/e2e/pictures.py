"""Makes the README's pictures: a real site with real servers and runs, photographed.

    python -m tests.e2e.pictures [directory]

Needs what the browser tests need, and ImageMagick's `convert`, which makes the files small.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.actions import dialog, expect_succeeded, lines, run_now, server_row, state
from tests.e2e.conftest import CHROMIUM, DESK, PATIENCE
from tests.e2e.site import (
    Site,
    everything_over_http,
    free_port,
    running_site,
    served,
)
from tests.fakes.oauth_server import OAuthServer, Variant, running
from umpteenth.core.config import PROJECT_ROOT

EXAMPLES = PROJECT_ROOT / "docs" / "examples"
TOKEN = "made-up-weather-token"
COLORS = "128"
MORNING = """#!/usr/bin/env python3
import json, os, subprocess


def ump(*words):
    done = subprocess.run(["ump", *words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def call(server, tool, **arguments):
    return json.loads(ump("mcp", "call", server, tool, json.dumps(arguments)))


ump("step", "Ask for the weather in Berlin")
print("Asking with the token", os.environ["WEATHER_TOKEN"], flush=True)
days = call("weather", "forecast", city="Berlin", days=3)["days"]
text = ", ".join(f"{day['sky']} at {day['celsius']} °C" for day in days)

ump("step", "Remember it")
call("memory", "create_entities", entities=[
    {"name": "Berlin", "entityType": "city", "observations": [text]}])
found = call("memory", "search_nodes", query="Berlin")["entities"]

ump("output", "set", "forecast", json.dumps(days))
with open("/ump/outputs/berlin.json", "w") as file:
    json.dump(found, file, indent=2)
ump("summary", f"Berlin: {text}.")
"""
GREET = """#!/usr/bin/env bash
set -euo pipefail
ump step "Greet"
ump mcp call everything echo '{"message": "good morning"}'
ump mcp call everything get-sum '{"a": 19, "b": 23}'
ump summary "Greeted."
"""
FAILS = """#!/usr/bin/env bash
ump step "Fetch the report"
ump mcp call weather forecast '{"city": 7}' || ump fail "The weather server refused the city."
"""


def main(directory: Path) -> None:
    """Fill a site, run its jobs once or twice, and photograph."""
    directory.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="ump-pictures-"))
    with (
        running_site(home) as site,
        everything_over_http(home) as everything,
        weather(home) as forecast,
        running(OAuthServer(Variant(decision="ask"))) as tickets,
        sync_playwright() as playwright,
    ):
        site.fill_with("tests.e2e.pictures", "fill", everything, forecast, tickets.url)
        browser = playwright.chromium.launch(**CHROMIUM)  # type: ignore[arg-type]
        photograph(browser, site, directory)
        browser.close()
    shutil.rmtree(home)


@contextlib.contextmanager
def weather(home: Path) -> Iterator[str]:
    """The demo's server over HTTP; its address."""
    port = free_port()
    argv = [sys.executable, str(EXAMPLES / "weather_http.py"), f"--port={port}"]
    with served(argv, port, home / "weather.log", WEATHER_TOKEN=TOKEN) as address:
        yield address


def photograph(browser: Browser, site: Site, directory: Path) -> None:
    light = open_page(browser, site, "light")
    for job in ("greet everybody", "morning note", "check the report", "morning note"):
        run_now(light, job)
        expect(state(light)).not_to_have_text("Queued")
        expect(light.locator(".run-head[data-finished]")).to_be_visible()
    for name in ("forecast", "create_entities"):
        lines(light, name).locator("summary").first.click()
        expect(lines(light, name).locator(".panes").first).to_be_visible()
    expect_succeeded(light)
    address = light.url
    shoot(light, directory / "timeline.png")
    dark = open_page(browser, site, "dark")
    dark.goto(address.partition("#")[0])
    expect(dark.locator(".panes").first).to_be_visible()
    lines(dark, "forecast").locator("summary").first.click()
    shoot(dark, directory / "timeline-dark.png")

    light.goto("/servers/")
    server_row(light, "tickets").get_by_role("button", name="Log in").click()
    light.get_by_role("button", name="Approve").click()
    expect(dialog(light).get_by_text("Connected", exact=True).first).to_be_visible()
    light.keyboard.press("Escape")
    server_row(light, "tickets").get_by_role("link", name="tickets", exact=True).click()
    expect(light.get_by_role("heading", name="Login")).to_be_visible()
    shoot(light, directory / "login.png")

    light.goto("/servers/")
    server_row(light, "everything").get_by_role("button", name="Test everything").click()
    expect(dialog(light).get_by_text("Connected", exact=True).first).to_be_visible()
    shoot(light, directory / "test.png")
    light.keyboard.press("Escape")
    shoot(light, directory / "servers.png")


def open_page(browser: Browser, site: Site, scheme: str) -> Page:
    context = browser.new_context(
        base_url=site.address,
        viewport=DESK,  # type: ignore[arg-type]
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE)
    context.add_cookies([site.cookie("alice")])  # type: ignore[list-item]
    return context.new_page()


def shoot(page: Page, path: Path) -> None:
    """The window as a file of few colours."""
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(0, 0)
    expect(page.locator(".toast-card")).to_have_count(0)
    page.screenshot(path=path)
    subprocess.run(
        ["convert", str(path), "-strip", "+dither", "-colors", COLORS, f"PNG8:{path}"],
        check=True,
    )


def fill(everything: str, forecast: str, tickets: str) -> None:
    """In a process of its own, on the site's data."""
    from umpteenth.cli.bootstrap import setup

    setup()
    from django.test import Client

    from jobs.services import AttachmentData, JobData, SecretData, create_job
    from secrets_vault.services import set_secret
    from servers.checks import request_check
    from servers.definition import HTTP, STDIO, Entry, ServerData
    from servers.services import create_server
    from umpteenth.accounts.services import create_user

    alice = create_user(name="alice", password="correct horse battery", administrator=True)
    client = Client()
    client.force_login(alice)
    set_secret(actor=alice, name="WEATHER_TOKEN", value=TOKEN, description="For the forecast")
    bearer = Entry("Authorization", "Bearer {{secret:WEATHER_TOKEN}}")
    package = ("-y", "@modelcontextprotocol/server-memory")
    for data in (
        ServerData("weather", HTTP, "Forecasts for the morning", url=forecast, headers=(bearer,)),
        ServerData("everything", HTTP, "One of each kind of tool", url=everything),
        ServerData("tickets", HTTP, "Issues, behind a login", url=tickets),
        ServerData("memory", STDIO, "A graph of what was learned", command="npx", args=package),
    ):
        request_check(create_server(actor=alice, data=data), actor=alice)
    both = (AttachmentData("memory"), AttachmentData("weather", ("forecast",)))
    for job in (
        JobData(
            "morning note",
            MORNING,
            "Asks for the weather and remembers it.",
            network="none",
            cron="30 6 * * 1-5",
            timezone="Europe/Berlin",
            attachments=both,
            secrets=(SecretData("WEATHER_TOKEN", "WEATHER_TOKEN"),),
        ),
        JobData("greet everybody", GREET, attachments=(AttachmentData("everything"),)),
        JobData("check the report", FAILS, attachments=(AttachmentData("weather"),)),
    ):
        create_job(actor=alice, data=job)
    json.dump({"sessions": {"alice": client.cookies["sessionid"].value}}, sys.stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["fill"]:
        fill(*sys.argv[2:])
    else:
        main(Path(sys.argv[1]) if sys.argv[1:] else PROJECT_ROOT / "docs" / "images")
