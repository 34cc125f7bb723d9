"""What a sandbox is to its users: a specification, a process, a reason why not.

Adapters make it real: `bubblewrap`, and `engine` for Docker and Podman. Without the latter this
package needs the standard library only; options of the installation are read where the adapter
is made.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

from jobs.sandbox.egress.base import Egress
from umpteenth.core import deadlines

Party = Literal["agent", "mcp"]
# The users inside: a run's own processes, and stdio servers.
USER_IDS: Mapping[Party, int] = {"agent": 1000, "mcp": 1001}

# Longest line that a reader of a process's output takes (C15).
LINE_LIMIT = 32 * 1024 * 1024
KILL_TIMEOUT = 10.0  # seconds until every process of a killed sandbox must be gone
PROBLEM_KEPT = 30.0  # seconds until a problem is looked at again
_MAX_VALUE = 128 * 1024  # bytes of one variable or argument; the kernel's limit


class SandboxError(Exception):
    """A sandbox could not be used; the message is one sentence for a person."""


class SandboxUnavailable(SandboxError):
    """No sandbox can be started on this machine; the message holds the remedy."""


@dataclass(frozen=True)
class Bind:
    """A directory or file of the host at a place inside."""

    host: Path
    inside: str
    writable: bool = False


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. `memory` and `disk` are bytes; `disk` is what its writable
    places that are kept hold together, but for its home."""

    cpus: float = 1.0
    memory: int = 1024 * 1024**2
    processes: int = 1000
    disk: int = 2048 * 1024**2


@dataclass(frozen=True)
class SandboxSpec:
    """What one sandbox gets. Everything not named here it does not get.

    `workspace` becomes /workspace (without: an empty one in memory), `home` the home directory
    (without: one in memory), which may hold `home_limit` bytes. `env` is the whole environment
    but for PATH, HOME, the language and the package managers' settings, which it may override.

    `network` is the machine's own, without any guard. `egress` is the guarded one: a namespace
    without a route, in which only the proxy is reached. Neither of them is no network at all.

    `root`: user 0 inside, who is nobody outside (P26). `base`: the directory of an environment,
    or the image of an engine, in place of this machine's own programs.
    """

    party: Party
    network: bool
    egress: Egress | None = None
    workspace: Path | None = None
    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = "/workspace"
    home: Path | None = None
    home_limit: int = 2048 * 1024**2
    limits: Limits = Limits()
    root: bool = False
    base: str = ""


@dataclass(frozen=True)
class Facts:
    """What a sandbox is, for the record. `isolation` names what keeps it apart, `image` is that of
    an engine, and `unenforced` has a sentence for each limit that it is not held to."""

    adapter: str = ""
    isolation: str = ""
    image: str = ""
    unenforced: tuple[str, ...] = ()


class SandboxProcess:
    """A command in a sandbox, with pipes. Satisfies `servers.mcp.types.StdioProcess`.

    Always `kill` it in the end, also after it ended by itself: that closes the pipes.
    """

    def __init__(
        self,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
        control: ProcessControl,
        facts: Facts = Facts(),
    ) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.facts = facts
        self._control = control

    async def wait(self) -> int:
        """The exit code: the command's own, 128 + n where signal n ended it, 127 where the
        command does not exist. Returns when no process of the sandbox is left."""
        return (await asyncio.shield(self._control.exit)).code

    @property
    def ended(self) -> Exit | None:
        """How the sandbox ended, once `wait` has returned."""
        return self._control.exit.result() if self._control.exit.done() else None

    @property
    def verdict(self) -> str:
        """For which limit processes of it were ended; empty for none."""
        return self.ended.broken_limit if self.ended else ""

    @property
    def fault(self) -> str:
        """What went wrong with the sandbox itself rather than with its command; usually empty."""
        return self.ended.fault if self.ended else ""

    async def kill(self) -> None:
        """End every process of the sandbox, wait until they are gone, close the pipes.

        May be called twice and in a cancelled task. Raises `SandboxError` if something is left
        after `KILL_TIMEOUT`.
        """
        self._control.kill()
        try:
            async with deadlines.timeout(KILL_TIMEOUT):
                await asyncio.shield(self._control.exit)
        except TimeoutError:
            raise SandboxError(
                f"A sandbox did not end within {KILL_TIMEOUT:.0f} seconds of being killed."
            ) from None
        finally:
            self._control.close()


