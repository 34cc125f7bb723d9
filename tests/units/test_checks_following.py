"""A check followed from a terminal."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import pytest
from django.db import connections

from servers import checks, following
from servers.checks import request_check
from servers.following import CheckFollower
from servers.mcp.types import Answer, Asker, Question
from servers.models import Check
from tests.fakes.server_rows import http_server

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def hints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    sent: list[Any] = []
    monkeypatch.setattr(checks, "_hint", sent.append)
    return sent


@pytest.fixture
def done_here(monkeypatch: pytest.MonkeyPatch) -> list[Asker | None]:
    """The checks that this process does, each with its asker; done at once."""
    done: list[Asker | None] = []

    def run_check(check_id: UUID, *, ask: Asker | None = None) -> bool:
        done.append(ask)
        Check.objects.filter(pk=check_id).update(
            status="done", steps=[{"label": "Connecting", "ms": 1.0}]
        )
        return True

    class AtOnce:
        def __init__(self, *, target: Any, **_: Any) -> None:
            self.start = target

        def join(self, timeout: float | None = None) -> None: ...

    monkeypatch.setattr(following, "run_check", run_check)
    monkeypatch.setattr(threading, "Thread", AtOnce)
    monkeypatch.setattr(connections, "close_all", lambda: None)
    return done


async def ask(question: Question) -> Answer:
    return Answer("decline")


def test_a_person_at_a_terminal_is_asked_so_the_check_is_done_there_at_once(
    done_here: list[Asker | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CLAIM_AFTER", 1e9)
    check = request_check(http_server(), actor=None, hinted=False)
    assert list(CheckFollower(check.pk, ask).steps()) == ["Connecting"]
    assert done_here == [ask]


def test_what_no_worker_takes_is_done_here(
    done_here: list[Asker | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CLAIM_AFTER", 0.0)
    check = request_check(http_server(), actor=None)
    assert list(CheckFollower(check.pk).steps()) == ["Connecting"]
    assert done_here == [None]


def test_what_a_worker_does_is_only_followed(
    done_here: list[Asker | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joined while it runs: its questions were declined by then."""
    monkeypatch.setattr(following, "POLL", 0.0)
    check = request_check(http_server(), actor=None)
    Check.objects.filter(pk=check.pk).update(status="running")
    follower = CheckFollower(check.pk, ask)
    seen = []
    Check.objects.filter(pk=check.pk).update(steps=[{"label": "Connecting", "ms": None}])
    for label in follower.steps():
        seen.append(label)
        Check.objects.filter(pk=check.pk).update(status="done")
    assert seen == ["Connecting"]
    assert done_here == []
