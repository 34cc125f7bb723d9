"""The launcher: PID 1 of a process namespace of its own, from which all sandboxes start.

One per worker process, started as `python3 -ISE launcher.py FD`. It talks over the Unix socket
FD (SOCK_SEQPACKET, one JSON object a message) and ends when the other side closes it, which is
also what happens when the worker dies by kill -9 at whatever moment. The kernel then kills
everything in the namespace, however deep; bwrap's `--die-with-parent` alone leaves survivors.

    → {"op": "start", "id": "…", "argv": […], "limits": [[resource, soft, hard], …],
       "groups": ["…/cgroup.procs", …]}
      with descriptors: standard input, output, error, then those that become 3, 4, …
      With "listen": PORT the command is a bwrap that takes the next two descriptors as its
      --info-fd and --block-fd, and starts nothing before there is a listener on 127.0.0.1:PORT
      in its network namespace.
    → {"op": "kill", "id": "…"}
    ← {"event": "ready", "privileged": true} or {"event": "unusable", "error": "…"}, once
    ← {"event": "listener", "id": "…"} with the listener, or with "error" and without it
    ← {"event": "exit", "id": "…", "code": 0, "error": ""}

An exit is reported when no process of that sandbox is left. The code is the command's own, or
128 plus the number of the signal that ended it. Standard library only, single-threaded.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
MS_REC_SLAVE = 16384 | (1 << 19)
PR_SET_PDEATHSIG = 1
IP_FREEBIND = 15  # Python has no name for it

MAX_MESSAGE = 256 * 1024
MAX_INFO = 64 * 1024
BACKLOG = 256
MAX_DESCRIPTORS = 16
# User ids that root of a container without CAP_SYS_ADMIN keeps inside its user namespace.
MAX_MAPPED = 65536

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "making namespaces")


def show_own_processes() -> None:
    """Mount a /proc of the new namespace, for bwrap looks up its child in it by number."""
    unshare(CLONE_NEWNS)
    _checked(_libc.mount(b"none", b"/", None, MS_REC_SLAVE, None), "changing mounts")
    proc = _libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID_NODEV_NOEXEC, None)
    _checked(proc, "mounting /proc")


def enter_namespaces() -> bool:
    """Make the next child PID 1 of a new namespace; True if other user ids can be used there."""
    user, group = os.geteuid(), os.getegid()
    if user != 0:
        unshare(CLONE_NEWUSER | CLONE_NEWPID)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        return False
    try:
        unshare(CLONE_NEWPID)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        _enter_with_mapped_users()
    return True


def _enter_with_mapped_users() -> None:
    """Root of a container may not unshare as it is, but with a user namespace of its own it may.

    All ids are mapped to themselves, so that dropping to another user works in there. Only a
    process outside may write such a map.
    """
    count = min(MAX_MAPPED, _mapped_ids("/proc/self/uid_map"), _mapped_ids("/proc/self/gid_map"))
    parent = os.getpid()
    entered_r, entered_w = os.pipe()
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.close(entered_w)
            if os.read(entered_r, 1):
                _write(f"/proc/{parent}/uid_map", f"0 0 {count}")
                _write(f"/proc/{parent}/gid_map", f"0 0 {count}")
                status = 0
        finally:
            os._exit(status)
    os.close(entered_r)
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWPID)
        os.write(entered_w, b"1")
    finally:
        os.close(entered_w)
        _, status = os.waitpid(helper, 0)
    if status != 0:
        raise OSError(errno.EPERM, "the user ids of the sandboxes cannot be mapped")


def _mapped_ids(path: str) -> int:
    """How many ids from 0 on exist in this user namespace."""
    with open(path) as lines:
        for line in lines:
            inside, _, count = line.split()
            if inside == "0":
                return int(count)
    return 1


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def receive(sock: socket.socket, size: int, count: int) -> tuple[bytes, list[int], int]:
    """One message with its descriptors and flags. `socket.recv_fds` forgets to ask for
    descriptors that no program inherits (it drops its argument `flags`)."""
    found = array.array("i")
    room = socket.CMSG_SPACE(count * found.itemsize)
    data, ancillary, flags, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, list(found), flags


class Bounds:
    """What holds one sandbox: resource limits, and the files that let a process into groups."""

    def __init__(self, limits: list[tuple[int, int, int]], groups: list[str]) -> None:
        self.limits = limits
        self.groups = groups

    def enter(self) -> None:
        """Put this process, and so whatever comes from it, into its groups."""
        for path in self.groups:
            _write(path, "0")

    def set(self) -> None:
        for which, soft, hard in self.limits:
            resource.setrlimit(which, (soft, hard))


class Launcher:
    """Starts, watches and ends sandboxes. `started` and `ending` are keyed by process id."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.started: dict[int, str] = {}
        self.ending: dict[int, tuple[str, int]] = {}
        wake_r, wake_w = socket.socketpair()
        wake_r.setblocking(False)
        wake_w.setblocking(False)
        self.wake = wake_r
        self._wake_w = wake_w
        signal.set_wakeup_fd(wake_w.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        """Serve until the other side closes."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while True:
            # The wait is bounded only while something must end: a lost signal then costs 0.1 s.
            ready = {fd for fd, _ in poll.poll(100 if self.ending else None)}
            if self.wake.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self.wake.recv(4096)
            self.reap()
            if self.sock.fileno() in ready and not self.receive():
                return

    def receive(self) -> bool:
        """Take one message; False at the end."""
        try:
            data, descriptors, flags = receive(self.sock, MAX_MESSAGE, MAX_DESCRIPTORS)
        except OSError:
            return False
        try:
            if not data:
                return False
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self.answer({"event": "refused", "error": "the message is too long"})
                return True
            self.handle(data, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def handle(self, data: bytes, descriptors: list[int]) -> None:
        name = ""
        try:
            message = json.loads(data)
            name = str(message["id"])
            if message["op"] == "start":
                self.start(name, message, descriptors)
            elif message["op"] == "kill":
                self.kill(name)
            else:
                raise ValueError("unknown operation")
        except (ValueError, KeyError, TypeError, OSError) as error:
            self.exited(name, 126, f"{type(error).__name__}: {error}")

    def start(self, name: str, message: dict[str, object], descriptors: list[int]) -> None:
        argv, limits, port = message["argv"], message.get("limits", []), message.get("listen")
        groups = message.get("groups", [])
        if not isinstance(argv, list) or not argv or len(descriptors) < 3:
            raise ValueError("a start needs a command and three descriptors")
        if not isinstance(limits, list) or not isinstance(groups, list):
            raise TypeError("limits and groups must be lists")
        numbers = [(int(which), int(soft), int(hard)) for which, soft, hard in limits]
        bounds = Bounds(numbers, [str(path) for path in groups])
        command = [os.fsencode(str(part)) for part in argv]
        if port is None:
            self.started[self.fork(command, descriptors, bounds)] = name
            return
        if not isinstance(port, int):
            raise TypeError("the port must be a number")
        with contextlib.ExitStack() as stack:
            info_r, info_w, block_r, block_w = *os.pipe(), *os.pipe()
            for descriptor in (info_r, info_w, block_r, block_w):
                stack.callback(os.close, descriptor)
            pid = self.fork(command, [*descriptors, info_w, block_r], bounds)
            self.started[pid] = name
            try:
                helper = os.fork()
            except OSError:
                _kill(pid)
                raise
            if helper == 0:
                # Its end must be seen here: bwrap holds the only other one.
                os.close(info_w)
                self.listen(name, pid, port, info_r, block_w)

    def fork(self, command: list[bytes], descriptors: list[int], bounds: Bounds) -> int:
        pid = os.fork()
        if pid == 0:
            self.become(command, descriptors, bounds)
        return pid

    def listen(self, name: str, bwrap: int, port: int, info: int, block: int) -> None:
        """In a child: make the listener, hand it over, let the command begin. Never returns.

        Without a listener there is no command: its sandbox is ended.
        """
        answer = {"event": "listener", "id": name}
        try:
            found = read_info(info)
            if found is None:
                os._exit(0)  # bwrap has ended before it came so far, or was killed
            with listener_in(found, port) as sock:
                socket.send_fds(self.sock, [json.dumps(answer).encode()], [sock.fileno()])
            os.write(block, b"1")
        except BaseException as error:
            # In this order: the reason must be known when the end is reported.
            with contextlib.suppress(OSError):
                self.answer({**answer, "error": f"{type(error).__name__}: {error}"})
            _kill(bwrap)
        finally:
            os._exit(0)

    def become(self, command: list[bytes], descriptors: list[int], bounds: Bounds) -> None:
        """In the child: turn into the command, or say why not and end. Never returns."""
        try:
            bounds.enter()
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            # Numbers above all targets first, so that no target is overwritten before its use.
            moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in descriptors]
            for target, fd in enumerate(moved):
                os.dup2(fd, target, inheritable=True)
            bounds.set()
            os.execve(command[0], command, {b"PATH": b"/usr/bin:/bin"})
        except BaseException as error:
            os.write(2, f"sandbox: {command[0].decode(errors='replace')}: {error}\n".encode())
        finally:
            os._exit(127)

    def kill(self, name: str) -> None:
        """End a whole sandbox; nothing happens if it has ended.

        bwrap and the PID 1 that it makes are in one process group, also in the moment in which
        that PID 1 would not yet notice bwrap's death; nothing inside can leave PID 1's namespace.
        """
        for pid, held in self.started.items():
            if held == name:
                _kill(pid)

    def reap(self) -> None:
        """Collect what ended, and report each sandbox of which nothing is left."""
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if info is None:
                break
            # Before it is collected, so that its group's number cannot belong to another.
            if info.si_pid in self.started:
                _kill(info.si_pid)
            _, status = os.waitpid(info.si_pid, 0)
            name = self.started.pop(info.si_pid, None)
            if name is not None:
                code = os.waitstatus_to_exitcode(status)
                self.ending[info.si_pid] = (name, code if code >= 0 else 128 - code)
        for pid, (name, code) in list(self.ending.items()):
            if _group_is_gone(pid):
                del self.ending[pid]
                self.exited(name, code, "")

    def exited(self, name: str, code: int, error: str) -> None:
        self.answer({"event": "exit", "id": name, "code": code, "error": error})

    def answer(self, message: dict[str, object]) -> None:
        self.sock.send(json.dumps(message).encode())


def read_info(descriptor: int) -> dict[str, int] | None:
    """What bwrap says about its child; it comes in pieces. None if it ends before."""
    data = b""
    while not data.rstrip().endswith(b"}"):
        piece = os.read(descriptor, 4096)
        if not piece or len(data) > MAX_INFO:
            return None
        data += piece
    found: dict[str, int] = json.loads(data)
    return found


def listener_in(info: dict[str, int], port: int) -> socket.socket:
    """A listener inside the network namespace of a sandbox, in which this process then is.

    A plain user's launcher is root of the user namespace around the sandbox's own, so it may
    enter as well. Never returns a socket of the namespace that the launcher is in.
    """
    path = f"/proc/{info['child-pid']}/ns/net"
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        inode = os.fstat(descriptor).st_ino
        if inode == os.stat("/proc/self/ns/net").st_ino:
            raise OSError(errno.EINVAL, "the sandbox has no network of its own")
        if inode != info.get("net-namespace", inode):
            raise OSError(errno.ESRCH, "the sandbox has ended")
        _checked(_libc.setns(descriptor, CLONE_NEWNET), "entering a network namespace")
    finally:
        os.close(descriptor)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # bwrap gives the loopback its address a moment after it has told of its child.
        sock.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _kill(pid: int) -> None:
    # The process by itself too: just forked, it leads no group yet.
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def _group_is_gone(group: int) -> bool:
    """Whether no child of this group is left; orphans of it have become our children."""
    try:
        while True:
            pid, _ = os.waitpid(-group, os.WNOHANG)
            if pid == 0:
                return False
    except ChildProcessError:
        return True


def serve(sock: socket.socket, privileged: bool) -> None:
    try:
        show_own_processes()
    except OSError as error:
        _say_unusable(sock, error)
        return
    try:
        launcher = Launcher(sock)
        launcher.answer({"event": "ready", "privileged": privileged})
        launcher.run()
    except OSError:
        pass  # the worker is gone; so are we, and with us everything in the namespace


def _say_unusable(sock: socket.socket, error: OSError) -> None:
    text = error.strerror or str(error)
    sock.send(json.dumps({"event": "unusable", "error": text}).encode())


def main(arguments: list[str]) -> int:
    sock = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(sock.fileno(), False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        privileged = enter_namespaces()
        child = os.fork()
    except OSError as error:
        _say_unusable(sock, error)
        return 1
    if child == 0:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        serve(sock, privileged)
        os._exit(0)
    sock.close()
    _, status = os.waitpid(child, 0)
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
