"""Every way of making sandboxes, for the tests that all of them have to pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from jobs.sandbox.base import Adapter
from jobs.sandbox.bubblewrap import Bubblewrap
from jobs.sandbox.engine.adapter import Engine
from jobs.sandbox.places import Places, find_uv
from tests.real.engines import Podman
from tests.real.sandboxes import PLAIN_ID, User, user_who

# bubblewrap as whoever runs the tests and as a plain user, and an engine.
ADAPTERS = ("own", "plain", "engine")


@contextmanager
def tried(name: str, podman: Podman) -> Iterator[User]:
    """Runs commands in sandboxes of this adapter, in a process of its own."""
    with user_who("own" if name == "engine" else name) as user:
        yield replace(user, engine=podman.options) if name == "engine" else user


def make_adapter(name: str, podman: Podman, data_dir: Path) -> Adapter:
    """One for this process."""
    places = Places(data_dir, uv=find_uv())
    return Engine(places, **podman.options) if name == "engine" else Bubblewrap(places)


def new_directory(user: User, name: str) -> Path:
    """One that the sandbox may write to; removed with what is around it."""
    path = user.data_dir.parent / name
    path.mkdir()
    path.chmod(0o711)
    if os.geteuid() == 0:
        owner = PLAIN_ID if user.prefix else 1000
        os.chown(path, owner, owner)
    return path
