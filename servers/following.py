"""Follows a check from the command line, and does it there if no worker takes it.

A check whose questions a person answers is done there in any case: see `ask`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from uuid import UUID

from django.db import connections

from servers.checks import run_check
from servers.mcp.types import Asker
from servers.models import Check

CLAIM_AFTER = 3.0  # seconds that a worker has
POLL = 0.1
END_AT_MOST = 15.0  # seconds that a cancelled check may take to close


class CheckFollower:
    """`steps` yields each step's label as it begins and returns when the check is over.

    `ask` brings the server's questions to a person at this terminal. A worker has none, so the
    check is done here at once; make it with `request_check(…, hinted=False)`.
    """

    def __init__(self, check_id: UUID, ask: Asker | None = None) -> None:
        self._check_id = check_id
        self._ask = ask
        self.check = self._read()

    def steps(self) -> Iterator[str]:
        began = time.monotonic()
        helping = False
        seen = 0
        while not self.check.is_done:
            waited = self._ask is not None or time.monotonic() - began >= CLAIM_AFTER
            if waited and not helping and self.check.status == Check.Status.QUEUED:
                helping = True
                self._help()
            time.sleep(POLL)
            self.check = self._read()
            for step in self.check.steps[seen:]:
                yield str(step["label"])
            seen = len(self.check.steps)

    def wait_for_end(self) -> None:
        deadline = time.monotonic() + END_AT_MOST
        while not self.check.is_done and time.monotonic() < deadline:
            time.sleep(POLL)
            self.check = self._read()

    def _read(self) -> Check:
        return Check.objects.get(pk=self._check_id)

    def _help(self) -> None:
        threading.Thread(target=self._run, name="check", daemon=True).start()

    def _run(self) -> None:
        try:
            run_check(self._check_id, ask=self._ask)
        finally:
            connections.close_all()
