"""What a server of 2026-07-28 announces is heard only by those who listen (`subscriptions/listen`).

Before that revision announcements come by themselves. A server that does not keep the stream open
is healthy all the same; changes are then seen when the tools are listed the next time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from servers.mcp.errors import RpcError
from servers.mcp.session import LISTEN, Session
from servers.mcp.types import ServerError

# Openings in a row that came to nothing, and the wait before the second; it doubles (B05).
MAX_OPENINGS: Final = 5
FIRST_WAIT: Final = 1.0
# A stream that stood for so long was one; proxies close those that are silent for a minute.
STEADY_SECONDS: Final = 10.0

pause = asyncio.sleep


def announces_tools(session: Session) -> bool:
    """Whether the server says that it would announce changes of its tools to listeners."""
    tools = (session.capabilities or {}).get("tools")
    return session.modern and isinstance(tools, dict) and tools.get("listChanged") is True


async def listen(session: Session) -> None:
    """Keep the stream of announcements open while that is of any use. Raises nothing."""
    if not announces_tools(session):
        return
    wanted: dict[str, Any] = {"notifications": {"toolsListChanged": True}}
    misses = 0
    while misses < MAX_OPENINGS:
        start = time.monotonic()
        try:
            await session.exchange(LISTEN, wanted)
        except RpcError:
            return  # it does not want listeners after all
        except ServerError:
            if session.transport.ended:
                return
        # Nobody listened for a moment, in which the tools may have changed.
        session.on_changes_missed()
        misses = 0 if time.monotonic() - start >= STEADY_SECONDS else misses + 1
        await pause(FIRST_WAIT * 2.0 ** max(misses - 1, 0))
