"""Cron schedules: what is accepted, when it runs, how it is told (cases G02-G09)."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.schedule import DESCRIPTORS, ScheduleError, explain, next_times, parse

BERLIN = "Europe/Berlin"


def times(cron: str, after: str, n: int, tz: str = BERLIN) -> list[str]:
    moment = datetime.fromisoformat(after).replace(tzinfo=UTC)
    return [f"{at:%m-%d %H:%M}" for at in next_times(cron, tz, moment, n)]


def refusal(cron: str, tz: str = "UTC") -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        parse(cron, tz)
    return caught.value


class TestWhenItRuns:
    def test_a_time_of_day_is_one_of_the_time_zone(self) -> None:
        assert times("0 9 * * *", "2026-01-10T12:00", 2) == ["01-11 08:00", "01-12 08:00"]
        assert times("0 9 * * *", "2026-07-10T12:00", 1) == ["07-11 07:00"]

    def test_a_time_in_the_spring_gap_runs_once_right_after_it(self) -> None:
        """G02: 02:30 does not exist on 2026-03-29 in Berlin."""
        found = times("30 2 * * *", "2026-03-28T00:00", 4)
        assert found == ["03-28 01:30", "03-29 01:00", "03-30 00:30", "03-31 00:30"]

    @pytest.mark.parametrize("cron", ["30 2 29 3 *", "30 2 * * 0"])
    def test_a_rare_time_in_the_gap_still_comes(self, cron: str) -> None:
        assert times(cron, "2026-03-29T00:00", 1) == ["03-29 01:00"]

    def test_two_times_in_one_gap_run_once(self) -> None:
        found = times("0,30 2 * * *", "2026-03-28T12:00", 3)
        assert found == ["03-29 01:00", "03-30 00:00", "03-30 00:30"]

    def test_a_fixed_time_in_the_autumn_overlap_runs_once(self) -> None:
        """G03: 02:30 comes twice on 2026-10-25 in Berlin."""
        found = times("30 2 * * *", "2026-10-24T12:00", 2)
        assert found == ["10-25 00:30", "10-26 01:30"]

    def test_it_does_not_run_again_when_asked_inside_the_second_hour(self) -> None:
        """G03: 01:15 UTC is the second 02:15; the first 02:30 has passed."""
        assert times("30 2 * * *", "2026-10-25T01:15", 1) == ["10-26 01:30"]

    @pytest.mark.parametrize(("cron", "count"), [("*/15 * * * *", 100), ("0 * * * *", 25)])
    def test_an_interval_keeps_its_distance_over_the_overlap(self, cron: str, count: int) -> None:
        """G03: the day has 25 hours."""
        start = datetime(2026, 10, 24, 21, 59, tzinfo=UTC)
        found = next_times(cron, BERLIN, start, count)
        assert len({second - first for first, second in itertools.pairwise(found)}) == 1
        assert found[-1] < datetime(2026, 10, 25, 23, 0, tzinfo=UTC)

    def test_day_of_month_or_day_of_week_may_match(self) -> None:
        """G06: cron's own rule, not Celery's."""
        found = times("0 0 1,15 * 5", "2026-01-10T00:00", 4, "UTC")
        assert found == ["01-15 00:00", "01-16 00:00", "01-23 00:00", "01-30 00:00"]

    def test_a_day_field_that_begins_with_a_star_must_match_as_well(self) -> None:
        """G07: as vixie cron does it."""
        found = times("0 9 */2 * 1", "2026-01-01T12:00", 2, "UTC")
        assert found == ["01-05 09:00", "01-19 09:00"]

    @pytest.mark.parametrize("cron", ["0 9 1-31 * 1", "0 9 1/1 * 1", "0 9 5 * 0-6"])
    def test_every_day_is_every_day_however_it_is_written(self, cron: str) -> None:
        found = next_times(cron, "UTC", datetime(2026, 1, 1, 12, tzinfo=UTC), 7)
        assert found[-1] - found[0] == timedelta(days=6)
        assert explain(cron) == "At 09:00 every day"

    @pytest.mark.parametrize("name", list(DESCRIPTORS))
    def test_names_are_their_five_fields(self, name: str) -> None:
        """G09"""
        now = datetime(2026, 5, 5, tzinfo=UTC)
        assert next_times(name.upper(), "UTC", now) == next_times(DESCRIPTORS[name], "UTC", now)

    def test_blanks_around_and_between_do_not_matter(self) -> None:
        assert parse("\t0  9 * * 1\n").cron == "0 9 * * 1"

    @given(
        st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 L * *", "15 1-3 * * 0", "5 */6 1 * 3"]),
        st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)),
        st.sampled_from([BERLIN, "America/St_Johns", "Australia/Lord_Howe", "UTC"]),
    )
    def test_times_always_grow_and_lie_ahead(self, cron: str, start: datetime, tz: str) -> None:
        after = start.replace(tzinfo=UTC)
        found = [after, *next_times(cron, tz, after, 6)]
        assert all(first < second for first, second in itertools.pairwise(found))


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("cron", "field"),
        [
            ("60 * * * *", "minute"),
            ("5-1 * * * *", "minute"),
            ("*/0 * * * *", "minute"),
            ("*/70 * * * *", "minute"),
            ("? * * * *", "minute"),
            ("１ * * * *", "minute"),  # noqa: RUF001  (a full-width digit)
            ("0 24 * * *", "hour"),
            ("0 H * * *", "hour"),
            ("0 0 15W * *", "day of month"),
            ("0 0 32 * *", "day of month"),
            ("0 0 * 13 *", "month"),
            ("0 0 * * 8", "day of week"),
            ("0 0 * * MON#6", "day of week"),
        ],
    )
    def test_the_field_is_named(self, cron: str, field: str) -> None:
        """G09"""
        error = refusal(cron)
        assert f"The {field} field" in error.message
        assert error.field == "cron"

    @pytest.mark.parametrize("cron", ["@every 5m", "@reboot", "@fortnightly"])
    def test_names_that_cron_servers_invented_are_refused(self, cron: str) -> None:
        assert f"{cron} is not supported" in refusal(cron).message

    def test_seconds_are_refused(self) -> None:
        assert "seconds" in refusal("0 0 9 * * *").message

    @pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 */30 2 1#5"])
    def test_what_never_comes_is_refused(self, cron: str) -> None:
        assert "never runs" in refusal(cron).message

    @pytest.mark.parametrize("cron", ["", "  ", "* * *", "x" * 10_000])
    def test_what_is_no_expression_is_refused(self, cron: str) -> None:
        assert len(refusal(cron).message) < 300

    def test_a_time_zone_in_the_expression_is_refused(self) -> None:
        assert "its own field" in refusal("CRON_TZ=UTC 0 9 * * *").message

    @pytest.mark.parametrize("tz", ["", "Europe", "../etc/passwd", "/etc/localtime", "a\0b", "Nix"])
    def test_what_is_no_time_zone_is_refused(self, tz: str) -> None:
        assert refusal("0 9 * * *", tz).field == "timezone"


def test_it_is_told_in_plain_words() -> None:
    assert explain("0 9 * * 1-5") == "At 09:00 on Monday through Friday"
    assert explain("@hourly") == "At the start of every hour"
