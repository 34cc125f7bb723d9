"""The schedule card: plain words and the next five times while typing, by the code that fires."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import time_machine
from django.test import Client

from jobs import schedule
from jobs.views.schedules import preview, words_of

pytestmark = pytest.mark.django_db
MONDAY = datetime(2026, 11, 30, 11, 0, tzinfo=UTC)


def shown(client: Client, cron: str, zone: str = "UTC") -> str:
    response = client.get("/jobs/cron-preview/", {"cron": cron, "timezone": zone})
    assert response.status_code == 200
    return response.content.decode()


@time_machine.travel(MONDAY, tick=False)
def test_a_schedule_is_told_in_plain_words_with_its_next_five_times(member_client: Client) -> None:
    html = shown(member_client, "0 9 * * 1-5", "Europe/Berlin")
    assert "At 09:00 on Monday through Friday" in html
    assert html.count("<li>") == 5
    assert "Tue 1 Dec 2026, 09:00 CET" in html
    assert "in 21 h" in html


@time_machine.travel(MONDAY, tick=False)
def test_the_preview_names_the_times_that_fire() -> None:
    """G06: one code for both."""
    plan = schedule.parse("0 0 1,15 * 5", "UTC")
    fired = plan.after(MONDAY)
    assert [at for at, _ in preview("0 0 1,15 * 5", "UTC").times] == [next(fired) for _ in range(5)]


@time_machine.travel(datetime(2026, 3, 28, 12, 0, tzinfo=UTC), tick=False)
def test_the_hour_that_spring_skips_is_made_up_for() -> None:
    """G02"""
    words = [text for _, text in preview("30 2 * * *", "Europe/Berlin").times]
    assert words[0] == "Sun 29 Mar 2026, 03:00 CEST"
    assert words[1] == "Mon 30 Mar 2026, 02:30 CEST"


@time_machine.travel(datetime(2026, 3, 1, tzinfo=UTC), tick=False)
def test_a_leap_day_is_found() -> None:
    assert preview("0 0 29 2 *", "UTC").times[0][1] == "Tue 29 Feb 2028, 00:00 UTC"


def test_no_schedule_says_that_the_job_runs_by_hand(member_client: Client) -> None:
    assert "The job runs by hand" in shown(member_client, "  ")


@pytest.mark.parametrize(
    ("cron", "fault"),
    [
        ("60 * * * *", "minute"),
        ("*/70 * * * *", "minute"),
        ("0 0 * * 8", "day of week"),
        ("0 0 30 2 *", "never runs"),
        ("@reboot", "not supported"),
        ("@every 5m", "not supported"),
        ("0 0 0 * * *", "seconds"),
        ("* * * *", "five fields"),
        ("\u0660 \u0669 * * *", "not valid"),
        ("x" * 10_000, "at most"),
        ("x" * 30_000, "at most 20000"),
        ("0 9 * *\0 *", "ull"),
    ],
)
def test_a_fault_is_one_sentence_and_never_an_error_page(
    member_client: Client, cron: str, fault: str
) -> None:
    """G09"""
    assert fault in shown(member_client, cron)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "x" * 300, "\0"])
def test_a_wrong_time_zone_is_named(member_client: Client, zone: str) -> None:
    html = shown(member_client, "0 9 * * *", zone)
    assert "cron-error" in html


def test_hostile_text_is_shown_as_text(member_client: Client) -> None:
    """I10"""
    html = shown(member_client, "<img src=x onerror=alert(1)> * * * *")
    assert "<img" not in html


def test_the_list_tells_the_zone_unless_it_is_utc() -> None:
    assert words_of("0 9 * * *", "UTC") == "At 09:00 every day"
    assert words_of("0 9 * * *", "Asia/Tokyo") == "At 09:00 every day (Asia/Tokyo)"
    assert words_of("", "UTC") == ""
    assert words_of("no schedule any more", "UTC") == "no schedule any more"
