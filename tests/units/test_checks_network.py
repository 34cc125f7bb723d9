"""What the network of a test refused, for the person who reads its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from servers import checks
from servers.checks import request_check, run_check
from servers.models import Check
from tests.fakes.server_rows import stdio_server
from tests.fakes.spawner import BareSpawner

pytestmark = pytest.mark.django_db


def test_what_the_network_of_a_test_refused_is_among_its_notices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Issue 5, section 3: a server that is silent for want of a host is no riddle."""

    def spawner(*, tell: Callable[[str], None], **_: Any) -> BareSpawner:
        tell("10.0.0.1 is refused.")
        return BareSpawner()

    monkeypatch.setattr(checks, "get_spawner", spawner)
    monkeypatch.setattr(checks, "_hint", lambda check_id: None)
    server = stdio_server("quitter", command="sh", args=("-c", "exit 7"))
    check = request_check(server, actor=None)
    assert run_check(check.pk)
    check.refresh_from_db()
    assert (check.outcome, check.notices) == (Check.Outcome.FAILED, ["10.0.0.1 is refused."])
