"""Where stdio servers get their process from: a sandbox of their own (P6-P8, P22, P24)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from jobs.sandbox import base
from jobs.sandbox.homes import Homes
from jobs.sandbox.network import network_of_a_test
from jobs.sandbox.terms import Terms
from servers.mcp.types import ServerUnavailable, Spawner, StdioProcess
from umpteenth.core.config import get_options

# Members get to see this and may not open that page.
MORE = "Administrators find more under Settings → Sandboxes."


def make_spawner(
    server_id: UUID, terms: object = None, tell: Callable[[str], None] | None = None
) -> Spawner:
    """A spawner for one server, which has a home of its own that persists.

    `terms`: the `Terms` of a run, None for a test, whose refusals go to `tell`.
    """
    found = terms if isinstance(terms, Terms) else Terms(network_of_a_test(tell))

    async def spawn(argv: Sequence[str], env: Mapping[str, str]) -> StdioProcess:
        homes = Homes.from_options(get_options())
        spec = base.SandboxSpec(
            party="mcp",
            network=False,
            env=env,
            home=homes.make(server_id),
            home_limit=homes.limit,
        )
        try:
            return await base.start(argv, found.applied_to(spec))
        except base.SandboxUnavailable as error:
            raise ServerUnavailable(str(error), hint=MORE) from error
        except base.SandboxError as error:
            raise ServerUnavailable(str(error)) from error

    return spawn
