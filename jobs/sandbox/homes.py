"""The homes of stdio servers on this machine: made when first needed, bounded, cleared.

npm and uv keep their caches there, and servers whatever they like to. Each server has one home
for all of its processes, which outlives them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from jobs.sandbox.base import USER_IDS
from jobs.sandbox.disk import used_bytes
from jobs.sandbox.files import remove_tree

if TYPE_CHECKING:
    from umpteenth.core.config import Options

HOMES = "homes"  # below the data directory; in it one directory for each server's id
# What was cleared has this in place of the id, until all of it is deleted.
CLEARED = "cleared-"


@dataclass(frozen=True)
class Homes:
    """Those in `folder`, each of at most `limit` bytes."""

    folder: Path
    limit: int

    @classmethod
    def from_options(cls, options: Options) -> Homes:
        return cls(options.data_dir / HOMES, options.sandbox.server_home_limit * 1024**2)

    def make(self, server_id: UUID) -> Path:
        """The home of a server, which may be there already."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = self._path(server_id)
        with contextlib.suppress(FileExistsError):
            home.mkdir(mode=0o700)
            # A plain user keeps it: inside, the party's id stands for his own.
            if os.geteuid() == 0:
                os.chown(home, USER_IDS["mcp"], USER_IDS["mcp"])
        return home

    def size(self, server_id: UUID) -> int:
        """Bytes on the disk; 0 where there is none. Takes a while for a large one."""
        home = self._path(server_id)
        return used_bytes([home]) if home.is_dir() else 0

    def clear(self, server_id: UUID) -> None:
        """Put it out of the way at once: a start makes a new one, what runs goes on in the old one.

        `remove_cleared` deletes it, which may take longer than anybody waits for a page.
        """
        cleared = self.folder / f"{CLEARED}{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            self._path(server_id).rename(cleared)

    def remove_cleared(self) -> int:
        """Delete what was cleared; how many homes that were."""
        left = list(self.folder.glob(f"{CLEARED}*"))
        for path in left:
            remove_tree(path)
        return len(left)

    def _path(self, server_id: UUID) -> Path:
        return self.folder / str(server_id)
