"""The options of bwrap for one sandbox: namespaces and places.

Two traps shape this (measured): directories that bwrap makes on the way to a place are 0700 and
root's, so every parent is made first; and as root its /dev/shm and tmpfs are 0755.

Whatever is in memory has a size, or is read-only: a tmpfs without one may fill half of the
machine's memory. A plain user owns what bwrap makes, so that modes alone would not hold him.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from jobs.sandbox import bases
from jobs.sandbox.base import USER_IDS, Bind, SandboxSpec
from jobs.sandbox.files import connect_program, node_preload, ump_program
from jobs.sandbox.inside import (
    CONNECT_PROGRAM,
    COVERED,
    NODE_PRELOAD,
    ROOT_CAPABILITIES,
    account,
    environment,
    hidden_places,
    memory_size,
)
from jobs.sandbox.places import Places
from jobs.sandbox.runtime import small_file

# What the loader and the C library of any program obey.
_LOADS_CODE = re.compile(
    r"LD_[A-Z0-9_]*|MALLOC_[A-Z0-9_]*|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|NLSPATH"
)
HELD_BACK = "UMP_HELD_BACK_"

_USERS = """root:x:0:0:root:/root:/bin/bash
agent:x:1000:1000:agent:/home/agent:/bin/bash
mcp:x:1001:1001:mcp:/home/mcp:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUPS = "root:x:0:\nagent:x:1000:\nmcp:x:1001:\nnogroup:x:65534:\n"


class _Options:
    """Collects bwrap's options in order; knows which places exist already."""

    def __init__(self, memory: int) -> None:
        self._memory = memory  # bytes that a place in memory holds at most
        self.items: list[str] = []
        self._made = {PurePosixPath("/")}
        # Host directories shown so far, by their place inside.
        self.shown: dict[PurePosixPath, Path] = {}

    def add(self, *items: str) -> None:
        self.items += items

    def directory(self, inside: str, mode: str = "0755") -> None:
        path = PurePosixPath(inside)
        if path in self._made or self._is_shown(path):
            return
        self.parents(inside)
        self._made.add(path)
        self.add("--perms", mode, "--dir", inside)

    def parents(self, inside: str) -> None:
        parent = PurePosixPath(inside).parent
        if parent not in self._made:
            self.directory(str(parent))

    def memory(self, inside: str) -> None:
        """An empty directory in memory that everybody may write to."""
        self.parents(inside)
        self._made.add(PurePosixPath(inside))
        self.add("--perms", "1777", "--size", str(self._memory), "--tmpfs", inside)

    def bind(self, bind: Bind) -> None:
        self.parents(bind.inside)
        self.add("--bind" if bind.writable else "--ro-bind", str(bind.host), bind.inside)
        self.shown[PurePosixPath(bind.inside)] = bind.host

    def show(self, host: Path, inside: str | None = None) -> None:
        self.bind(Bind(host, inside or str(host)))

    def cover(self, inside: str, *, directory: bool) -> None:
        """Put an empty directory, or a device that cannot be opened, on top of what is there."""
        if directory:
            self.add("--perms", "0755", "--tmpfs", inside, "--remount-ro", inside)
        else:
            self.add("--ro-bind", "/dev/null", inside)

    def _is_shown(self, path: PurePosixPath) -> bool:
        return path in self.shown or any(parent in self.shown for parent in path.parents)


def build_options(spec: SandboxSpec, places: Places, *, privileged: bool) -> list[str]:
    """Everything bwrap is told, but for the command."""
    options = _Options(min(memory_size(), spec.limits.memory))
    _namespaces(options, spec, privileged)
    _system(options, spec)
    user = USER_IDS[spec.party] if privileged else None
    for place in COVERED:
        # bwrap mounts nothing on a link.
        if not os.path.islink(place) and is_open(place, user):
            options.cover(place, directory=os.path.isdir(place))
    for path in places.readonly:
        if not options._is_shown(PurePosixPath(path)):
            options.show(path)
    _party(options, spec, places)
    for path in places.bundles():
        if not options._is_shown(PurePosixPath(path)):
            options.show(path)
    for bind in spec.binds:
        options.bind(bind)
    for inside, is_directory in hidden_places(options.shown, places, spec):
        options.cover(inside, directory=is_directory)
    options.add("--remount-ro", "/", "--clearenv")
    for name, value in _held_back(environment(spec, places)).items():
        options.add("--setenv", name, value)
    return options.items


