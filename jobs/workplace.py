"""The directory of a run on this machine: what its sandbox sees as /workspace and /ump."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from jobs import scripts
from jobs.broker.server import INSIDE_SOCKET
from jobs.sandbox.base import USER_IDS, Bind, SandboxSpec

logger = logging.getLogger(__name__)
INSIDE_SCRIPT = "/ump/script"


@dataclass(frozen=True)
class Workplace:
    """Made for one run and removed after it."""

    root: Path

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def outputs(self) -> Path:
        return self.root / "outputs"

    @classmethod
    def make(cls, base: Path, run_id: UUID, *, script: str, input: Any) -> Workplace:
        """Create the directories and files, owned by the user inside the sandbox."""
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = cls(base / str(run_id))
        place.root.mkdir(mode=0o700)
        for folder in (place.workspace, place.outputs):
            folder.mkdir(mode=0o700)
            _give_away(folder)
        files = {"script": script, "input.json": json.dumps(input, ensure_ascii=False, indent=1)}
        for name, text in files.items():
            path = place.root / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o500 if name == "script" else 0o400)
            _give_away(path)
        return place

    def spec(self, *, network: bool, env: Mapping[str, str], socket: Path) -> SandboxSpec:
        return SandboxSpec(
            party="agent",
            network=network,
            workspace=self.workspace,
            binds=(
                Bind(self.root / "input.json", "/ump/input.json"),
                Bind(self.root / "script", INSIDE_SCRIPT),
                Bind(self.outputs, "/ump/outputs", writable=True),
                Bind(socket, INSIDE_SOCKET, writable=True),
            ),
            env=env,
        )

    def remove(self) -> None:
        """Delete everything, also what the script made undeletable."""
        shutil.rmtree(self.root, onerror=_force)
        if self.root.exists():
            logger.warning("%s could not be removed", self.root)


def command(script: str) -> list[str]:
    """The argv that runs the script inside. Raises `scripts.ScriptError`."""
    return [*scripts.interpreter(script), INSIDE_SCRIPT]


def _give_away(path: Path) -> None:
    """As root the sandbox drops to a user of its own."""
    if os.geteuid() == 0:
        os.chown(path, USER_IDS["agent"], USER_IDS["agent"])


def _force(function: Any, path: str, _error: object) -> None:
    """A directory without write permission keeps its entries; give the permission and retry."""
    with suppress(OSError):
        parent = os.path.dirname(path)
        os.chmod(parent, stat.S_IRWXU)
        if not os.path.islink(path) and os.path.isdir(path):
            os.chmod(path, stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
        else:
            function(path)
