"""Which of a sandbox's places are looked at for what they hold, and what that may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jobs.sandbox.base import Exit, SandboxSpec
from jobs.sandbox.disk import HOME_INTERVAL, keep_within
from jobs.sandbox.limits import too_large_home, too_much_disk


def watch_disk(spec: SandboxSpec, exited: asyncio.Future[Exit], end: Callable[[str], None]) -> None:
    """Look until the sandbox has exited, and have it ended with a sentence for too much.

    A home outlives it, and is bounded apart from the rest.
    """
    written = {
        bind.inside: bind.host for bind in spec.binds if bind.writable and bind.host.is_dir()
    }
    if spec.workspace is not None:
        written["/workspace"] = spec.workspace
    watches = []
    if written:
        watch = keep_within(
            spec.limits.disk,
            list(written.values()),
            end,
            too_much=too_much_disk(spec.limits),
            inside=list(written),
        )
        watches.append(watch)
    if spec.home is not None:
        watch = keep_within(
            spec.home_limit,
            [spec.home],
            end,
            too_much=too_large_home(spec.home_limit),
            inside=[f"/home/{spec.party}"],
            every=HOME_INTERVAL,
            at_once=True,
        )
        watches.append(watch)
    for task in [exited.get_loop().create_task(watch) for watch in watches]:
        exited.add_done_callback(lambda _, task=task: task.cancel())  # type: ignore[misc]
