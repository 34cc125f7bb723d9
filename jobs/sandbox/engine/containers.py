"""What the engine is asked for: one container for one sandbox. Pure; nothing is started here.

Directories and sockets of the worker are bound into the container, so the engine has to be on the
worker's machine. Everything else is the image, read-only.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from jobs.sandbox.base import USER_IDS, Bind, SandboxSpec
from jobs.sandbox.files import CONNECT_SOURCE, UMP_SOURCE, node_preload
from jobs.sandbox.inside import (
    CONNECT_PROGRAM,
    COVERED,
    NODE_PRELOAD,
    PROXY_PORT,
    ROOT_CAPABILITIES,
    account,
    environment,
    hidden_places,
    memory_size,
)
from jobs.sandbox.limits import resource_limits
from jobs.sandbox.places import Places
from jobs.sandbox.runtime import small_file
from jobs.sandbox.seccomp import profile

LISTEN_SOURCE = Path(__file__).with_name("listen.py")
LISTEN_PROGRAM = "/ump/listen.py"
LISTENER_SOCKET = "/ump/listener.sock"
REPORT = "/ump/report"
LIFELINE = "/ump/lifeline"
NO_PYTHON = "no python"
# Behind the image's own, so that what an image brings is what it uses.
TOOLS = "/ump/tools"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

LABEL = "umpteenth.sandbox"  # the runtime directory of the worker that made it
MAX_USER_PROCESSES = 32_768  # of one user in all sandboxes together; each has its own limit
CPU_UNIT = 1_000_000_000
# What nobody sees of what the kernel shows: what bubblewrap covers and engines do by themselves,
# and a place that could be written to.
MASKED = (
    "/dev/mqueue",
    *(place for place in COVERED if place.startswith("/proc/")),
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/scsi"),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
)

# The first process of a sandbox. The command is its child, because the kernel keeps most signals
# from the first one, and so that it can say at the end what only the inside knows. Before the
# command's own input it takes its variables from there (`handed_over`). Its own words
# ("Killed") are nobody's business. The pipe of the report is opened for both directions: opening
# it must not wait for a reader. Nothing comes out of the lifeline but its end, which is that of the
# worker.
FIRST_PROCESS = f"""
exec 8>&2 2>/dev/null
(
  exec <{LIFELINE} >/dev/null 8>&-
  read -r nothing
  kill -KILL -1
) &
(
  exec 2>&8 8>&-
  while IFS= read -r ump_line || exit 125; do
    case $ump_line in
      =*) ump_variable=${{ump_line#=}} ;;
      +*) ump_variable=$ump_variable"
"${{ump_line#+}} ;;
      .) export "$ump_variable" ;;
      *) break ;;
    esac
  done
  if [ "$1" = listen ]; then
    shift
    if ! command -v python3 >/dev/null; then
      echo "{NO_PYTHON}" 1<>{REPORT}
      exit 125
    fi
    exec python3 -ISE {LISTEN_PROGRAM} {PROXY_PORT} {LISTENER_SOCKET} "$@"
  fi
  shift
  exec "$@"
)
code=$?
exec 9<>{REPORT}
for file in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do
  [ -r $file ] && while read -r name count; do echo "memory $name $count" >&9; done <$file
done
for file in /sys/fs/cgroup/pids/pids.events /sys/fs/cgroup/pids.events; do
  [ -r $file ] && while read -r name count; do echo "pids $name $count" >&9; done <$file
done
exit $code
"""
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that a shell may not set, and passes on or replaces as it likes.
_OWN_NAMES = {"BASHOPTS", "BASH_VERSINFO", "EUID", "OPTIND", "PPID", "SHELLOPTS", "UID"}
# What it starts, once the network is there: a command that is missing is no fault of the network.
COMMAND = """
cd -- "$1" || exit 126
shift
if ! command -v -- "$1" >/dev/null; then
  echo "command not found: $1 (a sandbox sees its image and the paths of" \
    "sandbox.readonly_paths)" >&2
  exit 127
