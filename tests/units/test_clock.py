"""One clock for all machines: the database's, where several share one (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client

from jobs import presence
from jobs.timeline import Event
from servers import checks
from servers.models import Check
from tests.fakes.server_rows import http_server
from umpteenth.core import clock

TRUE = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OFF = timedelta(minutes=5)


class SharedDatabase:
    """A Postgres that knows the true time, whatever this machine believes."""

    vendor = "postgresql"

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        yield self

    def execute(self, query: str) -> None:
        assert "clock_timestamp" in query

    def fetchone(self) -> tuple[datetime]:
        return (self.moment,)


@pytest.fixture(params=[OFF, -OFF], ids=["slow", "fast"])
def wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is five minutes behind the database, or before it."""
    monkeypatch.setattr(clock, "connection", SharedDatabase(TRUE))
    monkeypatch.setattr(clock, "_ahead", timedelta())
    with time_machine.travel(TRUE - request.param, tick=False):
        yield


def test_what_others_compare_is_the_databases_time(wrong_clock: None) -> None:
    assert clock.database_now() == TRUE


def test_what_is_shown_follows_the_answer_without_asking(wrong_clock: None) -> None:
    assert clock.now() != TRUE
    clock.database_now()
    assert clock.now() == TRUE
    assert Event("step").at == TRUE


def test_the_time_that_a_question_takes_does_not_move_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "_ahead", OFF)
    monkeypatch.setattr(clock, "connection", SharedDatabase(TRUE))
    with time_machine.travel(TRUE - timedelta(milliseconds=20), tick=False) as here:
        clock.database_now()
        here.move_to(TRUE)
        assert clock.now() == TRUE


@pytest.mark.django_db
def test_a_check_of_a_machine_whose_clock_is_off_is_not_taken_for_dead(wrong_clock: None) -> None:
    check = checks.request_check(http_server(), actor=None)
    assert checks._claim(check.pk)
    check.refresh_from_db()
    assert (check.created_at, check.started_at, check.heartbeat_at) == (TRUE, TRUE, TRUE)
    assert checks.end_dead(TRUE + timedelta(seconds=10)) == 0
    assert Check.objects.get(pk=check.pk).status == Check.Status.RUNNING


@pytest.mark.django_db
def test_a_page_of_a_machine_whose_clock_is_off_still_sees_the_worker(
    wrong_clock: None, client: Client
) -> None:
    presence.report(TRUE - timedelta(seconds=5), slots=1, problem="")
    assert client.get("/healthz").json()["worker"] is True
