"""How servers say that they do not know a session any more.

The specification has one way, 404, and it means that the request was not run (B01). Servers have
many: JSON-RPC errors with any status, 400 with a sentence, 400 or 401 without one (B02).
"""

from __future__ import annotations

import re
from typing import Final

from mcp_types import METHOD_NOT_FOUND

from servers.mcp.errors import RpcError
from servers.mcp.exchange import status_of
from servers.mcp.types import ServerError

_WORDS: Final = re.compile(
    r"\bsession\b.{0,60}\b(not found|not exist|unknown|expired|invalid|terminated|closed|missing"
    r"|required|no longer)|\b(no|unknown|invalid|expired|missing|no valid) (mcp[- ])?session"
    r"|\bserver (is )?not initialized\b",  # one that has one session only, after its restart
    re.IGNORECASE | re.DOTALL,
)
# The codes of servers' transports; a tool may speak of sessions of its own under any other.
_CODES: Final = (-32600, -32000, -32001)


def says_so_with_404(failure: ServerError) -> bool:
    """A method that is not known may come with 404 too (2026-07-28), session or not."""
    code = failure.code if isinstance(failure, RpcError) else None
    return status_of(failure) == 404 and code != METHOD_NOT_FOUND


def says_so_in_words(failure: ServerError, *, of_transport: bool = False) -> bool:
    """`of_transport`: the error surely comes from no tool."""
    if isinstance(failure, RpcError):
        known = of_transport or failure.code in _CODES
    else:
        known = status_of(failure) == 400
    return known and bool(_WORDS.search(failure.message))


def may_mean_so(failure: ServerError) -> bool:
    """A refusal of a request with a session that gives no other reason."""
    if status_of(failure) == 400:
        return failure.message.endswith("400 Bad Request.")
    return status_of(failure) == 401