def _held_back(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that make a program load code are called otherwise until only the command is left to
    start: before it comes `setpriv`, which is root of this machine, and whatever makes the
    sandbox. `bubblewrap` gives them their names back."""
    late = [name for name in variables if _LOADS_CODE.fullmatch(name)]
    found = {HELD_BACK + name if name in late else name: variables[name] for name in variables}
    return {**found, HELD_BACK: " ".join(late)} if late else found


def _namespaces(options: _Options, spec: SandboxSpec, privileged: bool) -> None:
    options.add("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
    options.add("--unshare-cgroup-try", "--hostname", "sandbox")
    if not spec.network:
        options.add("--unshare-net")
    options.add("--cap-drop", "ALL")
    if privileged:
        # For setpriv, which drops them too; --unshare-user would leave it a single user id.
        for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            options.add("--cap-add", name)
    else:
        options.add(*as_user(spec))
        # The filter of system calls forbids them too. As root bwrap has no such lock.
        if _can_close_namespaces():
            options.add("--disable-userns")


def as_user(spec: SandboxSpec) -> list[str]:
    """A user namespace with one user in it: the party's own, or root, who is nobody outside."""
    user = "0" if spec.root else str(USER_IDS[spec.party])
    capabilities = ROOT_CAPABILITIES if spec.root else ()
    added = [word for name in capabilities for word in ("--cap-add", name)]
    return ["--unshare-user", "--uid", user, "--gid", user, *added]


@lru_cache(maxsize=1)
def _can_close_namespaces() -> bool:
    """Whether this bwrap (0.8 or newer) can end the making of user namespaces inside."""
    try:
        said = subprocess.run(["bwrap", "--help"], check=False, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"--disable-userns" in said.stdout


def _system(options: _Options, spec: SandboxSpec) -> None:
    options.show(Path("/usr"))
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options.add("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            options.show(path)
    options.show(Path("/etc"))
    options.show(small_file("passwd", lambda: _USERS), "/etc/passwd")
    options.show(small_file("group", lambda: _GROUPS), "/etc/group")
    options.add("--proc", "/proc", "--dev", "/dev")
    for place in ("/dev/shm", "/tmp", "/var/tmp"):
        options.memory(place)
    options.add("--remount-ro", "/dev")
    options.directory("/run")
    resolver = Path("/etc/resolv.conf")
    if spec.network and resolver.is_symlink() and resolver.exists():
        real = resolver.resolve()
        if not options._is_shown(PurePosixPath(real)):
            options.show(real)


def is_open(path: str, user: int | None) -> bool:
    """Whether its mode lets a sandbox's user in: one without any group but its own, or ourselves
    with all of ours. Each cover costs a sixth of a millisecond."""
    if user is None:
        return os.access(path, os.R_OK) or os.access(path, os.X_OK)
    try:
        found = os.stat(path)
    except OSError:
        return False
    return bool(found.st_mode & 0o007) or user in (found.st_uid, found.st_gid)


def _party(options: _Options, spec: SandboxSpec, places: Places) -> None:
    """The places of the party's own: /ump, /workspace and a home."""
    options.directory("/ump/bin")
    if places.uv is not None:
        for program in (places.uv, places.uv.with_name("uvx")):
            if program.exists():
                options.show(program, f"/ump/bin/{program.name}")
    if spec.egress is not None:
        options.show(node_preload(), NODE_PRELOAD)
        options.show(connect_program(), CONNECT_PROGRAM)
    if spec.party == "agent":
        options.show(ump_program(), "/ump/bin/ump")
    if spec.base:
        options.show(Path(spec.base), bases.INSIDE)
    _, home = account(spec)
    for host, inside in ((spec.workspace, "/workspace"), (spec.home, home)):
        if host is None:
            options.memory(inside)
        else:
            options.bind(Bind(host, inside, writable=True))
