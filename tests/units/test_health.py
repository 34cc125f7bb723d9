"""`GET /healthz`: public, says whether the database answers and whether a worker reported."""

from __future__ import annotations

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from jobs import presence


@pytest.mark.django_db
def test_it_needs_no_sign_in_and_tells_that_no_worker_reported(client: Client) -> None:
    response = client.get("/healthz")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "database": True, "worker": False}
    assert "no-store" in response["Cache-Control"]


@pytest.mark.django_db
def test_it_sees_a_worker_that_reported_lately(client: Client) -> None:
    presence.report(timezone.now(), slots=4, problem="")
    assert client.get("/healthz").json()["worker"] is True


def test_without_a_database_it_answers_503_and_not_why(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_now: object) -> None:
        raise OperationalError("password=hunter22")

    monkeypatch.setattr(presence, "live_workers", unreachable)
    response = client.get("/healthz")
    assert response.status_code == 503
    assert response.json() == {"status": "unavailable", "database": False}


def test_it_is_only_read(client: Client) -> None:
    assert client.post("/healthz").status_code == 405
