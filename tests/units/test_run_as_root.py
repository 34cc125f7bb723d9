"""Run as root: what a sandbox is told for it, and where it cannot be (P26)."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.sandbox import bubblewrap
from jobs.sandbox.base import SandboxUnavailable
from jobs.sandbox.bubblewrap import Bubblewrap
from jobs.sandbox.launcher_client import LauncherClient
from jobs.sandbox.places import Places
from tests.fakes.sandbox_specs import BrokenLauncher, build, spec, variables


async def test_where_no_user_namespaces_are_to_be_had_run_as_root_says_so_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P26: neither as another user nor as root of this machine instead."""

    def refuse(launcher: object, command: list[str], *more: object) -> str:
        return "bwrap: Creating new namespace failed" if "--uid" in command else ""

    class Privileged(LauncherClient):
        def ensure(self) -> bool:
            return True

        def start(self, *arguments: object, **options: object) -> str:
            raise AssertionError("nothing is started")

    monkeypatch.setattr(bubblewrap, "probe", refuse)
    adapter = Bubblewrap(Places(tmp_path), Privileged())
    assert adapter.problem() == ""
    assert "switch Run as root off in the job" in adapter.root_problem()
    with pytest.raises(SandboxUnavailable, match="Run as root needs a user namespace"):
        await adapter.start(["true"], spec(root=True))


def test_where_no_sandbox_starts_at_all_run_as_root_has_no_reason_of_its_own(
    tmp_path: Path,
) -> None:
    broken = Bubblewrap(Places(tmp_path), BrokenLauncher())
    assert broken.root_problem() == broken.problem() != ""


@pytest.mark.parametrize("privileged", [True, False])
def test_root_inside_is_never_root_of_this_machine(tmp_path: Path, privileged: bool) -> None:
    """P26: the user is changed before the namespace is made in which he is called root."""
    wanted = spec(root=True)
    options = build(wanted, Places(tmp_path), privileged=privileged)
    command = bubblewrap.command_line(["true"], wanted, privileged=privileged)
    assert variables(options)["HOME"] == "/root"
    if not privileged:
        assert options[options.index("--uid") + 1] == "0"
        return
    assert "--unshare-user" not in options
    assert command.index("--reuid") < command.index("--unshare-user") < command.index("--seccomp")
    assert command[command.index("--reuid") + 1] == "1000"
