"""The worker's side of the launcher: one launcher a process, started when first needed.

Safe to use from several threads, each with its own event loop. A launcher that died is
replaced at the next start; what ran under it is reported as killed, which it is.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.sandbox.launcher import receive

logger = logging.getLogger(__name__)

# exit code, and why it could not be started ("" otherwise); called once, in the reader's thread.
OnExit = Callable[[int, str], None]
# The listener inside the sandbox; called at most once, in the reader's thread, before `OnExit`.
OnListener = Callable[[socket.socket], None]
ResourceLimits = Sequence[tuple[int, int, int]]

LAUNCHER = Path(__file__).with_name("launcher.py")
START_TIMEOUT = 20.0  # seconds for the launcher to come up
KILLED = 128 + 9
_MAX_COMMAND = 120 * 1024  # bytes of one start message; the kernel's own limit is near it
_MAX_ANSWER = 64 * 1024


class LauncherUnusable(Exception):
    """No launcher can be started here; the message is the system's own reason."""


@dataclass
class _Connection:
    """A running launcher and what was started through it."""

    sock: socket.socket
    process: subprocess.Popen[bytes]
    privileged: bool
    waiting: dict[str, OnExit]
    listeners: dict[str, OnListener]
    faults: dict[str, str]  # why there is no listener


class LauncherClient:
    """Starts sandboxes through a launcher. `shared()` is the one of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._numbers = itertools.count(1)

    @property
    def running(self) -> bool:
        return self._connection is not None

    def ensure(self) -> bool:
        """Start the launcher unless it runs; blocks. True if it may use other user ids.

        Raises `LauncherUnusable`.
        """
        with self._lock:
            return self._ensure_locked().privileged

    def start(
        self,
        argv: Sequence[str],
        descriptors: Sequence[int],
        on_exit: OnExit,
        limits: ResourceLimits = (),
        *,
        groups: Sequence[str] = (),
        listen: tuple[int, OnListener] | None = None,
    ) -> str:
        """Start a command; its id. The descriptors may be closed afterwards.

        The first three become standard input, output and error, the others 3, 4, …
        `groups` are the files that let the command into its control groups.
        `listen`: a port inside of the bwrap that argv is, and who gets its listener; argv has
        the next two numbers for --info-fd and --block-fd.
        Raises `LauncherUnusable`, and `ValueError` for a command line that is too long.
        """
        name = str(next(self._numbers))
        wish: dict[str, object] = {"op": "start", "id": name, "argv": list(argv)}
        wish |= {"limits": list(limits), "groups": list(groups)}
        if listen is not None:
            wish["listen"] = listen[0]
        message = json.dumps(wish).encode()
        if len(message) > _MAX_COMMAND:
            raise ValueError("The command line is longer than 120 KiB.")
        with self._lock:
            connection = self._ensure_locked()
            connection.waiting[name] = on_exit
            if listen is not None:
                connection.listeners[name] = listen[1]
            try:
                socket.send_fds(connection.sock, [message], list(descriptors))
            except OSError as error:
                connection.waiting.pop(name, None)
                connection.listeners.pop(name, None)
                raise LauncherUnusable(f"the launcher ended: {error}") from None
        return name

    def kill(self, name: str) -> None:
        """End everything in a sandbox; nothing happens if it has ended."""
        with self._lock:
            connection = self._connection
            if connection is None or name not in connection.waiting:
                return
            # A launcher that is gone has taken the sandbox with it.
            with contextlib.suppress(OSError):
                connection.sock.send(json.dumps({"op": "kill", "id": name}).encode())

    def close(self) -> None:
        """End the launcher and every sandbox; returns when they are gone."""
        with self._lock:
            connection = self._connection
            self._connection = None
        if connection is None:
            return
        # Shut down, not closed: the reader's thread is still in it and closes it at the end.
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
        try:
            connection.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            connection.process.kill()
            connection.process.wait()

    def forget(self) -> None:
        """In a forked child: the launcher belongs to the parent."""
        self._lock = threading.Lock()
        connection, self._connection = self._connection, None
        if connection is not None:
            # Our copy of the socket would keep the launcher alive after the parent's death.
            os.close(connection.sock.detach())
            connection.process.returncode = 0

    def _ensure_locked(self) -> _Connection:
        if self._connection is None:
            connection = _connect()
            reader = threading.Thread(
                target=self._read, args=(connection,), name="sandbox-launcher", daemon=True
            )
            try:
                reader.start()
            except RuntimeError as error:  # nobody would hear of an exit
                connection.sock.close()
                connection.process.wait()
                raise LauncherUnusable(str(error)) from None
            self._connection = connection
        return self._connection

    def _read(self, connection: _Connection) -> None:
        """Hand on exits until the launcher ends, then report the rest as killed."""
        while True:
            try:
                data, descriptors, _ = receive(connection.sock, _MAX_ANSWER, 1)
            except OSError:
                break
            if not data:
                break
            try:
                _hand_on(connection, json.loads(data), descriptors)
            except Exception:  # the exits of all others come through here
                logger.exception("a message of the sandbox launcher came to nothing")
        with self._lock:
            if self._connection is connection:
                self._connection = None
            left = list(connection.waiting.values())
            connection.waiting.clear()
        connection.sock.close()
        connection.process.wait()
        for on_exit in left:
            try:
                on_exit(KILLED, "the sandbox launcher ended")
            except Exception:
                logger.exception("the end of a sandbox came to nothing")


def _hand_on(connection: _Connection, message: dict[str, Any], descriptors: list[int]) -> None:
    name = message.get("id", "")
    if message.get("event") == "listener":
        _hand_over(connection, name, descriptors, message.get("error", ""))
    elif message.get("event") == "exit":
        connection.listeners.pop(name, None)
        fault = connection.faults.pop(name, "") or message["error"]
        on_exit = connection.waiting.pop(name, None)
        if on_exit is not None:
            on_exit(message["code"], fault)


def _hand_over(connection: _Connection, name: str, descriptors: list[int], error: str) -> None:
    on_listener = connection.listeners.pop(name, None)
    for descriptor in descriptors:
        sock = socket.socket(fileno=descriptor)
        if on_listener is None:
            sock.close()  # its sandbox has ended
        else:
            on_listener(sock)
    if error and name in connection.waiting:
        connection.faults[name] = f"no listener for its proxy could be made ({error})"


def _connect() -> _Connection:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        process = subprocess.Popen(
            [sys.executable, "-ISE", str(LAUNCHER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            # A Ctrl-C on the worker's terminal is the worker's business.
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise LauncherUnusable(str(error)) from None
    finally:
        theirs.close()
    ours.settimeout(START_TIMEOUT)
    try:
        greeting = json.loads(ours.recv(_MAX_ANSWER) or b"{}")
    except (OSError, ValueError) as error:
        greeting = {"error": f"the sandbox launcher did not start: {error}"}
    if greeting.get("event") != "ready":
        ours.close()
        process.kill()
        process.wait()
        raise LauncherUnusable(greeting.get("error", "the sandbox launcher ended at once"))
    ours.settimeout(None)
    return _Connection(ours, process, bool(greeting["privileged"]), {}, {}, {})


_shared = LauncherClient()
os.register_at_fork(after_in_child=_shared.forget)
atexit.register(_shared.close)


def shared() -> LauncherClient:
    """The launcher of this process."""
    return _shared
