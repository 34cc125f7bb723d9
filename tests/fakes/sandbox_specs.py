"""What sandboxes are told, without starting one."""

from __future__ import annotations

from jobs.sandbox import mounts
from jobs.sandbox.base import SandboxSpec
from jobs.sandbox.launcher_client import LauncherClient, LauncherUnusable
from jobs.sandbox.places import Places


def spec(**changes: object) -> SandboxSpec:
    return SandboxSpec(**{"party": "agent", "network": False, **changes})  # type: ignore[arg-type]


def pairs(options: list[str], name: str) -> list[tuple[str, str]]:
    """The two values behind each option of this name."""
    return [(options[at + 1], options[at + 2]) for at, item in enumerate(options) if item == name]


def variables(options: list[str]) -> dict[str, str]:
    return dict(pairs(options, "--setenv"))


def build(wanted: SandboxSpec, places: Places, *, privileged: bool = True) -> list[str]:
    return mounts.build_options(wanted, places, privileged=privileged)


class BrokenLauncher(LauncherClient):
    """A launcher that cannot start, and counts how often it was asked."""

    asked = 0

    def ensure(self) -> bool:
        self.asked += 1
        raise LauncherUnusable("making namespaces: Operation not permitted")
