"""The filter of system calls that every sandbox under bubblewrap runs behind.

Namespaces keep a sandbox from seeing what is not its own; the filter keeps it from the parts of
the kernel that no ordinary program needs and that have let others out before. What is refused
fails as it would for a program without rights; `clone3` and io_uring fail as on a kernel that does
not have them, so that programs take the older way. Calls of a foreign architecture (32-bit, x32)
end the process, since their numbers mean something else.

The filter is written by libseccomp, once a process, into a sealed file in memory. bwrap reads a
filter to its end, so that each start gets a descriptor of its own. Engines get the same rules as a
profile (`profile`), in place of their own.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NO_LIBRARY = (
    "libseccomp, which filters the system calls of sandboxes, is not installed; install it,"
    " on Debian and Ubuntu with: apt install libseccomp2"
)
NO_BINDINGS = "The Python package pyseccomp is not installed; install the locked packages again."
TOO_OLD = "libseccomp is too old to filter {name}; install version 2.5 or newer of libseccomp2."
OTHER_MACHINE = (
    "Sandboxes need a filter of system calls, and there is none for this machine ({machine});"
    " run the worker on x86-64, ARM64 or RISC-V (64 bit)."
)

# Refused as a matter of rights.
REFUSED = (
    # The kernel's keyrings, which no namespace separates.
    *("keyctl", "add_key", "request_key"),
    # Other processes' memory and descriptors.
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"),
    *("process_madvise", "move_pages", "migrate_pages", "mbind", "set_mempolicy"),
    # Mounts and roots.
    *("mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("move_mount", "open_tree", "mount_setattr", "swapon", "swapoff"),
    # New namespaces, and entering others (clone: below).
    *("setns", "unshare"),
    # Large and seldom needed parts of the kernel.
    *("bpf", "perf_event_open", "userfaultfd", "fanotify_init", "fanotify_mark"),
    *("open_by_handle_at", "name_to_handle_at", "lookup_dcookie", "quotactl", "quotactl_fd"),
    # The machine itself.
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("reboot", "acct", "syslog", "iopl", "ioperm", "vhangup", "sethostname", "setdomainname"),
    *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "nfsservctl", "uselib"),
)
# As on a kernel without them. The flags of clone3 lie behind a pointer, where no filter looks.
ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")

# The flags of clone(2) that make namespaces. Time namespaces are for clone3 and unshare alone.
NEW_NAMESPACES = {
    "CLONE_NEWNS": 0x0002_0000,
    "CLONE_NEWCGROUP": 0x0200_0000,
    "CLONE_NEWUTS": 0x0400_0000,
    "CLONE_NEWIPC": 0x0800_0000,
    "CLONE_NEWUSER": 0x1000_0000,
    "CLONE_NEWPID": 0x2000_0000,
    "CLONE_NEWNET": 0x4000_0000,
}
# Requests of ioctl(2) that type on a terminal as if its user did.
TYPING = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
# Sockets: Unix, IPv4, IPv6 and netlink, which programs ask for their addresses.
FAMILIES = (1, 2, 10, 16)

# Numbers of system calls from this one on are the same on every architecture here, so that a
# library which does not know a name yet can be told the number.
NUMBERS = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}
_LOW_HALF = 0xFFFF_FFFF  # the kernel ignores the rest of arguments of 32 bits
_UNKNOWN = -1  # the library's number for a name that it does not know

_lock = threading.Lock()
_filter: int | None = None  # the descriptor of the file in memory


class FilterUnavailable(Exception):
    """There can be no filter here; the message is one sentence with the remedy."""


def problem() -> str:
    """Why there can be no filter here, with the remedy; empty if there is one."""
    try:
        _written()
    except FilterUnavailable as error:
        return str(error)
    return ""


def open_filter() -> int:
    """A new descriptor at the filter's start, for one sandbox; the caller closes it.

    Raises `FilterUnavailable`.
    """
    return os.open(f"/proc/self/fd/{_written()}", os.O_RDONLY | os.O_CLOEXEC)


def _written() -> int:
    global _filter
    with _lock:
        if _filter is None:
            _filter = _write()
        return _filter


def _write() -> int:
    """The filter in a file in memory that nobody can change."""
    found = build(_library())
    descriptor = os.memfd_create("sandbox-filter", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            found.export_bpf(file)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        os.close(descriptor)
        raise FilterUnavailable(f"The filter of system calls cannot be written: {error}.") from None
    return descriptor


def _library() -> Any:
    try:
        import pyseccomp
    except ModuleNotFoundError:
        raise FilterUnavailable(NO_BINDINGS) from None
    # It loads the library when it is imported, and looks up what a very old one has not.
    except (RuntimeError, OSError, AttributeError):
        raise FilterUnavailable(NO_LIBRARY) from None
    return pyseccomp


@dataclass(frozen=True)
class Rule:
    """A system call that fails with `error`: always, or if its argument at `index` compares so."""

    call: str
    error: int
    index: int = 0
    comparison: str = ""
    values: tuple[int, ...] = ()


def rules() -> Iterator[Rule]:
    for name in REFUSED:
        yield Rule(name, errno.EPERM)
    for name in ABSENT:
        yield Rule(name, errno.ENOSYS)
    for flag in NEW_NAMESPACES.values():
        # One rule for each: a rule holds only if all of its mask's bits are as it says.
        yield Rule("clone", errno.EPERM, 0, "MASKED_EQ", (flag, flag))
    for request in TYPING.values():
        yield Rule("ioctl", errno.EPERM, 1, "MASKED_EQ", (_LOW_HALF, request))
    highest = max(FAMILIES)
    # Also whatever differs only in the half that the kernel ignores.
    yield Rule("socket", errno.EAFNOSUPPORT, 0, "GT", (highest,))
    for family in range(highest):
        if family not in FAMILIES:
            yield Rule("socket", errno.EAFNOSUPPORT, 0, "EQ", (family,))


def profile() -> str:
    """The rules as Docker and Podman read them. Calls that an architecture lacks are no matter."""
    found = []
    for rule in rules():
        entry = {"names": [rule.call], "action": "SCMP_ACT_ERRNO", "errnoRet": rule.error}
        if rule.comparison:
            numbers = dict(zip(("value", "valueTwo"), rule.values, strict=False))
            comparison = {"index": rule.index, "op": f"SCMP_CMP_{rule.comparison}"}
            entry["args"] = [comparison | numbers]
        found.append(entry)
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": found})


def build(library: Any) -> Any:
    """The rules, as libseccomp holds them. Raises `FilterUnavailable`."""
    arch = library.Arch
    # Elsewhere clone may take its flags in another place (s390x) or more numbers are in use (MIPS).
    if library.system_arch() not in (arch.X86_64, arch.AARCH64, arch.RISCV64):
        raise FilterUnavailable(OTHER_MACHINE.format(machine=platform.machine()))
    found = library.SyscallFilter(library.ALLOW)
    found.set_attr(library.Attr.ACT_BADARCH, library.KILL_PROCESS)
    for rule in rules():
        arguments = []
        if rule.comparison:
            comparison = getattr(library, rule.comparison)
            arguments = [library.Arg(rule.index, comparison, *rule.values)]
        _add(library, found, library.ERRNO(rule.error), rule.call, *arguments)
    return found


def _add(library: Any, rules: Any, action: int, name: str, *arguments: Any) -> None:
    number = library.resolve_syscall(library.Arch.NATIVE, name)
    if number == _UNKNOWN:
        number = NUMBERS.get(name, _UNKNOWN)
    if number == _UNKNOWN:
        raise FilterUnavailable(TOO_OLD.format(name=name))
    # A call that this architecture does not have is another negative number, and no rule.
    if number >= 0:
        rules.add_rule(action, number, *arguments)
