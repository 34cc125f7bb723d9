"""Why sandboxes cannot start on this machine, in one sentence with the remedy."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.sandbox.base import Limits
from jobs.sandbox.launcher_client import LauncherClient, LauncherUnusable
from jobs.sandbox.limits import resource_limits

PROBE_TIMEOUT = 20.0  # seconds
_TAIL = 2000  # bytes of bwrap's own words that are looked at

NO_BUBBLEWRAP = (
    "bubblewrap (the command bwrap) is not installed; install it, on Debian and Ubuntu with:"
    " apt install bubblewrap"
)
NO_UTIL_LINUX = "setpriv, setsid or prlimit is not installed; install the package util-linux."
IN_CONTAINER = (
    "This container does not allow sandboxes; start the worker's container with"
    " security_opt: [seccomp=unconfined, systempaths=unconfined]"
)
NO_LISTENER = (
    "Sandboxes start here, but the worker cannot enter their network to serve its proxy; let it"
    " call setns, which a security module or a seccomp profile forbids"
)
NO_USER_NAMESPACES = (
    "The kernel does not let this user make namespaces; allow it with {remedy},"
    " or start the worker as root."
)

_CANNOT_START = "Sandboxes cannot start here"
NO_ROOT = (
    "Run as root needs a user namespace, and the kernel lets only root of this machine make one;"
    " allow it with {remedy}, or switch Run as root off in the job."
)

# What a trial runs: whether it is behind a filter, as the kernel has it.
IS_FILTERED = (
    "sh",
    "-c",
    'while read -r name value; do [ "$name$value" = Seccomp:2 ] && exit 0; done'
    " < /proc/self/status; echo the kernel does not filter their system calls >&2; exit 1",
)

# Kernel switches that forbid a plain user's namespaces: file, value that forbids, remedy.
_SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
)


def probe(
    launcher: LauncherClient,
    command: Sequence[str],
    extra: Sequence[int],
    groups: Sequence[str],
    port: int | None = None,
) -> str:
    """Start the command and wait for its end; "" if it went well. Blocks.

    `extra` are descriptors that become 3, 4, …, `groups` as of `LauncherClient.start`. With
    `port` it has a listener there, as guarded sandboxes have.
    """
    ended = threading.Event()
    result: list[tuple[int, str]] = []

    def report(code: int, error: str) -> None:
        result.append((code, error))
        ended.set()

    messages = os.memfd_create("sandbox-probe", os.MFD_CLOEXEC)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        limits = resource_limits(Limits(), ())
        name = launcher.start(
            command,
            [nothing, nothing, messages, *extra],
            report,
            limits,
            groups=groups,
            listen=None if port is None else (port, socket.socket.close),
        )
        if not ended.wait(PROBE_TIMEOUT):
            launcher.kill(name)
            return f"A sandbox did not start within {PROBE_TIMEOUT:.0f} seconds."
        code, error = result[0]
        said = os.pread(messages, _TAIL, 0).decode("utf-8", "replace").strip()
    except LauncherUnusable as problem:
        return explain(str(problem))
    finally:
        os.close(messages)
        os.close(nothing)
    return "" if code == 0 else explain(said or error or f"bwrap ended with exit code {code}")


def explain(message: str) -> str:
    """A sentence for the operator from what the system or bwrap said."""
    last = message.strip().splitlines()[-1] if message.strip() else "no reason was given"
    refused = ("not permitted", "No permissions", "Permission denied", "No space left", "EPERM")
    if any(word in last for word in refused):
        if in_container():
            return f"{IN_CONTAINER} ({last})."
        if "no listener" in last:
            return f"{NO_LISTENER} ({last})."
        if os.geteuid() != 0:
            return f"{NO_USER_NAMESPACES.format(remedy=_remedy())} ({last})."
    return f"{_CANNOT_START}: {last}."


def explain_root(problem: str) -> str:
    """The same where plain sandboxes start and those that run as root do not."""
    if not problem:
        return ""
    reason = problem.removeprefix(f"{_CANNOT_START}: ").removesuffix(".")
    return f"{NO_ROOT.format(remedy=_remedy())} ({reason})"


def in_container(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process seems to run in a container of Docker, Podman or the like."""
    environ = os.environ if environ is None else environ
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        return True
    return bool(environ.get("container"))


def _remedy() -> str:
    for switch, forbids, remedy in _SWITCHES:
        path = Path("/proc/sys", switch)
        if path.exists() and path.read_text().strip() == forbids:
            return remedy
    return "the administrator's help (user namespaces are needed)"
