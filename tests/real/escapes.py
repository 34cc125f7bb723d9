"""Tries, from inside a sandbox, what the filter of system calls must refuse.

    python3 escapes.py '{"keyctl": 250, …}'

The numbers are those of this machine's system calls. Prints what each attempt came to: a name of
an errno, `done` where it went through, or the signal that ended it. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import pty
import signal
import sys
import tempfile
import termios
import time
from collections.abc import Callable

NUMBERS: dict[str, int] = json.loads(sys.argv[1])
NEW_NAMESPACES: dict[str, int] = json.loads(sys.argv[2])
HIGH = 1 << 32  # the kernel ignores it in arguments of 32 bits

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str | int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """A raw system call; raises OSError."""
    number = NUMBERS[name] if isinstance(name, str) else name
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    libc.syscall.restype = ctypes.c_long
    result: int = libc.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def with_child(act: Callable[[int], object]) -> None:
    """Do something to a child that waits."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        act(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def forks(name: str, *arguments: int | bytes) -> None:
    """A call that makes a process if it goes through."""
    pid = call(name, *arguments)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def read_child(pid: int) -> None:
    place = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(place), 8)
    at = ctypes.addressof(vector)
    call("process_vm_readv", pid, at, 1, at, 1, 0)


def type_on_own_terminal(request: int) -> None:
    _, terminal = pty.openpty()
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    call("ioctl", terminal, request, b"x")


def take_descriptor(pid: int) -> None:
    call("pidfd_getfd", os.pidfd_open(pid), 0, 0)


def by_interrupt() -> None:
    """getpid as a program of 32 bits asks for it: mov eax, 20; int 0x80; ret."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


def attempts() -> dict[str, Callable[[], object]]:
    zeros = bytes(256)
    user = NEW_NAMESPACES["CLONE_NEWUSER"]
    clone_args = b"".join(n.to_bytes(8, "little") for n in (0, 0, 0, 0, signal.SIGCHLD, *[0] * 6))
    found: dict[str, Callable[[], object]] = {
        "keyctl": lambda: call("keyctl", 0, -3, 1),
        "add_key": lambda: call("add_key", b"user", b"name", b"secret", 6, -2),
        "request_key": lambda: call("request_key", b"user", b"name", None, 0),
        "ptrace of a child": lambda: with_child(lambda pid: call("ptrace", 0x4206, pid, 0, 0)),
        "process_vm_readv of a child": lambda: with_child(read_child),
        "pidfd_getfd of a child": lambda: with_child(take_descriptor),
        "kcmp with a child": lambda: with_child(lambda pid: call("kcmp", os.getpid(), pid, 1, 0)),
        "mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
        "umount": lambda: call("umount2", b"/tmp", 0),
        "fsopen": lambda: call("fsopen", b"tmpfs", 0),
        "open_tree": lambda: call("open_tree", -100, b"/tmp", 1),
        "pivot_root": lambda: call("pivot_root", b"/tmp", b"/tmp"),
        "chroot": lambda: call("chroot", b"/tmp"),
        "unshare of a user namespace": lambda: call("unshare", user),
        "unshare of all": lambda: call("unshare", user | 0x2000_0000 | 0x4000_0000 | 0x2_0000),
        "clone3": lambda: forks("clone3", clone_args, len(clone_args)),
        "clone3 of a user namespace": lambda: forks(
            "clone3", user.to_bytes(8, "little") + clone_args[8:], len(clone_args)
        ),
        "setns": lambda: call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0),
        "bpf": lambda: call("bpf", 0, b"\x02\0\0\0\x04\0\0\0\x04\0\0\0\x01\0\0\0" + zeros, 72),
        "perf_event_open": lambda: call(
            "perf_event_open", b"\1\0\0\0\x70\0\0\0" + bytes(32) + b"\x60" + zeros, 0, -1, -1, 0
        ),
        "userfaultfd": lambda: call("userfaultfd", 1),
        "io_uring": lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(256)),
        "fanotify_init": lambda: call("fanotify_init", 0x200, 0),
        "name_to_handle_at": lambda: call(
            "name_to_handle_at",
            *(-100, b"/tmp", ctypes.create_string_buffer(b"\x80", 256)),
            *(ctypes.create_string_buffer(8), 0),
        ),
        "TIOCSTI": lambda: type_on_own_terminal(0x5412),
        "TIOCSTI, disguised": lambda: type_on_own_terminal(HIGH | 0x5412),
        "TIOCLINUX": lambda: type_on_own_terminal(0x541C),
        "AF_PACKET": lambda: call("socket", 17, 3, 0),
        "AF_PACKET, disguised": lambda: call("socket", HIGH | 17, 3, 0),
        "AF_ALG": lambda: call("socket", 38, 5, 0),
        "AF_VSOCK": lambda: call("socket", 40, 1, 0),
        "AF_VSOCK, disguised": lambda: call("socket", HIGH | 40, 1, 0),
        "AF_KEY": lambda: call("socket", 15, 3, 2),
    }
    for name, flag in NEW_NAMESPACES.items():
        found[f"clone, {name}"] = lambda flag=flag: forks("clone", flag | signal.SIGCHLD, 0, 0)  # type: ignore[misc]
    if os.uname().machine == "x86_64":
        found["a call of 32 bits"] = by_interrupt
        found["a call of x32"] = lambda: call(0x4000_0000 | NUMBERS["getppid"])
    return found


def outcome(act: Callable[[], object]) -> str:
    """What the attempt came to, made in a process of its own."""
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            try:
                act()
                text = "done"
            except OSError as error:
                text = errno.errorcode.get(error.errno or 0, str(error))
            os.write(said.fileno(), text.encode())
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            return signal.Signals(-code).name
        said.seek(0)
        return said.read().decode()


if __name__ == "__main__":
    print(json.dumps({name: outcome(act) for name, act in attempts().items()}))
