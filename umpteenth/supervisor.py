"""The one parent of web, worker and beat under `umpteenth up`.

It imports the standard library alone, because it lives as long as the site does. It starts each
child in a session of its own, starts a child again that dies, and ends all of them when it is
told to: SIGTERM to each, after `STOP_TIMEOUT` SIGKILL to their process groups, at once on a
second signal. Should it be killed itself, the kernel ends the children (`core.process`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

# Under the promised five seconds; uvicorn takes two for open streams, a worker four for runs.
STOP_TIMEOUT = 4.3  # seconds
FIRST_DELAY = 1.0  # seconds until a child that died starts again; doubled each time
LAST_DELAY = 30.0
# A child that lived this long has started well: its next death counts as the first.
HEALTHY_AFTER = 60.0  # seconds

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def umpteenth_command(*arguments: str) -> list[str]:
    """A command line of Umpteenth in this interpreter; -P keeps the working directory's out."""
    return [sys.executable, "-P", "-m", "umpteenth", *arguments]


@dataclass
class Child:
    """A process to keep alive. Times are of the monotonic clock."""

    name: str
    argv: Sequence[str]
    pass_fds: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    deaths: int = 0
    due: float | None = 0.0  # when to start it; None while it runs

    def start(self, now: float) -> None:
        try:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                pass_fds=self.pass_fds,
                start_new_session=True,
            )
        except OSError as error:  # too many processes or too little memory, for the moment
            self._try_again(f"cannot start ({error.strerror or error})", now)
        else:
            self.started_at, self.due = now, None

    def notice_death(self, now: float) -> bool:
        """Whether it has ended; then `due` says when it starts again."""
        if self.process is None or self.process.poll() is None:
            return False
        if now - self.started_at >= HEALTHY_AFTER:
            self.deaths = 0
        self.kill_group()  # what it may have left behind
        self._try_again(f"ended ({_ending(self.process.returncode)})", now)
        return True

    def _try_again(self, why: str, now: float) -> None:
        """Set when it starts next, ever later."""
        # Bounded first: after a night of failures the power would be too large for a float.
        delay = min(FIRST_DELAY * 2 ** min(self.deaths, 16), LAST_DELAY)
        _say(f"{self.name} {why}; it starts again in {delay:g} s.")
        self.deaths += 1
        self.process, self.due = None, now + delay

    def kill_group(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass
class Supervisor:
    children: list[Child]
    signals: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Keep the children alive until a stop signal, then end them."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, _frame: self.signals.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while not self.signals:
                self._wait(reader, self._tend(time.monotonic()))
        finally:
            self._stop(reader)

    def _tend(self, now: float) -> float | None:
        """Start what is due. Returns the seconds until something is, None: nothing is."""
        for child in self.children:
            child.notice_death(now)
            if child.due is not None and child.due <= now:
                child.start(now)
        due = [child.due for child in self.children if child.due is not None]
        return max(min(due) - now, 0.0) if due else None

    def _stop(self, reader: int) -> None:
        told = len(self.signals)
        alive = [child.process for child in self.children if child.process is not None]
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT
        while any(process.poll() is None for process in alive):
            rest = deadline - time.monotonic()
            if rest <= 0 or len(self.signals) > told:
                break
            self._wait(reader, rest)
        for child in self.children:
            child.kill_group()
        for process in alive:
            process.wait()

    @staticmethod
    def _wait(reader: int, timeout: float | None) -> None:
        """Until a signal arrives (the pipe holds its number) or the time is over."""
        if select.select([reader], [], [], timeout)[0]:
            os.read(reader, 4096)


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {-status}"


def _say(text: str) -> None:
    print(f"umpteenth: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Take over from `umpteenth up`: its lock on the data directory and its open socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--listen-fd", type=int, required=True)
    arguments = parser.parse_args()
    # The lock is this process's alone: it must not outlive it in a child.
    os.set_inheritable(arguments.lock_fd, False)
    parent, listen = f"--parent={os.getpid()}", arguments.listen_fd
    Supervisor(
        [
            Child("web", umpteenth_command("web", parent, f"--fd={listen}"), pass_fds=(listen,)),
            Child("worker", umpteenth_command("worker", parent)),
            Child("beat", umpteenth_command("beat", parent)),
        ]
    ).run()


if __name__ == "__main__":
    main()
