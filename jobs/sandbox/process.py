"""Pipes between an event loop and a process that the launcher starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobs.sandbox.base import Exit, Facts, Limits, SandboxError, SandboxProcess, SandboxSpec
from jobs.sandbox.cgroups import Cgroups, Group, Usage
from jobs.sandbox.egress.proxy import Proxy
from jobs.sandbox.inside import PROXY_PORT
from jobs.sandbox.launcher_client import LauncherClient, LauncherUnusable, OnListener
from jobs.sandbox.limits import gaps, resource_limits, too_much_memory
from jobs.sandbox.watching import watch_disk

logger = logging.getLogger(__name__)


@dataclass
class _Control:
    """Ends one process of a launcher and closes our ends of its pipes."""

    exit: asyncio.Future[Exit]
    end: Callable[[], None]
    stdin: asyncio.WriteTransport
    outputs: list[tuple[asyncio.StreamReader, asyncio.ReadTransport]]
    proxy: Proxy | None

    def kill(self) -> None:
        if not self.exit.done():
            self.end()

    def close(self) -> None:
        """Close our ends; what the process had written by now can still be read."""
        if self.proxy is not None:
            self.proxy.close()
        if not self.stdin.is_closing():
            self.stdin.abort()
        for reader, transport in self.outputs:
            if not transport.is_closing():
                _take_rest(reader, transport)
                transport.close()


def _take_rest(reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
    """Move what waits in the pipe, at most its 64 KiB, to the reader."""
    pipe = transport.get_extra_info("pipe")
    with contextlib.suppress(BlockingIOError):
        while data := os.read(pipe.fileno(), 64 * 1024):
            reader.feed_data(data)


async def start_process(
    launcher: LauncherClient,
    argv: Sequence[str],
    spec: SandboxSpec,
    cgroups: Cgroups,
    *,
    owner: int | None,
    extra: Sequence[int],
    limit: int,
) -> SandboxProcess:
    """Start argv through the launcher with pipes for its three streams.

    `owner` is the user id that must be able to reopen the pipes (`/dev/stdout`); `extra` are
    descriptors that become 3, 4, … inside, and stay open here. Of `spec` its limits are kept, and
    with `egress` argv is a bwrap, whose sandbox gets a proxy until the process is killed. Raises
    `SandboxError`.
    """
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as undo:
        pipes = []
        for _ in range(3):
            pipes.append(_Pipe.make(owner))
            undo.callback(pipes[-1].close)
        into, out, errors = pipes
        # Our ends first: should this be cancelled, then nothing has been started yet.
        stdin, writing = await _writer(into.take_write_end(), loop)
        undo.callback(writing.abort)
        outputs = []
        for pipe in (out, errors):
            reader, transport = await _reader(pipe.take_read_end(), limit, loop)
            undo.callback(transport.close)
            outputs.append((reader, transport))
        group = _make_group(cgroups, spec)
        undo.callback(group.remove)
        end = _End(loop, loop.create_future(), group, spec.limits)
        theirs = [into.read_end, out.write_end, errors.write_end]
        proxy = Proxy(spec.egress) if spec.egress is not None else None
        listen = (PROXY_PORT, _server(loop, proxy)) if proxy is not None else None
        try:
            name = launcher.start(
                argv,
                [*theirs, *extra],
                end.report,
                resource_limits(spec.limits, group.controllers),
                groups=group.entrances,
                listen=listen,
            )
        except (LauncherUnusable, ValueError, OSError) as error:
            raise SandboxError(f"The sandbox could not be started: {error}") from error
        undo.pop_all()
    for pipe in pipes:
        pipe.close()
    control = _Control(end.exited, lambda: launcher.kill(name), writing, outputs, proxy)

    def because(sentence: str) -> None:
        end.broken_limit = sentence
        control.kill()

    watch_disk(spec, end.exited, because)
    unenforced = gaps(group.controllers, privileged=owner is not None)
    facts = Facts("bubblewrap", "namespaces", unenforced=unenforced)
    return SandboxProcess(stdin, outputs[0][0], outputs[1][0], control, facts)


@dataclass
class _Pipe:
    """Both ends of a pipe; an end that was taken is -1 and no longer ours to close."""

    read_end: int
    write_end: int

    @classmethod
    def make(cls, owner: int | None) -> _Pipe:
        pipe = cls(*os.pipe())
        if owner is not None:
            os.fchown(pipe.read_end, owner, owner)
        return pipe

    def take_read_end(self) -> int:
        taken, self.read_end = self.read_end, -1
        return taken

    def take_write_end(self) -> int:
        taken, self.write_end = self.write_end, -1
        return taken

    def close(self) -> None:
        for descriptor in (self.take_read_end(), self.take_write_end()):
            if descriptor >= 0:
                os.close(descriptor)


def _server(loop: asyncio.AbstractEventLoop, proxy: Proxy) -> OnListener:
    def serve(listener: socket.socket) -> None:
        try:
            loop.call_soon_threadsafe(proxy.serve, listener)
        except RuntimeError:  # the loop has been closed, and with it the sandbox
            listener.close()

    return serve


def _make_group(cgroups: Cgroups, spec: SandboxSpec) -> Group:
    try:
        return cgroups.make(spec.limits)
    except OSError as error:
        raise SandboxError(f"The limits of a sandbox could not be set: {error}") from error


@dataclass
class _End:
    """Puts together how a sandbox ended; who ends it for a limit says so in `broken_limit`."""

    loop: asyncio.AbstractEventLoop
    exited: asyncio.Future[Exit]
    group: Group
    limits: Limits
    broken_limit: str = ""

    def report(self, code: int, error: str) -> None:
        """From the launcher's thread, once no process is left."""
        if error:
            logger.warning("a sandbox ended with %d: %s", code, error)
        usage = Usage()

        def resolve() -> None:
            if not self.exited.done():
                self.exited.set_result(self._exit(code, error, usage))

        try:
            usage = self.group.usage()
            self.group.remove()
        finally:  # whoever waits hears of it, whatever becomes of the group
            # The loop may have been closed by then; nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(resolve)

    def _exit(self, code: int, error: str, usage: Usage) -> Exit:
        memory = too_much_memory(self.limits) if usage.out_of_memory else ""
        return Exit(
            code,
            error,
            out_of_memory=usage.out_of_memory and not self.broken_limit,
            broken_limit=self.broken_limit or memory,
            is_memory_per_process="memory" not in self.group.controllers,
            processes_refused=usage.processes_refused,
        )


async def _writer(
    descriptor: int, loop: asyncio.AbstractEventLoop
) -> tuple[asyncio.StreamWriter, asyncio.WriteTransport]:
    # A reader's protocol knows how to wait for the end and for room, which a writer needs.
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop)
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(descriptor, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop), transport


async def _reader(
    descriptor: int, limit: int, loop: asyncio.AbstractEventLoop
) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(descriptor, "rb", 0))
    return reader, transport
