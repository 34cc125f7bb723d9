"""A job's script that tries to reach what is not its own. Standard library only.

Its input says where things are on the machine; it prints what each attempt came to: the reason why
not, or `got through` with what was got.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

with open("/ump/input.json") as _file:
    GIVEN: dict[str, Any] = json.load(_file)
PROXY = "http://127.0.0.1:3128"
# Where a script may write, and what the kernel shows of its own processes.
OWN = {"/workspace", "/ump/outputs", os.environ["HOME"], "/tmp", "/var/tmp", "/dev/shm"}
OWN |= {"/ump/logs", "/dev/pts", "/proc"}


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(200)


def write(path: str) -> str:
    with open(path, "ab") as file:
        file.write(b"x")
    return path


@cache
def whole_tree() -> list[tuple[str, int]]:
    """All that is not a script's own, with its kind and mode."""
    found = []
    for folder, names, files in os.walk("/"):
        names[:] = [name for name in names if os.path.join(folder, name) not in OWN]
        for name in (".", *files):
            path = os.path.normpath(os.path.join(folder, name))
            with suppress(OSError):
                found.append((path, os.lstat(path).st_mode))
    return found


def writable_places() -> list[str]:
    """Directories and files that take a write: not what the modes say, what the kernel says."""
    return [
        path
        for path, kind in whole_tree()
        if (stat.S_ISDIR(kind) or stat.S_ISREG(kind)) and os.access(path, os.W_OK)
    ]


def special_files() -> list[str]:
    """Sockets and devices beside the few that every program needs."""
    usual = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    found = []
    for path, kind in whole_tree():
        if stat.S_ISSOCK(kind) and path != "/ump/broker.sock":
            found.append(path)
        if stat.S_ISBLK(kind) or (stat.S_ISCHR(kind) and Path(path).name not in usual):
            found.append(path)
    return [path for path in found if not path.startswith("/dev/pts")]


def of_others(name: str, wanted: str) -> bool:
    """Whether what /proc shows of any process holds this."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            with suppress(OSError):
                if wanted.encode() in (process / name).read_bytes():
                    return True
    return False


def through_roots() -> list[str]:
    """Another's files through /proc/PID/root and /proc/PID/cwd."""
    found = []
    for process in Path("/proc").iterdir():
        for place in ("root/workspace/private", "cwd/private"):
            with suppress(OSError):
                if process.name.isdigit():
                    found.append((process / place).read_text())
    return found


def connect(host: str, port: int) -> str:
    with socket.create_connection((host, port), timeout=5) as found:
        return str(found.getpeername())


def connect_unix(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as found:
        found.connect(path)
        return path


def curl(url: str) -> str:
    """Through the proxy; what it says is the reason."""
    command = ["curl", "-sS", "-m", "10", "--noproxy", "", "--proxy", PROXY, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wanted = GIVEN["page"]
    if wanted in done.stdout:
        return done.stdout
    raise PermissionError((done.stdout + done.stderr).strip())


def ask_broker(token: str) -> str:
    with socket.socket(socket.AF_UNIX) as broker:
        broker.connect("/ump/broker.sock")
        words = {"token": token, "command": "summary", "args": {"text": "not mine"}}
        broker.sendall(json.dumps(words).encode() + b"\n")
        answer = json.loads(broker.makefile().readline())
    if not answer["ok"]:
        raise PermissionError(answer["error"])
    return str(answer)


def as_another(*command: str) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=20
    )
    if done.returncode:
        raise PermissionError(done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout


def plant() -> str:
    """In outputs: links to files and directories, a pipe, a name that leads out."""
    for name, target in (("shadow", "/etc/shadow"), ("etc", "/etc"), ("key", GIVEN["key"])):
        os.symlink(target, f"/ump/outputs/{name}")
    os.mkfifo("/ump/outputs/pipe")
    with open("/ump/outputs/..name", "w") as file:
        file.write("an honest file")
    return ""


def set_hostname() -> str:
    socket.sethostname("mine")
    return "set"


def run_first() -> str:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return "got"


def make_device() -> str:
    os.mknod("/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
    return "made"


def signal(pid: int) -> str:
    os.kill(pid, 0)
    return "sent"


def attempts() -> dict[str, Callable[[], object]]:
    data, pid, port = GIVEN["data_dir"], GIVEN["pid"], GIVEN["port"]
    return {
        "the data directory": lambda: os.listdir(data),
        "the database": lambda: read(f"{data}/umpteenth.sqlite3"),
        "the key": lambda: read(GIVEN["key"]),
        "another run's files": lambda: read(GIVEN["private"]),
        "another run's files through /proc": through_roots,
        "/etc/shadow": lambda: read("/etc/shadow"),
        "root's home": lambda: os.getuid() and os.listdir("/root"),
        "another party's environment": lambda: of_others("environ", GIVEN["server_key"]),
        "another party's arguments": lambda: of_others("cmdline", GIVEN["server_argument"]),
        "another run's environment": lambda: of_others("environ", GIVEN["token"]),
        "a signal to another run": lambda: signal(pid),
        "memory of another run": lambda: read(f"/proc/{pid}/mem"),
        "a place to write to": writable_places,
        "a socket or a device": special_files,
        "a setting of the kernel": lambda: write("/proc/sys/kernel/core_pattern"),
        "sysrq": lambda: write("/proc/sysrq-trigger"),
        "the kernel's log": lambda: read("/proc/kmsg"),
        "the machine's memory": lambda: read("/proc/kcore"),
        "the keys of others": lambda: read("/proc/keys"),
        "how many keys others have": lambda: read("/proc/key-users"),
        "the kernel's addresses": lambda: read("/proc/kallsyms"),
        "the host's name": set_hostname,
        "a device": make_device,
        "real time": run_first,
        "another user by su": lambda: as_another("su", "-c", "id"),
        "a mount": lambda: as_another("mount", "-t", "tmpfs", "none", "/tmp"),
        "a user namespace": lambda: as_another("unshare", "-Ur", "id"),
        "a service on loopback": lambda: connect("127.0.0.1", port),
        "a service on loopback, IPv6": lambda: connect("::1", port),
        "the machine by its address": lambda: connect(GIVEN["address"], port),
        "an abstract socket": lambda: connect_unix(f"\0{GIVEN['abstract']}"),
        "another run's broker": lambda: connect_unix(GIVEN["socket"]),
        "another run's token": lambda: ask_broker(GIVEN["token"]),
        "loopback through the proxy": lambda: curl(f"http://127.0.0.1:{port}/"),
        "localhost through the proxy": lambda: curl(f"http://localhost:{port}/"),
        "an odd loopback through the proxy": lambda: curl(f"http://0x7f000001:{port}/"),
        "loopback in IPv6 through the proxy": lambda: curl(f"http://[::ffff:127.0.0.1]:{port}/"),
        "the machine through the proxy": lambda: curl(f"http://{GIVEN['address']}:{port}/"),
        "a private address through the proxy": lambda: curl("http://10.0.0.1/"),
        "cloud metadata through the proxy": lambda: curl("http://169.254.169.254/latest/"),
        "an address of the internet through the proxy": lambda: curl("http://203.0.113.1/"),
        "links in outputs": plant,
    }


def outcome(act: Callable[[], object]) -> str:
    try:
        got = act()
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return f"got through: {got}" if got else "nothing there"


if __name__ == "__main__":
    wanted = GIVEN.get("attempts", "")
    print(json.dumps({n: outcome(act) for n, act in attempts().items() if wanted in n}))
