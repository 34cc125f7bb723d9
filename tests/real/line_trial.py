"""One process of `test_inflight_stores`: makes calls that take a moment, and prints when.

Arguments: holder, limit, number of calls. The server is the same for all: the first comer makes
it. Times are seconds of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any
from uuid import UUID

SERVER = UUID(int=2**70 + 17)
SECONDS = 0.02  # of a call


async def main(holder: str, limit: int, count: int) -> list[dict[str, Any]]:
    from servers.inflight import Line, _in_a_thread

    line = Line(holder, _in_a_thread)

    async def call() -> dict[str, Any]:
        ticket = await line.enter(SERVER, limit, wait=50)
        got = time.monotonic()
        await asyncio.sleep(SECONDS)
        left = time.monotonic()
        line.leave(ticket)
        return {"id": ticket.id, "got": got, "left": left}

    done = await asyncio.gather(*(call() for _ in range(count)))
    await line.close()
    return list(done)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "umpteenth.settings")
    import django

    django.setup()
    from servers.models import Server

    Server.objects.get_or_create(pk=SERVER, defaults={"name": "one", "private": b""})
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