fi
exec "$@"
"""


@dataclass(frozen=True)
class Image:
    """What has to be known of an image to start something in it."""

    name: str
    path: str = DEFAULT_PATH
    volumes: tuple[str, ...] = ()

    @classmethod
    def from_inspection(cls, name: str, found: Mapping[str, Any]) -> Image:
        config = found.get("Config") or {}
        variables = dict(item.partition("=")[::2] for item in config.get("Env") or ())
        return cls(name, variables.get("PATH") or DEFAULT_PATH, tuple(config.get("Volumes") or ()))


@dataclass(frozen=True)
class Host:
    """How the engine sees this worker's user. `runtime` is passed on; empty for its default.

    `own_user`: Podman runs as this very user, who is then the party's by `keep-id`. `remaps`:
    Docker gives containers other users, to whom nothing of ours belongs, unless told not to.
    """

    user: int
    runtime: str = ""
    podman: bool = False
    own_user: bool = False
    remaps: bool = False

    def user_inside(self, spec: SandboxSpec) -> int:
        if spec.root:
            return 0
        return USER_IDS[spec.party] if self.own_user or self.user == 0 else self.user

    def user_namespace(self, spec: SandboxSpec) -> str:
        """A wish; root of the engine's own user is that user without one."""
        if self.remaps:
            return "host"
        if not self.own_user or spec.root:
            return ""
        return "keep-id:uid={0},gid={0}".format(USER_IDS[spec.party])

    def security(self) -> list[str]:
        """Each of the two takes the filter of system calls and the paths to hide in its own way
        (Docker the latter as `MaskedPaths`, which Podman passes over)."""
        if not self.podman:
            return ["no-new-privileges", f"seccomp={profile()}"]
        path = small_file("seccomp.json", profile)
        return ["no-new-privileges", f"seccomp={path}", f"mask={':'.join(MASKED)}"]


@dataclass
class _Mounts:
    memory_size: int  # of each place in memory
    binds: dict[str, Bind] = field(default_factory=dict)
    memory: dict[str, str] = field(default_factory=dict)

    def bind(self, bind: Bind) -> None:
        self.binds[bind.inside] = bind

    def show(self, host: Path, inside: str | None = None) -> None:
        self.bind(Bind(host, inside or str(host)))

    def writable(self, inside: str) -> None:
        # Not by user: engines refuse the options for that.
        self.memory[inside] = f"rw,nosuid,nodev,exec,mode=1777,size={self.memory_size}"

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "Type": "bind",
                "Source": str(bind.host),
                "Target": bind.inside,
                "ReadOnly": not bind.writable,
            }
            for bind in self.binds.values()
        ]


def container(
    argv: Sequence[str],
    spec: SandboxSpec,
    places: Places,
    image: Image,
    host: Host,
    *,
    report: Path,
    lifeline: Path,
    listener: Path | None,
    owner: str,
) -> dict[str, Any]:
    """The body of the request. `report` is a pipe that the first process writes to, `lifeline`
    one that ends with the worker, `listener` the socket on which a guarded sandbox hands over its
    own, `owner` this worker's mark."""
    user = host.user_inside(spec)
    mounts = _mounts(spec, places, image, host)
    mounts.bind(Bind(report, REPORT, writable=True))
    mounts.show(lifeline, LIFELINE)
    if listener is not None:
        mounts.show(
            small_file("listen.py", lambda: LISTEN_SOURCE.read_text("utf-8")), LISTEN_PROGRAM
        )
        mounts.bind(Bind(listener, LISTENER_SOCKET, writable=True))
    how = "listen" if listener is not None else "run"
    return {
        "Image": image.name,
        "Entrypoint": ["/bin/sh", "-c", FIRST_PROCESS, "sh"],
        "Cmd": [how, "/bin/sh", "-c", COMMAND, "sh", spec.cwd, *argv],
        "User": f"{user}:{user}",
        "Env": [
            f"{name}={value}"
            for name, value in variables(spec, places, image).items()
            if name not in _by_hand(spec)
        ],
        "Labels": {LABEL: owner},
        "Hostname": "sandbox",
        "WorkingDir": "/",
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        # Removing it is then to kill it, at once.
        "StopSignal": "SIGKILL",
        "StopTimeout": 0,
        "HostConfig": {
            **_limits(spec),
            **({"Runtime": host.runtime} if host.runtime else {}),
            **({"UsernsMode": name} if (name := host.user_namespace(spec)) else {}),
            "NetworkMode": "host" if spec.network else "none",
            "IpcMode": "private",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": list(ROOT_CAPABILITIES) if spec.root else [],
            "SecurityOpt": host.security(),
            "MaskedPaths": list(MASKED),
            # What a script prints is the run's, bounded, and nothing of it stays with the engine.
            "LogConfig": {"Type": "none"},
            "Mounts": mounts.as_json(),
            "Tmpfs": mounts.memory,
        },
    }


def _limits(spec: SandboxSpec) -> dict[str, Any]:
    limits = spec.limits
    # None of them beyond what this process has: an engine that may not raise limits refuses.
    names = {
        resource.RLIMIT_NOFILE: "nofile",
        resource.RLIMIT_CORE: "core",
        resource.RLIMIT_FSIZE: "fsize",
    }
    found = [
        {"Name": names[which], "Soft": soft, "Hard": hard}
        for which, soft, hard in resource_limits(limits, ("memory", "pids", "cpu"))
        if which in names
    ]
    held = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = MAX_USER_PROCESSES if held == resource.RLIM_INFINITY else held
    processes = min(processes, MAX_USER_PROCESSES)
    found.append({"Name": "nproc", "Soft": processes, "Hard": processes})
    return {
        "Memory": limits.memory,
        "MemorySwap": limits.memory,  # together with swap: none
        "PidsLimit": limits.processes,
        "NanoCpus": int(limits.cpus * CPU_UNIT),
        "ShmSize": _memory_size(spec),
        "Ulimits": found,
    }


