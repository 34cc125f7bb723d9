"""Environments that are images of an engine. No Django here.

Their names hold whose they are: several installations may share an engine, and none removes what
belongs to another. What containers use the engine itself does not remove.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass

from jobs.environments.definition import Definition
from jobs.environments.log import BuildLog
from jobs.sandbox.base import SandboxError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Images:
    """Those of one machine."""

    machine: str

    @property
    def _prefix(self) -> str:
        from jobs.sandbox.engine.images import REPOSITORY

        return f"{REPOSITORY}:{self.machine[:12]}-"

    def name(self, digest: str) -> str:
        return f"{self._prefix}{digest[:32]}"

    def find(self, digest: str) -> str | None:
        """The image for sandboxes; None where it is missing. Blocks. Raises `SandboxError`."""
        from jobs.sandbox.engine.images import image_ready

        name = self.name(digest)
        return name if image_ready(name) else None

    def make(self, definition: Definition, log: BuildLog, stopping: Callable[[], bool]) -> int:
        """Its size in bytes. Blocks. Raises `SandboxError`."""
        from jobs.sandbox.engine.images import make_image

        log.begin("Image")
        return make_image(
            tag=self.name(definition.digest),
            image=definition.image,
            dockerfile=definition.dockerfile,
            say=log.add,
            stopping=stopping,
        )

    def remove(self, digest: str) -> None:
        """Blocks. Raises `SandboxError`."""
        from jobs.sandbox.engine.images import remove_image

        remove_image(self.name(digest))

    def remove_unused(self, wanted: Set[str]) -> int:
        """Delete those that no environment stands for; how many went."""
        from jobs.sandbox.engine.images import images_of_environments, remove_image

        kept = {self.name(digest) for digest in wanted}
        gone = 0
        for name in images_of_environments():
            if name.startswith(self._prefix) and name not in kept:
                try:
                    remove_image(name)
                except SandboxError as error:  # a container uses it, or the engine is away
                    logger.info("the image %s stays for now: %s", name, error)
                else:
                    gone += 1
        return gone
