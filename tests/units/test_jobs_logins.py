"""What jobs and the dashboard say of logins that are over or about to end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.definition import AttachmentData
from jobs.models import Job
from servers.models import Server
from servers.services import set_enabled
from tests.fakes.job_forms import make
from tests.fakes.login_rows import logged_in, oauth_server
from tests.fakes.server_rows import after_success, http_server
from tests.units.server_sheets import plain

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ENDS = "cannot be refreshed. Log in again before that."


@pytest.fixture(autouse=True)
def moment() -> Any:
    with time_machine.travel(timezone.now(), tick=False) as traveller:
        yield traveller


def working(name: str, **login: Any) -> Server:
    server = after_success(oauth_server(name), "echo")
    logged_in(server, **login)
    return server


def job_with(*servers: Server, name: str = "digest") -> Job:
    return make(name=name, attachments=tuple(AttachmentData(one.name) for one in servers))


def pages_of(job: Job) -> dict[str, str]:
    return {
        "list": reverse("jobs:list"),
        "overview": reverse("jobs:detail", args=[job.pk]),
        "settings": reverse("jobs:settings", args=[job.pk]),
    }


def shown(client: Client, address: str) -> str:
    return client.get(address).content.decode()


@pytest.mark.parametrize("place", ["list", "overview", "settings"])
def test_a_job_warns_of_a_login_that_is_about_to_end(place: str, member_client: Client) -> None:
    """Issue 4, section 4: on every job that uses it."""
    server = working("linear", lasts=2 * DAY, refresh=False)
    job = job_with(server)
    address = pages_of(job)[place]
    assert ENDS in plain(shown(member_client, address))
    server.login.delete()
    logged_in(server, refresh_failures=1, refresh_error="503 <Busy>")
    html = shown(member_client, address)
    assert "could not be refreshed: 503 &lt;Busy&gt;." in html
    server.login.delete()
    logged_in(server, lasts=HOUR)
    assert "refreshed" not in plain(shown(member_client, address))


@pytest.mark.parametrize("place", ["list", "overview", "settings"])
def test_a_job_says_that_a_login_is_over_or_missing(place: str, member_client: Client) -> None:
    """P47, P48: before the run fails of it."""
    over = working("over", lasts=-HOUR, refresh=False)
    words = plain(shown(member_client, pages_of(job_with(over))[place]))
    assert "The OAuth login expired. Log in again under MCP Servers." in words
    Job.objects.all().delete()
    for server in (working("refused", ended="refused"), oauth_server("never")):
        words = plain(shown(member_client, pages_of(job_with(server))[place]))
        assert "Nobody is logged in to this server. Log in under MCP Servers." in words
        Job.objects.all().delete()


@pytest.mark.parametrize("place", ["list", "overview", "settings"])
def test_a_job_is_silent_where_no_login_is_at_fault(place: str, member_client: Client) -> None:
    """A header beats a login (P49), a disabled server is skipped (P60), a server may let people in
    that have not logged in, and a client may log in by itself."""
    header = working("header", lasts=HOUR, refresh=False)
    Server.objects.filter(pk=header.pk).update(has_authorization=True)
    off = working("off", lasts=HOUR, refresh=False)
    set_enabled(off, actor=None, enabled=False)
    lets_in = oauth_server("lets-in", state="connected")
    machine = oauth_server("machine", oauth_kind="machine", oauth_client_id="me")
    job = job_with(header, off, lets_in, machine, http_server("plain"))
    words = plain(shown(member_client, pages_of(job)[place]))
    assert "Log in" not in words
    assert "logged in" not in words


def test_a_row_shows_servers_in_trouble_first(member_client: Client) -> None:
    """It has room for four."""
    fine = [after_success(http_server(f"s{number}"), "echo") for number in range(5)]
    job_with(*fine, working("zebra", lasts=DAY, refresh=False))
    words = plain(shown(member_client, reverse("jobs:list")))
    assert f"zebra : The login ends at {timezone.now() + DAY:%Y-%m-%d %H:%M} UTC" in words
    assert "and 2 more" in words


def test_a_server_that_is_attached_in_the_form_warns_at_once(member_client: Client) -> None:
    server = working("linear", lasts=DAY, refresh=False)
    address = reverse("jobs:attachment_row")
    html = member_client.get(address, {"attach": str(server.pk)}).content.decode()
    assert ENDS in html


@pytest.mark.parametrize("place", ["list", "overview", "settings"])
def test_any_number_of_logins_costs_the_same_queries(place: str, member_client: Client) -> None:
    from django.db import connection

    def queries(job: Job) -> int:
        with CaptureQueriesContext(connection) as asked:
            member_client.get(pages_of(job)[place])
        return len(asked)

    servers = [working(f"s{number}", lasts=DAY, refresh=False) for number in range(6)]
    for number in range(3):
        servers.append(http_server(f"t{number}", options={"token_ref": "@GONE"}))
    few = queries(job_with(servers[0], servers[6], name="few"))
    many = job_with(*servers, name="many")
    assert queries(many) == few


# The dashboard


def panel(client: Client) -> str:
    html = shown(client, reverse("dashboard"))
    if "Logins about to end" not in html:
        return ""
    begin = html.index("Logins about to end")
    return html[begin : html.index("</section>", begin)]


def test_the_dashboard_lists_logins_that_are_about_to_end(member_client: Client) -> None:
    """Those that work; what is over is in trouble already, and stands there."""
    assert not panel(member_client)
    working("lasts", lasts=DAY)
    working("over", lasts=-DAY, refresh=False)
    assert not panel(member_client)
    linear = working("linear", lasts=2 * DAY, refresh=False)
    working("failing", lasts=-HOUR, refresh_failures=1, refresh_error="503")
    html = panel(member_client)
    words = plain(html)
    assert reverse("servers:detail", args=[linear.pk]) in html
    assert "Login ends linear" in words
    assert "Log in again before that. in 2 days" in words
    assert "Login cannot be refreshed failing" in words
    assert "Token over 1 h ago" in words
    assert "lasts" not in words


def test_many_of_them_are_counted_and_lead_to_the_filtered_list(member_client: Client) -> None:
    for number in range(10):
        working(f"s{number}", lasts=timedelta(hours=number + 1), refresh=False)
    html = panel(member_client)
    assert "All 10" in html
    address = f"{reverse('servers:list')}?state=login_ending"
    assert address in html
    rows = member_client.get(address).context["rows"]
    assert len(rows) == 10
