"""Sandboxes made by bubblewrap (bwrap), as root and as a plain user.

As root no user namespace is made; bwrap keeps the three capabilities that changing the user
needs, and `setpriv` changes to the party's user and drops them. A plain user gets a user
namespace in which the party's id stands for his own.

Run as root is the same with a user namespace in which root stands for that user (P26): of a plain
user's sandbox, or, as root, made by a second bwrap after the user was changed, so that root of
this machine is no user in there. All other namespaces then belong to whom root inside is nobody.

All options go to bwrap through a descriptor (`--args`), so that no variable's value is ever in
an argument list, which any process of the machine may read. So does the filter of system calls
(`--seccomp`); without one bwrap starts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Sequence

from jobs.sandbox import accounts, disk, seccomp
from jobs.sandbox.base import (
    LINE_LIMIT,
    USER_IDS,
    SandboxProcess,
    SandboxSpec,
    SandboxUnavailable,
    Trial,
    check,
)
from jobs.sandbox.cgroups import Cgroups
from jobs.sandbox.cgroups import shared as shared_cgroups
from jobs.sandbox.egress.base import Egress, Refused
from jobs.sandbox.inside import PROXY_PORT
from jobs.sandbox.launcher_client import LauncherClient, LauncherUnusable, shared
from jobs.sandbox.limits import gaps, process_limit
from jobs.sandbox.mounts import HELD_BACK, as_user, build_options
from jobs.sandbox.places import Places
from jobs.sandbox.probe import (
    IS_FILTERED,
    NO_BUBBLEWRAP,
    NO_UTIL_LINUX,
    explain,
    explain_root,
    probe,
)
from jobs.sandbox.process import start_process

# The descriptors that bwrap reads its options and the filter of system calls from; behind them
# those of `LauncherClient.start`.
_OPTIONS_FD = 3
_FILTER_FD = 4
_INFO_FD = 5
_BLOCK_FD = 6
_SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"

# Not bwrap's --chdir: as root it would need the right that it has given up already to enter a
# directory of the party's own. A command that does not exist is the commonest mistake.
_RUN = (
    f'for ump in ${{{HELD_BACK}-}}; do eval "export $ump=\\"\\${HELD_BACK}$ump\\""; '
    f'unset "{HELD_BACK}$ump"; done; unset ump {HELD_BACK}; '
    'cd -- "$1" || exit 126; shift; '
    'command -v -- "$1" >/dev/null || { echo "command not found: $1'
    ' (a sandbox sees /usr, /etc and the paths of sandbox.readonly_paths)" >&2; exit 127; }; '
    'exec "$@"'
)


class Bubblewrap:
    """The adapter. `places` says what sandboxes see of this machine."""

    name = "bubblewrap"

    def __init__(
        self,
        places: Places,
        launcher: LauncherClient | None = None,
        cgroups: Cgroups | None = None,
    ) -> None:
        self.places = places
        self._launcher = launcher or shared()
        self._cgroups = cgroups or shared_cgroups()
        self.trial = Trial(self._look)
        self.root_trial = Trial(self._look_as_root)

    def problem(self) -> str:
        """See `Adapter.problem`."""
        return self.trial.problem()

    def root_problem(self) -> str:
        """See `Adapter.root_problem`."""
        return self.trial.problem() or self.root_trial.problem()

    def gaps(self) -> tuple[str, ...]:
        """See `Adapter.gaps`."""
        try:
            privileged = self._launcher.ensure()
        except LauncherUnusable:
            return ()  # which `problem` tells
        found = gaps(self._cgroups.controllers, privileged=privileged)
        found += accounts.gaps(privileged=privileged) + self.places.gaps()
        if self.problem():  # which is no gap, and said by itself
            return found
        return (*found, why) if (why := self.root_problem()) else found

    def tidy(self) -> None:
        """See `Adapter.tidy`. Of a sandbox only its groups outlive its launcher."""
        self._cgroups.remove_leftovers()

    async def start(
        self, argv: Sequence[str], spec: SandboxSpec, *, limit: int = LINE_LIMIT
    ) -> SandboxProcess:
        """See `jobs.sandbox.base.start`."""
        if not (self.root_trial if spec.root else self.trial).went_well:
            problem = await asyncio.to_thread(self.root_problem if spec.root else self.problem)
            if problem:
                raise SandboxUnavailable(problem)
        check(argv, spec)
        if not self._launcher.running:
            await asyncio.to_thread(self._ensure)
        privileged = self._ensure()
        descriptors = self._descriptors(spec, privileged)
        try:
            return await start_process(
                self._launcher,
                self._command_line(argv, spec, privileged),
                spec,
                self._cgroups,
                owner=USER_IDS[spec.party] if privileged else None,
                extra=descriptors,
                limit=limit,
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _command_line(self, argv: Sequence[str], spec: SandboxSpec, privileged: bool) -> list[str]:
        is_counted = "pids" in self._cgroups.controllers
        return command_line(argv, spec, privileged=privileged, count_processes=not is_counted)

    def _descriptors(self, spec: SandboxSpec, privileged: bool) -> tuple[int, int]:
        """What becomes `_OPTIONS_FD` and `_FILTER_FD`; the caller closes both."""
        try:
            rules = seccomp.open_filter()
        except seccomp.FilterUnavailable as error:
            raise SandboxUnavailable(str(error)) from None
        try:
            return pack(build_options(spec, self.places, privileged=privileged)), rules
        except BaseException:
            os.close(rules)
            raise

    def _ensure(self) -> bool:
        try:
            return self._launcher.ensure()
        except LauncherUnusable as error:
            raise SandboxUnavailable(explain(str(error))) from None

    def _look(self) -> str:
        if shutil.which("bwrap") is None:
            return NO_BUBBLEWRAP
        if any(shutil.which(tool) is None for tool in ("setpriv", "setsid", "prlimit")):
            return NO_UTIL_LINUX
        if why := disk.problem() or seccomp.problem():
            return why
        try:
            privileged = self._launcher.ensure()
        except LauncherUnusable as error:
            return explain(str(error))
        # The guarded network is the one that most jobs have, and the one that needs most.
        egress = Egress(_to_nowhere, lambda event: None)
        return self._try(SandboxSpec(party="agent", network=False, egress=egress), privileged)

    def _look_as_root(self) -> str:
        try:
            privileged = self._launcher.ensure()
        except LauncherUnusable as error:
            return explain(str(error))
        spec = SandboxSpec(party="agent", network=False, root=True)
        return explain_root(self._try(spec, privileged))

    def _try(self, spec: SandboxSpec, privileged: bool) -> str:
        descriptors = self._descriptors(spec, privileged)
        try:
            command = self._command_line(IS_FILTERED, spec, privileged)
            try:
                group = self._cgroups.make(spec.limits)
            except OSError as error:
                return f"The limits of a sandbox could not be set: {error}"
            try:
                port = PROXY_PORT if spec.egress is not None else None
                return probe(self._launcher, command, descriptors, group.entrances, port)
            finally:
                group.remove()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


async def _to_nowhere(host: str, port: int) -> tuple[str, ...]:
    raise Refused("A trial goes nowhere.")


def command_line(
    argv: Sequence[str], spec: SandboxSpec, *, privileged: bool, count_processes: bool = False
) -> list[str]:
    """What the launcher executes; nothing in it is secret but what argv itself says.

    `count_processes`: the limit of processes is set here, for want of a control group. It has to
    be inside: outside of a plain user's namespace all processes of that user count.
    """
    user = str(USER_IDS[spec.party])
    drop = [_tool("setpriv"), "--reuid", user, "--regid", user, "--clear-groups"]
    drop += ["--no-new-privs"]
    drop += ["--inh-caps=-all", "--bounding-set=-all"]
    filtered = ["--seccomp", str(_FILTER_FD)]
    if privileged and spec.root:
        # The filter forbids the second user namespace, so it comes with that one's command.
        drop += [_tool("bwrap"), "--die-with-parent", "--cap-drop", "ALL", *as_user(spec)]
        drop += ["--dev-bind", "/", "/", *filtered, "--"]
        filtered = []
    # Nothing begins before the launcher has made the proxy's listener in the new namespace.
    wait = ["--info-fd", str(_INFO_FD), "--block-fd", str(_BLOCK_FD)]
    return [
        shutil.which("bwrap") or "/usr/bin/bwrap",
        "--args",
        str(_OPTIONS_FD),
        *filtered,
        *(wait if spec.egress is not None else ()),
        "--",
        *(drop if privileged else ()),
        *([_tool("prlimit"), f"--nproc={process_limit(spec.limits)}"] if count_processes else ()),
        # A session of its own: `kill 0` in a script must not reach bwrap, which is outside.
        _tool("setsid"),
        "/bin/sh",
        "-c",
        _RUN,
        "sh",
        spec.cwd,
        *argv,
    ]


def _tool(name: str) -> str:
    """A tool of the system by its whole path: the search path inside may be the party's own."""
    return shutil.which(name, path=_SYSTEM_PATH) or name


def pack(options: Sequence[str]) -> int:
    """A descriptor that bwrap reads the options from; the caller closes it."""
    descriptor = os.memfd_create("sandbox-options", os.MFD_CLOEXEC)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, descriptor)
        content = memoryview(b"".join(os.fsencode(option) + b"\0" for option in options))
        while content:
            content = content[os.write(descriptor, content) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        undo.pop_all()
    return descriptor