def _memory_size(spec: SandboxSpec) -> int:
    return min(memory_size(), spec.limits.memory)


def _mounts(spec: SandboxSpec, places: Places, image: Image, host: Host) -> _Mounts:
    mounts = _Mounts(_memory_size(spec))
    for path in places.readonly:
        mounts.show(path)
    for path in places.bundles():
        mounts.show(path)
    for name, text in _accounts(spec, host).items():
        file = f"{name}-{spec.party}-{host.user_inside(replace(spec, root=False))}"
        mounts.show(small_file(file, partial(str, text)), f"/etc/{name}")
    _programs(mounts, spec, places)
    # What an image declares a volume would else be on the engine's disk, without a limit.
    for place in ("/tmp", "/var/tmp", *image.volumes):
        mounts.writable(place)
    _, home = account(spec)
    for directory, inside in ((spec.workspace, "/workspace"), (spec.home, home)):
        if directory is None:
            mounts.writable(inside)
        else:
            mounts.bind(Bind(directory, inside, writable=True))
    for bind in spec.binds:
        mounts.bind(bind)
    shown = {PurePosixPath(bind.inside): bind.host for bind in mounts.binds.values()}
    for inside, is_directory in hidden_places(shown, places, spec):
        if is_directory:
            mounts.memory[inside] = "ro,nosuid,nodev,mode=0755,size=4k"
        else:
            mounts.show(Path(os.devnull), inside)
    return mounts


def _programs(mounts: _Mounts, spec: SandboxSpec, places: Places) -> None:
    if places.uv is not None:
        for program in (places.uv, places.uv.with_name("uvx")):
            if program.exists():
                mounts.show(program, f"{TOOLS}/{program.name}")
    if spec.party == "agent":
        mounts.show(_any_python("engine-ump", UMP_SOURCE), "/ump/bin/ump")
    if spec.egress is not None:
        mounts.show(node_preload(), NODE_PRELOAD)
        mounts.show(_any_python("engine-connect", CONNECT_SOURCE), CONNECT_PROGRAM)


def _any_python(name: str, source: Path) -> Path:
    """A copy of a program that starts with whatever Python the image has on its path: to a shell
    its docstring begins with a command that does nothing, and one that becomes Python."""

    def text() -> str:
        _, quotes, body = source.read_text(encoding="utf-8").partition('"""')
        return f'#!/bin/sh\n{quotes}:"\nexec python3 -ISE "$0" "$@"\n{body}'

    return small_file(name, text, mode=0o755)


def _accounts(spec: SandboxSpec, host: Host) -> dict[str, str]:
    """Names of the users inside; the image's own files would not know them."""
    ids = {party: replace(spec, party=party, root=False) for party in USER_IDS}
    numbers = {party: host.user_inside(one) for party, one in ids.items()}
    # Of two with one number the first is found.
    order = sorted(numbers, key=lambda party: party != spec.party)
    users = [
        f"{name}:x:{numbers[name]}:{numbers[name]}:{name}:/home/{name}:/bin/sh" for name in order
    ]
    groups = [f"{name}:x:{numbers[name]}:" for name in order]
    users += [
        "root:x:0:0:root:/root:/bin/sh",
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false",
    ]
    groups += ["root:x:0:", "nogroup:x:65534:"]
    return {"passwd": "\n".join(users) + "\n", "group": "\n".join(groups) + "\n"}


def variables(spec: SandboxSpec, places: Places, image: Image) -> dict[str, str]:
    """What is set beside the image's own variables, of which only PATH is looked at."""
    found = environment(replace(spec, base=""), places)
    # They tell of this machine's programs.
    for name in ("UV_PYTHON", "UV_SYSTEM_CERTS", "SHELL"):
        if name not in spec.env:
            found.pop(name, None)
    if "PATH" not in spec.env:
        found["PATH"] = f"/ump/bin:{image.path}:{TOOLS}"
    return found


def handed_over(spec: SandboxSpec, places: Places, image: Image) -> bytes:
    """The variables that may be secret, as the first process reads them: an engine would keep them
    on its disk and show them to whoever asks. The lines of each, and an empty one at the end."""
    names = _by_hand(spec)
    lines = [
        f"={name}={value}".replace("\n", "\n+") + "\n.\n"
        for name, value in variables(spec, places, image).items()
        if name in names
    ]
    return os.fsencode("".join(lines) + "\n")


def _by_hand(spec: SandboxSpec) -> set[str]:
    return {name for name in spec.env if _SHELL_NAME.fullmatch(name)} - _OWN_NAMES
