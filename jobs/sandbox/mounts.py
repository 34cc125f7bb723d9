"""The options of bwrap for one sandbox: namespaces, places, variables.

Two traps shape this (measured): directories that bwrap makes on the way to a place are 0700 and
root's, so every parent is made first; and as root its /dev/shm and tmpfs are 0755.

Whatever is in memory has a size, or is read-only: a tmpfs without one may fill half of the
machine's memory. A plain user owns what bwrap makes, so that modes alone would not hold him.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from jobs.sandbox import bases
from jobs.sandbox.base import USER_IDS, Bind, SandboxSpec
from jobs.sandbox.files import connect_program, node_preload, ump_program
from jobs.sandbox.places import Places, system_python
from jobs.sandbox.process import PROXY_PORT
from jobs.sandbox.runtime import small_file

NODE_PRELOAD = "/ump/proxy.cjs"
CONNECT_PROGRAM = "/ump/bin/proxy-connect"
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# What each place in memory holds at most, and the share of a small machine's memory.
MEMORY_SIZE = 1024**3
_SHARE = 8

SEARCH_PATH = "/ump/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What root of a sandbox may do (P26): as with files everywhere, with those of its own user only.
ROOT_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID")

# What the loader and the C library of any program obey.
_LOADS_CODE = re.compile(
    r"LD_[A-Z0-9_]*|MALLOC_[A-Z0-9_]*|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|NLSPATH"
)
HELD_BACK = "UMP_HELD_BACK_"

# Nobody's business inside, where more than their mode is needed to close them: accounts and keys of
# this machine, which a group of the worker's may open, and what /proc tells of other users and of
# the kernel. Docker and Podman cover the same.
COVERED = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssl/private"),
    *("/proc/keys", "/proc/key-users", "/proc/kallsyms", "/proc/kcore", "/proc/kpagecount"),
    *("/proc/kpageflags", "/proc/kpagecgroup", "/proc/latency_stats", "/proc/sched_debug"),
    *("/proc/slabinfo", "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo"),
)

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
    _hide(options, places.hidden, spec)
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


def account(spec: SandboxSpec) -> tuple[str, str]:
    """Name and home of the user inside."""
    return ("root", "/root") if spec.root else (spec.party, f"/home/{spec.party}")


@lru_cache(maxsize=1)
def _can_close_namespaces() -> bool:
    """Whether this bwrap (0.8 or newer) can end the making of user namespaces inside."""
    try:
        said = subprocess.run(["bwrap", "--help"], check=False, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"--disable-userns" in said.stdout


@lru_cache(maxsize=1)
def memory_size() -> int:
    """What each place in memory holds at most, in bytes, whatever memory a sandbox has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MEMORY_SIZE, machine // _SHARE)


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


def _hide(options: _Options, hidden: Iterable[Path], spec: SandboxSpec) -> None:
    """Cover what is ours wherever a shown directory holds it."""
    wanted = {spec.workspace, spec.home, *(bind.host for bind in spec.binds)}
    for path in hidden:
        real = path.resolve()
        for place, host in list(options.shown.items()):
            if host in wanted or not real.exists() or not real.is_relative_to(host.resolve()):
                continue
            inside = place / real.relative_to(host.resolve())
            options.cover(str(inside), directory=real.is_dir())


def environment(spec: SandboxSpec, places: Places) -> dict[str, str]:
    """The variables of a sandbox: ours first, then the specification's, which win."""
    name, home = account(spec)
    variables = {
        "PATH": SEARCH_PATH,
        "HOME": home,
        "USER": name,
        "LOGNAME": name,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "PYTHONUNBUFFERED": "1",
        **_package_managers(spec.network or spec.egress is not None),
        **(places.certificates or {}),
        **(_proxy() if spec.egress is not None else {}),
    }
    if not system_python().startswith("/usr/"):
        variables["PATH"] += ":" + str(Path(system_python()).parent)
    if spec.base:
        variables |= bases.variables(Path(spec.base), variables["PATH"])
    found = {**variables, **spec.env}
    if spec.egress is not None and "NODE_OPTIONS" in spec.env:
        found["NODE_OPTIONS"] = f"{variables['NODE_OPTIONS']} {spec.env['NODE_OPTIONS']}"
    return found


def _proxy() -> Mapping[str, str]:
    """Where programs find the proxy of a guarded sandbox.

    ALL_PROXY is no SOCKS URL: HTTP clients of Python then fail for want of a package. Node takes
    NODE_USE_ENV_PROXY from 22.21 on; older ones get it from what they load first. git over ssh is
    joined to it by a program of ours.
    """
    url = f"http://127.0.0.1:{PROXY_PORT}"
    loopback = "127.0.0.1,localhost,::1"
    found = {"NODE_USE_ENV_PROXY": "1", "NODE_OPTIONS": f"--require={NODE_PRELOAD}"}
    found["GIT_SSH_COMMAND"] = f"ssh -o 'ProxyCommand={CONNECT_PROGRAM} %h %p'"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        found[name] = found[name.lower()] = url
    for name in ("NO_PROXY", "no_proxy"):
        found[name] = loopback
    return found


def _package_managers(network: bool) -> Mapping[str, str]:
    """Settings of npm, uv and pip; without network they are told, to fail at once."""
    quiet = {
        "npm_config_update_notifier": "false",
        "npm_config_fund": "false",
        "npm_config_audit": "false",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_LINK_MODE": "copy",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_PYTHON": system_python(),
    }
    if SYSTEM_CERTIFICATES.exists():
        # As pip of Debian, curl and git do; by itself uv trusts only what it brings along.
        quiet["UV_SYSTEM_CERTS"] = "1"
    if network:
        return quiet
    return {**quiet, "npm_config_offline": "true", "UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
