"""Containers that nobody wants any more: of workers that died, which cannot take them along as a
launcher does, and of this one, where the engine did not do at once what it was told.

Each is marked with the private runtime directory of its worker, which that one holds locked while
it lives. A directory that is there and not locked is a dead worker's. So is one that is gone, if it
was beside our own: others may be out of sight. Our own have names that are given before they are
made, so that one whose making was not answered is known as well.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from jobs.sandbox.engine.client import Client, EngineError
from jobs.sandbox.engine.containers import LABEL
from jobs.sandbox.locked import left_behind
from jobs.sandbox.runtime import PREFIX, runtime_dir

logger = logging.getLogger(__name__)

# Names of this process's containers; it may have several adapters, and has one label.
_wanted: set[str] = set()


def new_name() -> str:
    """Of a container that stays until `give_up`."""
    name = f"ump-{secrets.token_hex(8)}"
    _wanted.add(name)
    return name


def give_up(name: str) -> None:
    """It is to be removed, if not now then by `remove_leftovers`; twice is fine."""
    _wanted.discard(name)


def remove_leftovers(client: Client) -> int:
    """End and remove them; how many there were. Blocks. Raises `EngineError`."""
    ours = runtime_dir()
    found = client.call(lambda api: api.containers(all=True, filters={"label": [LABEL]}))
    removed = 0
    for container in found:
        owner = Path((container.get("Labels") or {}).get(LABEL, ""))
        if owner == ours:
            kept = any(name.lstrip("/") in _wanted for name in container.get("Names") or ())
        else:
            kept = not owner.name.startswith(PREFIX) or is_alive(owner, ours.parent)
        if kept:
            continue
        try:
            remove(client, container["Id"])
            removed += 1
        except EngineError as error:
            logger.warning("a sandbox that was left could not be removed: %s", error)
    return removed


def is_alive(directory: Path, beside: Path) -> bool:
    """Whether the process whose runtime directory this is may still hold it. Of one that is not to
    be seen this is known in `beside` alone."""
    if not os.path.lexists(directory):
        return directory.parent != beside
    with left_behind(directory) as is_left:
        return not is_left


def remove(client: Client, container: str) -> None:
    """Kill and remove; one that is gone is fine. Blocks. Raises `EngineError`.

    In one request: Podman answers one to kill up to twenty seconds later.
    """
    try:
        client.call(lambda api: api.remove_container(container, v=True, force=True))
    except EngineError as error:
        if not error.is_gone and error.status != 409:  # which is: being removed
            raise
