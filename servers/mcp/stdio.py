"""stdio servers: one JSON message a line, over the streams of a process that a spawner started.

What is no message on standard output is skipped and kept as noise (C01); standard error is always
read, and its last 8 KiB are kept (C03). When the process ends, whoever waits learns at once its
exit code and its last words (C06). At the end of the connection its input is closed, and whatever
is left of its process tree a moment later is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from servers.limits import STDERR_TAIL_BYTES
from servers.mcp.messages import decode_json, encode, read_messages
from servers.mcp.schema_words import bytes_in_words
from servers.mcp.transport import InboxTransport, background
from servers.mcp.types import (
    ConnectionLost,
    ConnectionSettings,
    Observer,
    ServerError,
    ServerUnavailable,
    Spawner,
    StdioProcess,
)
from umpteenth.core import deadlines
from umpteenth.core.text import clean

# Time for a server to end by itself once its input is closed.
CLOSE_GRACE = 1.0
# After one end is seen (exit or closed output), time for the other and for the last words.
LAST_WORDS = 0.5
CHUNK = 64 * 1024
MAX_NOISE_LINES = 3
MAX_NOISE_LENGTH = 200
MAX_REPORTED_NOISE = 100
LINES_PER_TURN = 100  # then others in the same loop get theirs
# Of one chunk of standard error only the newest lines are reported: a flood is no news.
MAX_REPORTED_LINES = 20
ENDS = 1024  # what is kept of the beginning and the end of a line over the limit
_START = b'{"jsonrpc"'
# Where an identifier stands in a message that is too long to read: at its very start or end.
_ID = rb'"id"\s*:\s*(-?\d+|"[^"\\]{0,64}")'
_ID_AT_START = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_AT_END = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
# What shells, and so sandboxes, end with where a program is missing or is none.
NOT_FOUND = 127
NOT_EXECUTABLE = 126
# What Node, npm and uv end with says nothing of the fault: a version, where a log lies, a hint.
_TRAILER = re.compile(r"Node\.js v\d|npm (?:error|ERR!)|hint: ")
_COMPLAINT = re.compile(
    r"npm (?:error|ERR!)\s+(?!(?:code|errno|syscall|path|dest|type|command)\b)\S"
    r"|(?:Uncaught )?\w*[Ee]rror\b[^:]*: "
)


@contextlib.asynccontextmanager
async def open_stdio(
    settings: ConnectionSettings, spawn: Spawner, observer: Observer
) -> AsyncIterator[StdioTransport]:
    """Start the server; its whole process tree is gone when the block is left."""
    observer.step("Starting")
    process = await _start(settings, spawn)
    transport = StdioTransport(settings, process, observer)
    try:
        async with background(
            transport.read_output(), transport.read_errors(), transport.watch_exit()
        ):
            try:
                yield transport
            except ServerError as error:
                error.hint = transport.with_noise(error.hint)
                raise
            finally:
                transport.dispose()  # from here on output is only drained
                await _stop(process)
    finally:
        transport.dispose()


async def _start(settings: ConnectionSettings, spawn: Spawner) -> StdioProcess:
    try:
        return await spawn([settings.command, *settings.args], settings.env)
    except FileNotFoundError:
        raise command_not_found(settings.command) from None
    except PermissionError:
        raise _not_executable(settings.command) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ServerUnavailable(f"{settings.command} cannot be started: {reason}.") from None


def command_not_found(command: str) -> ServerUnavailable:
    return ServerUnavailable(
        f"Command not found: {command}",
        "Check the spelling, or give the full path of the program.",
    )


def _echoed() -> ServerUnavailable:
    return ServerUnavailable(
        "The program sends back what it is sent, so it is no MCP server.",
        "Check the command and its arguments; a terminal between may echo as well.",
    )


def _not_executable(command: str) -> ServerUnavailable:
    return ServerUnavailable(
        f"{command} cannot be executed: permission denied.",
        "Check that it is a program, not a directory, and that it is executable.",
    )


async def _stop(process: StdioProcess) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        process.stdin.close()
    try:
        with contextlib.suppress(TimeoutError):
            async with deadlines.timeout(CLOSE_GRACE):
                await process.wait()
    finally:
        # Always: what the server started may live on without it (C09).
        await process.kill()


class StdioTransport(InboxTransport):
    kind = "stdio"

    def __init__(
        self, settings: ConnectionSettings, process: StdioProcess, observer: Observer
    ) -> None:
        super().__init__()
        self._settings = settings
        self._process = process
        self._observer = observer
        self._open: dict[int | str, str] = {}  # requests without an answer, by their methods
        self._tail = bytearray()
        self._exit_code: int | None = None
        self._exited = asyncio.Event()
        self._output_closed = asyncio.Event()
        self._errors_closed = asyncio.Event()
        self._finished = asyncio.Event()
        self._noise: list[str] = []
        self._noise_count = 0
        self.answered = False  # whether the server ever said anything in the protocol

    @property
    def stderr_tail(self) -> str:
        return clean(self._tail.decode("utf-8", errors="replace"))

    @property
    def noise(self) -> list[str]:
        if not self._noise_count:
            return []
        shown = ", ".join(f"“{line}”" for line in self._noise)
        if self._noise_count == 1:
            return [f"The server wrote 1 line to standard output that is no message: {shown}"]
        return [
            f"The server wrote {self._noise_count} lines to standard output that are no "
            f"messages: {shown}"
        ]

    def with_noise(self, hint: str) -> str:
        """A hint that shows what a server said in place of the protocol: often the reason."""
        if self.answered:
            return hint
        said = [sentence for sentence in self.noise if sentence not in hint]
        return " ".join([hint, *said]).strip()

    def dispose(self) -> None:
        self._inbox.dispose()

    def forget(self, request_id: int) -> None:
        self._open.pop(request_id, None)

    def adopt(self, version: str) -> None:
        """Nothing: every line is the same in every revision."""

    def new_session(self) -> None:
        """Nothing: the process is the session."""

    async def send(self, item: SessionMessage) -> None:
        if isinstance(item.message, JSONRPCRequest):
            self._open[item.message.id] = item.message.method
        try:
            line = encode(item.message) + b"\n"
            # A notice must not wait for a deaf server; nothing else may pile up before one.
            waits = not isinstance(item.message, JSONRPCNotification)
            if waits:
                await self._process.stdin.drain()
            self._process.stdin.write(line)
            if waits:
                await self._process.stdin.drain()
        except (OSError, RuntimeError):
            # The readers see the end too and can say why; here nobody may wait for ever.
            raise anyio.BrokenResourceError from None

    async def read_output(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            count = 0
            async for line in _lines(self._process.stdout, self._settings.limits.message_bytes):
                await self._take(line)
                count += 1
                if count % LINES_PER_TURN == 0:  # noise comes without a pause
                    await asyncio.sleep(0)
        self._output_closed.set()
        if not self._exited.is_set():
            await _wait_briefly(self._exited)
        await self._finish()

    async def watch_exit(self) -> None:
        self._exit_code = await self._process.wait()
        self._exited.set()
        # A grandchild may hold the output open; what the server wrote has been read by then.
        await _wait_briefly(self._output_closed)
        await self._finish()

    async def _finish(self) -> None:
        await _wait_briefly(self._errors_closed)
        self._inbox.close()
        self._finished.set()

    async def read_errors(self) -> None:
        pending = ""
        with contextlib.suppress(OSError, ValueError):
            while chunk := await self._process.stderr.read(CHUNK):
                self._tail += chunk
                del self._tail[:-STDERR_TAIL_BYTES]
                text = pending + chunk.decode("utf-8", errors="replace")
                *lines, pending = re.split(r"[\r\n]+", text)
                pending = pending[-CHUNK:]
                for line in lines[-MAX_REPORTED_LINES:]:
                    self._report(line)
        self._report(pending)
        self._errors_closed.set()

    def _report(self, line: str) -> None:
        line = clean(line.strip(), 500)
        if line:
            self._observer.stderr(line)

    async def _take(self, line: bytes | _TooLong) -> None:
        if isinstance(line, _TooLong):
            await self._refuse(line)
            return
        try:
            messages = list(read_messages(decode_json(line)))
        except ValueError as error:
            await self._take_broken(line, error)
            return
        if not messages:
            self._add_noise(line)
        await self._deliver(messages)

    async def _deliver(self, messages: list[JSONRPCMessage]) -> None:
        for message in messages:
            self.answered = True
            if isinstance(message, JSONRPCError) and message.id is None:
                # Cannot be told to whom it belongs, unless only one waits (B02).
                if len(self._open) != 1:
                    continue
                message.id = next(iter(self._open))
            if isinstance(message, JSONRPCRequest) and self._is_own(message):
                await self._fail(message.id, _echoed())
                continue
            if isinstance(message, JSONRPCError | JSONRPCResponse):
                self._open.pop(message.id or 0, None)
            await self._inbox.put(SessionMessage(message))

    def _is_own(self, message: JSONRPCRequest) -> bool:
        """Whether a program such as `cat` gives back what it is sent."""
        return self._open.get(message.id) == message.method

    async def _take_broken(self, line: bytes, error: ValueError) -> None:
        """A message behind words without a line end, an answer that is cut off, or noise."""
        start = line.find(_START, 1)
        if start > 0:
            with contextlib.suppress(ValueError):
                messages = list(read_messages(decode_json(line[start:])))
                self._add_noise(line[:start])
                await self._deliver(messages)
                return
        owner = _request_id(line, line) if b'"jsonrpc"' in line else None
        if owner in self._open:
            why = clean(str(error).partition(":")[0], 100)
            await self._fail(owner, ServerError(f"The server's answer cannot be read: {why}."))
        else:
            self._add_noise(line)

    async def _fail(self, owner: int | str, error: ServerError) -> None:
        self.answered = True
        self._open.pop(owner, None)
        await self._inbox.fail(owner, error)

    def _add_noise(self, line: bytes) -> None:
        text = clean(line.decode("utf-8", errors="replace").strip(), MAX_NOISE_LENGTH)
        self._noise_count += 1
        if len(self._noise) < MAX_NOISE_LINES:
            self._noise.append(text)
        if self._noise_count <= MAX_REPORTED_NOISE:
            self._report(text)

    async def _refuse(self, line: _TooLong) -> None:
        """An answer over the limit fails its own call and no other (C15)."""
        owner = _request_id(line.head, line.tail)
        if owner not in self._open and len(self._open) == 1:
            owner = next(iter(self._open))
        if owner in self._open:
            most = bytes_in_words(self._settings.limits.message_bytes)
            words = f"The server's answer is larger than {most} (max_message_bytes)."
            await self._fail(owner, ServerError(words))
        else:
            self._add_noise(line.head)

    async def explain_end(self) -> ConnectionLost:
        # A broken pipe is often seen before the exit.
        await _wait_briefly(self._finished)
        tail = self.stderr_tail
        last_line = _telling_line(tail)
        message = _describe_end(self._exit_code)
        if self._process.verdict:
            message = f"The server was ended: {self._process.verdict}"
        message += f": {clean(last_line, 500)}" if last_line else "."
        hint = self.with_noise("" if tail else "It wrote nothing to standard error.")
        better = self._no_program(last_line)
        if better is not None:
            message, hint = better.message, better.hint
        return ConnectionLost(message, hint, tail, self._exit_code)

    @property
    def never_ran(self) -> bool:
        """Whether there was no program to run, so that a second try is of no use."""
        return not self.answered and self._exit_code in (NOT_FOUND, NOT_EXECUTABLE)

    def _no_program(self, last_line: str) -> ServerUnavailable | None:
        """The sentence for a command that does not run; its own scripts may fail alike."""
        command = self._settings.command
        if not self.never_ran or command not in last_line:
            return None
        if self._exit_code == NOT_EXECUTABLE:
            return _not_executable(command)
        # As shells put it, or as the sandbox does; a line of its own script names another.
        said = (f"{command}: not found", f"{command}: command not found", f"not found: {command}")
        if not any(words in last_line for words in said):
            return None
        missing = command_not_found(command)
        # A sandbox says what it sees, in brackets.
        seen = last_line.rpartition(" (")[2].rstrip(")") if " (" in last_line else ""
        missing.hint += f" {seen[:1].upper()}{seen[1:]}." if seen else ""
        return missing


@dataclass(frozen=True)
class _TooLong:
    """What is kept of a line over the limit."""

    head: bytes
    tail: bytes


def _request_id(head: bytes, tail: bytes) -> int | str | None:
    """Whose answer a line is that cannot be read as a whole."""
    found = _ID_AT_START.match(head) or _ID_AT_END.search(tail[-ENDS:])
    if found is None:
        return None
    value = found[1].decode("utf-8", errors="replace")
    return value[1:-1] if value.startswith('"') else int(value)


async def _lines(stream: asyncio.StreamReader, most: int) -> AsyncIterator[bytes | _TooLong]:
    """The lines of a stream that are not blank, of at most `most` bytes each."""
    parts: list[bytes] = []
    size = 0
    head = b""
    while chunk := await stream.read(CHUNK):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not size:
                head = end[:ENDS]
            parts.append(end)
            line = b"".join(parts)
            if size + len(end) > most:
                yield _TooLong(head, line[-ENDS:])
            elif line.strip():
                yield line
            parts, size = [], 0
        if rest:
            if not size:
                head = rest[:ENDS]
            parts.append(rest)
            size += len(rest)
            if size > most:
                parts = [b"".join(parts)[-ENDS:]]
    line = b"".join(parts)
    if line.strip() and size <= most:
        yield line


async def _wait_briefly(event: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with deadlines.timeout(LAST_WORDS):
            await event.wait()


def _telling_line(tail: str) -> str:
    """The last line of standard error, or the complaint before a trailer of the runtime."""
    lines = [line.strip() for line in tail.strip().split("\n")]
    if not _TRAILER.match(lines[-1]):
        return lines[-1]
    complaints = [line for line in lines if _COMPLAINT.match(line)] or lines[-1:]
    return complaints[0 if lines[-1].startswith("npm") else -1]  # npm tells its cause first


def _describe_end(exit_code: int | None) -> str:
    if exit_code is None:
        return "The server closed its standard output"
    if exit_code < 0:
        return f"The server was ended by signal {-exit_code}{_signal_name(-exit_code)}"
    # Shells and sandboxes report a signal as 128 and its number.
    name = _signal_name(exit_code - 128) if exit_code > 128 else ""
    return f"The server ended with exit code {exit_code}{name}"


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