@dataclass(frozen=True)
class Exit:
    """How a sandbox ended. `fault`: the adapter's words where the command did not do it.

    `out_of_memory`: the kernel ended a process of it for its memory, not always the command
    itself. `broken_limit`: what it did then, or where it was ended for another limit.
    `is_memory_per_process`: only each process by itself was held to its memory, so that the end
    of one for it is not known. `processes_refused`: it wanted more at once than it may have.
    """

    code: int
    fault: str = ""
    out_of_memory: bool = False
    broken_limit: str = ""
    is_memory_per_process: bool = False
    processes_refused: bool = False


class ProcessControl(Protocol):
    """How an adapter ends what it started. `exit` belongs to the loop that started it."""

    @property
    def exit(self) -> asyncio.Future[Exit]: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class Adapter(Protocol):
    """One way of making sandboxes."""

    name: str

    def problem(self) -> str:
        """Why sandboxes cannot start here, with the remedy; empty if they can. May block."""
        ...

    def root_problem(self) -> str:
        """Why sandboxes cannot run as root here, with the remedy; "" if they can. May block."""
        ...

    def gaps(self) -> tuple[str, ...]:
        """A sentence with the remedy for each limit and wall that does not hold here. May block."""
        ...

    def tidy(self) -> None:
        """Remove what workers left behind that have died. May block."""
        ...

    async def start(
        self, argv: Sequence[str], spec: SandboxSpec, *, limit: int = LINE_LIMIT
    ) -> SandboxProcess: ...


class Trial:
    """Whether sandboxes start, found out by starting one. Threads may share it."""

    def __init__(self, look: Callable[[], str]) -> None:
        """`look` gives the problem with its remedy, or ""."""
        self._look = look
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._looked_at = 0.0

    @property
    def went_well(self) -> bool:
        """As far as is known, without looking."""
        return self._problem == ""

    def problem(self) -> str:
        """A success is remembered, a problem looked at again after a while. May block."""
        with self._lock:
            stale = time.monotonic() - self._looked_at > PROBLEM_KEPT
            if self._problem is None or (self._problem and stale):
                self._problem = self._look()
                self._looked_at = time.monotonic()
            return self._problem


def check(argv: Sequence[str], spec: SandboxSpec) -> None:
    """Refuse what no process can be started with. Raises `SandboxError`."""
    if not argv or not argv[0]:
        raise SandboxError("The command is empty.")
    if spec.network and spec.egress is not None:
        raise SandboxError("A sandbox has either the machine's own network or a guarded one.")
    for part in argv:
        if "\0" in part:
            raise SandboxError("The command holds a NUL character.")
        if len(os.fsencode(part)) >= _MAX_VALUE:
            raise SandboxError("An argument of the command is longer than 128 KiB.")
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name:
            raise SandboxError(f"{name!r} cannot be the name of an environment variable.")
        if "\0" in value:
            raise SandboxError(f"The environment variable {name} holds a NUL character.")
        if len(os.fsencode(name)) + len(os.fsencode(value)) + 2 > _MAX_VALUE:
            raise SandboxError(f"The environment variable {name} is longer than 128 KiB.")


_lock = threading.Lock()


@lru_cache(maxsize=1)
def _make_adapter() -> Adapter:
    from jobs.sandbox.places import Places
    from umpteenth.core.config import get_options

    options = get_options()
    places = Places.from_options(options)
    if options.sandbox.adapter == "engine":
        from jobs.sandbox.engine.adapter import Engine

        engine = options.sandbox.engine
        return Engine(places, url=engine.url, image=engine.image, runtime=engine.runtime)
    from jobs.sandbox.bubblewrap import Bubblewrap

    return Bubblewrap(places)


def adapter() -> Adapter:
    """The adapter of this process."""
    with _lock:
        return _make_adapter()


def problem() -> str:
    """Why sandboxes cannot start in this process, with the remedy; empty if they can.

    Blocks for some milliseconds the first time: it starts one to see. A success is remembered,
    a problem is looked at again after half a minute.
    """
    return adapter().problem()


def gaps() -> tuple[str, ...]:
    """A sentence with the remedy for each limit and wall that is not whole here. May block."""
    return adapter().gaps()


def root_problem() -> str:
    """Why sandboxes cannot run as root in this process; empty if they can. May block."""
    return adapter().root_problem()


def tidy() -> None:
    """Remove what dead workers left behind; a worker does it at its start and now and then."""
    adapter().tidy()


async def start(
    argv: Sequence[str], spec: SandboxSpec, *, limit: int = LINE_LIMIT
) -> SandboxProcess:
    """Start a command in a sandbox of its own.

    `limit` bounds a line that `readline` of the outputs takes, and twice that is buffered.
    Raises `SandboxUnavailable` with the remedy, `SandboxError` for a specification that cannot
    be carried out.
    """
    return await adapter().start(argv, spec, limit=limit)
