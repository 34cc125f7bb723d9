"""What a sandbox is from the inside, whichever adapter makes it: its user, its variables, what is
in memory, and what of this machine nobody sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from jobs.sandbox import bases
from jobs.sandbox.base import SandboxSpec
from jobs.sandbox.places import Places, system_python

PROXY_PORT = 3128  # on the loopback of a guarded sandbox
NODE_PRELOAD = "/ump/proxy.cjs"
CONNECT_PROGRAM = "/ump/bin/proxy-connect"
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# What each place in memory holds at most, and the share of a small machine's memory.
MEMORY_SIZE = 1024**3
_SHARE = 8

SEARCH_PATH = "/ump/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What root of a sandbox may do (P26): as with files everywhere, with those of its own user only.
ROOT_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID")

# Nobody's business inside, where more than their mode is needed to close them: accounts and keys of
# this machine, which a group of the worker's may open, and what /proc tells of other users and of
# the kernel. Docker and Podman cover the same.
COVERED = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssl/private"),
    *("/proc/keys", "/proc/key-users", "/proc/kallsyms", "/proc/kcore", "/proc/kpagecount"),
    *("/proc/kpageflags", "/proc/kpagecgroup", "/proc/latency_stats", "/proc/sched_debug"),
    *("/proc/slabinfo", "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo"),
)


def account(spec: SandboxSpec) -> tuple[str, str]:
    """Name and home of the user inside."""
    return ("root", "/root") if spec.root else (spec.party, f"/home/{spec.party}")


@lru_cache(maxsize=1)
def memory_size() -> int:
    """What each place in memory holds at most, in bytes, whatever memory a sandbox has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MEMORY_SIZE, machine // _SHARE)


def hidden_places(
    shown: Mapping[PurePosixPath, Path], places: Places, spec: SandboxSpec
) -> Iterator[tuple[str, bool]]:
    """Where what is ours would be seen through a directory that is shown, and whether it is one
    itself. `shown` has the directories of the host by their places inside."""
    wanted = {spec.workspace, spec.home, *(bind.host for bind in spec.binds)}
    for path in places.hidden:
        real = path.resolve()
        for place, host in list(shown.items()):
            if host in wanted or not real.exists() or not real.is_relative_to(host.resolve()):
                continue
            yield str(place / real.relative_to(host.resolve())), real.is_dir()


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
