"""Connects to the first of several addresses that answers."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

DIAL_SECONDS = 15.0
# What an attempt gets before the next address is tried beside it (RFC 8305, section 5).
HEAD_START = 0.25
MAX_ADDRESSES = 16
CHUNK = 256 * 1024


async def dial(addresses: Sequence[str], port: int, limit: int = CHUNK) -> Streams:
    """Raises `OSError`: of what the last attempt died.

    `limit`: how much that nobody has read waits in memory, half of it.
    """
    connect = partial(asyncio.open_connection, port=port, limit=limit)
    return await first_of(addresses[:MAX_ADDRESSES], connect)


async def first_of(
    addresses: Sequence[str], connect: Callable[[str], Coroutine[Any, Any, Streams]]
) -> Streams:
    """The first connection that stands. Raises `OSError`: of what the last attempt died."""
    pending: set[asyncio.Task[Streams]] = set()
    failure: OSError = OSError(errno.EHOSTUNREACH, "no address answered")
    waiting = list(addresses)
    try:
        while waiting or pending:
            if waiting:
                pending.add(asyncio.create_task(connect(waiting.pop(0))))
            head_start = HEAD_START if waiting else None
            done, pending = await asyncio.wait(
                pending, timeout=head_start, return_when=asyncio.FIRST_COMPLETED
            )
            good = [task for task in done if task.exception() is None]
            pending |= set(good[1:])  # two may stand at once
            if good:
                return good[0].result()
            for task in done:
                error = task.exception()
                failure = error if isinstance(error, OSError) else failure
        raise failure
    finally:
        for task in pending:
            task.add_done_callback(_drop)
            task.cancel()


def _drop(task: asyncio.Task[Streams]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[1].close()


def why(error: OSError) -> str:
    """Of what a connection died, without the numbers and addresses of the operating system."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, socket.gaierror):
        return "its name is not known to the name service"
    words = {
        errno.ECONNREFUSED: "it refused the connection",
        errno.ENETUNREACH: "there is no route to it",
        errno.EHOSTUNREACH: "there is no route to it",
        errno.ECONNRESET: "it broke the connection off",
    }
    return words.get(error.errno or 0, str(error.strerror or error))
