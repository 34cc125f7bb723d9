"""The directory of a run on this machine: what its sandbox sees as /workspace and /ump."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from jobs import scripts
from jobs.broker.server import INSIDE_SOCKET
from jobs.sandbox.base import USER_IDS, Bind, SandboxSpec
from jobs.sandbox.files import remove_tree

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

    @property
    def logs(self) -> Path:
        """Files that a run writes for itself: they end with it."""
        return self.root / "logs"

    @classmethod
    def make(cls, base: Path, run_id: UUID, *, script: str, input: Any) -> Workplace:
        """Create the directories and files, owned by the user inside the sandbox."""
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = cls(base / str(run_id))
        place.root.mkdir(mode=0o700)
        for folder in (place.workspace, place.outputs, place.logs):
            # bwrap enters it before it changes the user, without root's right to enter all.
            folder.mkdir()
            folder.chmod(0o711)
            _give_away(folder)
        files = {"script": script, "input.json": json.dumps(input, ensure_ascii=False, indent=1)}
        for name, text in files.items():
            path = place.root / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o500 if name == "script" else 0o400)
            _give_away(path)
        return place

    def spec(self, *, env: Mapping[str, str], socket: Path, root: bool = False) -> SandboxSpec:
        """Without what all sandboxes of the run have alike (`jobs.sandbox.terms`)."""
        return SandboxSpec(
            party="agent",
            root=root,
            network=False,
            workspace=self.workspace,
            binds=(
                Bind(self.root / "input.json", "/ump/input.json"),
                Bind(self.root / "script", INSIDE_SCRIPT),
                Bind(self.outputs, "/ump/outputs", writable=True),
                Bind(self.logs, "/ump/logs", writable=True),
                Bind(socket, INSIDE_SOCKET, writable=True),
            ),
            env=env,
        )

    def remove(self) -> None:
        """Delete everything, also what the script made undeletable."""
        remove_tree(self.root)


def command(script: str) -> list[str]:
    """The argv that runs the script inside. Raises `scripts.ScriptError`."""
    return [*scripts.interpreter(script), INSIDE_SCRIPT]


def _give_away(path: Path) -> None:
    """As root the sandbox drops to a user of its own."""
    if os.geteuid() == 0:
        os.chown(path, USER_IDS["agent"], USER_IDS["agent"])
