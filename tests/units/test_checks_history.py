"""What is kept of checks, for how long, and what pages show of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from servers import checks, queries
from servers.models import Check, Server
from tests.fakes.server_rows import after_success, http_server
from umpteenth.core.clock import database_now

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def past(server: Server, age: timedelta, now: datetime | None = None, **values: Any) -> Check:
    """A check of that age, done unless said otherwise."""
    values = {"status": "done", "outcome": "connected", **values}
    check = Check.objects.create(server=server, connection_version=1, **values)
    Check.objects.filter(pk=check.pk).update(created_at=(now or database_now()) - age)
    return check


NEWS = {"added": ["a"], "removed": [], "changed": []}


class TestPruning:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "KEEP_NEWEST", 3)

    def test_old_checks_go_and_the_newest_of_each_server_stay(self) -> None:
        server, quiet = http_server(), http_server("quiet")
        for days in range(28, 40):
            past(server, days * DAY)
        for days in range(100, 105):
            past(quiet, days * DAY)
        now = database_now()
        assert checks.prune(now) == 11
        ages = sorted((now - row.created_at).days for row in server.checks.all())
        assert ages == [28, 29, 30]
        assert quiet.checks.count() == 3
        assert checks.prune(now) == 0

    def test_health_checks_without_news_go_sooner(self) -> None:
        server = http_server()
        for _ in range(3):
            past(server, DAY)
        stay = [
            past(server, 4 * DAY, kind="health", outcome="failed"),
            past(server, 4 * DAY, kind="health", changes=NEWS),
            past(server, 4 * DAY),
            past(server, 2 * DAY, kind="health"),
        ]
        going = past(server, 4 * DAY, kind="health")
        assert checks.prune(database_now()) == 1
        left = set(server.checks.values_list("pk", flat=True))
        assert going.pk not in left
        assert {check.pk for check in stay} <= left

    def test_a_check_under_way_stays_whatever_its_age(self) -> None:
        server = http_server()
        for _ in range(3):
            past(server, DAY)
        past(server, 90 * DAY, status="queued", outcome="")
        assert checks.prune(database_now()) == 0

    def test_so_many_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "PRUNE_AT_MOST", 4)
        for name in ("one", "two"):
            server = http_server(name)
            for _ in range(3 + 5):
                past(server, 60 * DAY)
        assert [checks.prune(database_now()) for _ in range(4)] == [4, 4, 2, 0]

    def test_the_numbers_that_hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        assert (checks.KEEP_FOR, checks.KEEP_NEWEST) == (30 * DAY, 50)


class TestShown:
    def test_of_quiet_health_checks_only_the_newest_of_all_is_shown(self) -> None:
        server = http_server()
        person = past(server, timedelta(hours=9))
        for hours in (8, 7, 6, 4, 2):
            past(server, timedelta(hours=hours), kind="health")
        failed = past(server, timedelta(hours=5), kind="health", outcome="failed")
        newest = past(server, timedelta(hours=1), kind="health")
        assert queries.recent_checks(server.pk) == [newest, failed, person]

    def test_news_outlive_the_checks_after_it_for_a_week(self) -> None:
        server = http_server()
        now = database_now()
        assert queries.latest_news(server.pk, now) is None
        past(server, 8 * DAY, now, changes=NEWS)
        assert queries.latest_news(server.pk, now) is None
        news = past(server, 2 * DAY, now, kind="run", changes=NEWS)
        past(server, DAY, now, kind="health")
        past(server, DAY, now, outcome="failed")
        assert queries.latest_news(server.pk, now) == news


class TestTrouble:
    def test_enabled_servers_that_cannot_be_used_are_in_trouble(self) -> None:
        states = ("failed", "login_required", "connected", "untested")
        for state in states:
            server = http_server(state)
            Server.objects.filter(pk=server.pk).update(state=state)
        off = http_server("off")
        Server.objects.filter(pk=off.pk).update(state="failed", enabled=False)
        found, count = queries.servers_in_trouble()
        assert ([server.name for server in found], count) == (["failed", "login_required"], 2)

    def test_what_worked_last_comes_first_and_the_rest_is_counted(self) -> None:
        for number in range(12):
            server = http_server(f"s{number:02}")
            if number in (3, 7):
                after_success(server, "a")
        Server.objects.update(state="failed")
        found, count = queries.servers_in_trouble()
        assert [server.name for server in found[:3]] == ["s07", "s03", "s00"]
        assert (len(found), count) == (queries.TROUBLES, 12)

    def test_those_that_do_not_fit_are_one_click_away(self, member_client: Client) -> None:
        for number in range(queries.TROUBLES + 1):
            http_server(f"s{number:02}")
        Server.objects.update(state="failed")
        after_success(http_server("works"), "a")
        page = member_client.get(reverse("dashboard")).content.decode()
        assert f'href="{reverse("servers:list")}?state=trouble">All 9</a>' in page
        rows = member_client.get(reverse("servers:list"), {"state": "trouble"}).context["rows"]
        assert len(rows) == 9

    def test_the_dashboard_names_them_with_their_own_words(self, member_client: Client) -> None:
        server = after_success(http_server(), "a")
        later = database_now() + timedelta(minutes=12)
        Server.objects.update(
            state="failed", last_error="503 <Busy>", failures=4, next_check_at=later
        )
        page = member_client.get(reverse("dashboard")).content.decode()
        assert "Servers in trouble" in page
        assert reverse("servers:detail", args=[server.pk]) in page
        assert "503 &lt;Busy&gt;" in page
        assert "4 attempts" in page
        assert "in 12 min" in page

    def test_where_all_is_well_the_dashboard_says_nothing(self, member_client: Client) -> None:
        after_success(http_server(), "a")
        assert "in trouble" not in member_client.get(reverse("dashboard")).content.decode()
