"""A run's way to its servers: connections, the line of its calls and the toolbox, opened and
closed together. A run without MCP has none of it (U6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from jobs.connections import AttachedServer, ServerLink
from jobs.egress_events import reporter
from jobs.network import DOWNLOADERS, NEEDS_DOWNLOAD, NONE
from jobs.permission import Denied, Permission
from jobs.plan import Plan, permission_now
from jobs.sandbox.network import network_of
from jobs.sandbox.terms import Terms
from jobs.toolbox import CallMeter, Toolbox
from servers import results
from servers.inflight import Line
from servers.mcp.types import ServerError, ToolList
from umpteenth.core.connections import Database, closing
from umpteenth.core.masking import Masker

if TYPE_CHECKING:
    from jobs.timeline import Recorder
    from servers.mcp.client import Connection

logger = logging.getLogger(__name__)

STORE_LIMIT = 10.0  # seconds that an ended run waits for what it found out to be kept


class Reach:
    """Made inside the run's event loop; connecting begins at once, all servers together, and
    nothing waits for a server that it does not use (P70, F01)."""

    def __init__(
        self,
        plan: Plan,
        token: str,
        recorder: Recorder,
        meter: CallMeter,
        database: Database,
    ) -> None:
        self._plan = plan
        self._recorder = recorder
        self._database = database
        self._masker = Masker(dict(plan.secrets))
        self._storing = asyncio.Lock()
        self._stores: set[asyncio.Task[None]] = set()
        self._skipped: dict[str, str] = {}
        self._links = self._connect()
        self._look = partial(permission_now, plan.run.job_id, plan.run.trust)
        self._line = Line(token, database, look=self._look_or_deny)
        self.toolbox = Toolbox(
            self._links,
            recorder,
            self._permit,
            self._line,
            meter,
            deadline=plan.deadline,
            skipped=self._skipped,
        )
        self._watch = asyncio.create_task(self._warn_where_all_failed())

    async def close(self) -> None:
        """Whatever still waits for an answer is told that it will not come."""
        self._watch.cancel()
        await asyncio.gather(*(link.close() for link in self._links.values()))
        await self._line.close()
        await asyncio.wait({self._watch, *self._stores}, timeout=STORE_LIMIT)

    def _connect(self) -> dict[str, ServerLink]:
        links: dict[str, ServerLink] = {}
        for server in self._plan.servers:
            if reason := server.skipped or ("" if server.enabled else "disabled"):
                skipped = {"server": server.name, "reason": reason}
                self._recorder.record("server.skipped", skipped)
                self._skipped[server.name] = reason
                continue
            network = network_of(self._plan.network, reporter(self._recorder, server.name))
            link = ServerLink(
                server,
                self._recorder,
                terms=Terms(network, self._plan.base, self._plan.limits),
                report=self._report,
                advice=self._advice(server),
            )
            links[server.name] = link
            if server.settings is not None and server.settings.credentials is not None:
                server.settings.credentials.tell(self._learn)
            link.start()
        return links

    def _advice(self, server: AttachedServer) -> str:
        """P23: said where a server that is downloaded at each start cannot be."""
        command = server.settings.command if server.settings else ""
        is_downloaded = command.rpartition("/")[2] in DOWNLOADERS
        return NEEDS_DOWNLOAD if is_downloaded and self._plan.network.mode == NONE else ""

    def _learn(self, secrets: Mapping[str, str]) -> None:
        """Tokens that a login got while the run was under way (P43)."""
        self._recorder.add_secrets(secrets)
        self._masker.learn(secrets)

    async def _permit(self, server_id: UUID) -> Permission:
        found: Permission = await self._database(partial(self._look, server_id))
        return found

    def _look_or_deny(self, server_id: UUID) -> Permission:
        """Raises `Denied`: a call that may not be made takes no slot."""
        found = self._look(server_id)
        if found.problem:
            raise Denied(found.problem)
        return found

    def _report(
        self, link: ServerLink, found: Connection | None, outcome: ToolList | ServerError
    ) -> None:
        """A run's start is as good as a test: keep what it found out, in the background."""
        task = asyncio.create_task(self._store(link, found, outcome))
        self._stores.add(task)
        task.add_done_callback(self._stores.discard)

    async def _store(
        self, link: ServerLink, found: Connection | None, outcome: ToolList | ServerError
    ) -> None:
        work = partial(
            results.store_run_start,
            link.server.id,
            link.server.version,
            found,
            outcome,
            self._masker,
            network=self._plan.network.mode != NONE,
        )
        try:
            async with self._storing:
                # Not on the run's database thread: thousands of tools would hold up its calls.
                await asyncio.to_thread(closing, work)
        except Exception:  # the run does not depend on it
            logger.exception("what a run found out about %s could not be kept", link.server.name)

    async def _warn_where_all_failed(self) -> None:
        """F14: a script may not notice that it has no tools at all; whoever reads its run must."""
        for link in self._links.values():
            try:
                await link.ready()
            except ServerError:
                continue
            return
        if not self._links:
            return
        names = ", ".join(self._links)
        message = f"None of this run's MCP servers is available: {names}"
        self._recorder.record("error", {"message": message})
