"""Where a server's address points, asked when it is saved (P77, I01)."""

from __future__ import annotations

from servers.definition import HTTP, Errors, ServerData
from umpteenth.core.addresses import target_problem
from umpteenth.core.connections import give_back


def target_problems(data: ServerData) -> Errors:
    """Why nothing here may call the address; empty if nothing is known against it.

    Asks the name service, so not inside a transaction. A name that cannot be resolved passes, for
    the check is repeated with each connection.
    """
    if data.transport != HTTP:
        return {}
    give_back()
    problem = target_problem(data.url)
    return {"url": problem} if problem else {}
