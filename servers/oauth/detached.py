"""Work for logins in threads of its own: it goes on to its end also where the run that asked for it
is cancelled, and a process that ends waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from servers.mcp.types import ServerError
from servers.oauth.store import Stored
from umpteenth.core.connections import closing

Work = Callable[[], "Stored | None"]
AT_ONCE: Final = 32

_pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="login")
_under_way: dict[Hashable, Future[Stored | None]] = {}
_lock = threading.Lock()


async def detached(key: Hashable, work: Work) -> Stored | None:
    """What the work returns; whoever asks for the same `key` while it is under way shares it."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell(_: Future[Stored | None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(ended.set)

    future = _submit(key, work)
    future.add_done_callback(tell)
    await ended.wait()
    try:
        return future.result()
    except ServerError as error:
        # Several may wait, and each adds words of its own to what it raises.
        raise copy.copy(error) from None


def _submit(key: Hashable, work: Work) -> Future[Stored | None]:
    with _lock:
        found = _under_way.get(key)
        if found is not None:
            return found
        future = _under_way[key] = _pool.submit(partial(closing, work))
    future.add_done_callback(partial(_forget, key))
    return future


def _forget(key: Hashable, ended: Future[Stored | None]) -> None:
    with _lock:
        if _under_way.get(key) is ended:
            del _under_way[key]
