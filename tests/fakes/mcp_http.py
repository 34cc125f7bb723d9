"""The fake MCP server over HTTP, written on bare sockets so that it can do what no server should.

    async with FakeHttp(Behaviour()) as server:
        settings = ConnectionSettings(name="fake", transport="http", url=server.url)

`server.script` may answer any request in the fake's stead; `server.requests` is what came in.
Tests without a loop of their own use `running(FakeHttp(…))`; as a process it prints its address:

    python -m tests.fakes.mcp_http '{"transport": "sse", "behaviour": {"page_size": 2}}'
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.fakes.mcp_server import Behaviour, Fake, Message

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Message:
        value: Message = json.loads(self.body or b"{}")
        return value

    @property
    def rpc(self) -> str:
        return str(self.message.get("method", "")) if self.body else ""


@dataclass
class Reply:
    """`body` as an iterator is sent in chunks; `abort` resets the connection after it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | AsyncGenerator[bytes, None] = b""
    abort: bool = False
    cut: bool = False  # close without the end of the chunks
    raw: bytes | None = None  # in place of everything above


Script = Callable[[Request], "Awaitable[Reply | None] | Reply | None"]
Served = TypeVar("Served", bound=contextlib.AbstractAsyncContextManager[Any])


class _Reader(asyncio.StreamReader):
    """Tells at once that the client has left, also while nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.left.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.left.set()


class FakeHttp:
    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        answer: str = "json",
        transport: str = "http",
        sessions: bool = True,
        script: Script | None = None,
        event_end: str = "\n",
        token: str = "",
        standing: bool = False,
        socket_path: str = "",
    ) -> None:
        self.fake = Fake(behaviour or Behaviour())
        self.answer = answer  # "json" or "sse"
        self.transport = transport  # "http", or "sse" for the transport of 2024-11-05
        self.sessions = sessions
        self.script = script
        self.event_end = event_end
        self.token = token  # the bearer token that every request must carry
        self.standing = standing  # whether GET opens a stream for what `push` sends
        self.socket_path = socket_path  # listen there instead of at a port
        self.requests: list[Request] = []
        self.known_sessions: set[str] = set()
        self.connections = 0
        self.port = 0
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._pushed: asyncio.Queue[bytes] = asyncio.Queue()
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connected: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        place = "localhost" if self.socket_path else f"127.0.0.1:{self.port}"
        return f"http://{place}/{'sse' if self.transport == 'sse' else 'mcp'}"

    def rpcs(self) -> list[str]:
        return [request.rpc for request in self.requests if request.rpc]

    def gets(self) -> list[Request]:
        return [request for request in self.requests if request.method == "GET"]

    def push(self, message: Message) -> None:
        """Say something on the standing stream."""
        self._pushed.put_nowait(event(message, self.event_end))

    async def until(self, met: Callable[[], object]) -> None:
        """Wait for requests until `met`; looked at after each."""
        async with asyncio.timeout(20):
            while not met():
                self._news.clear()
                await self._news.wait()

    def at_work(self) -> set[asyncio.Task[None]]:
        return set(self._tasks)

    async def until_left(self) -> None:
        """Wait until no client is connected any more."""
        async with asyncio.timeout(20):
            while self._connected:
                await asyncio.wait(set(self._connected))

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(_Reader(), self._serve, loop)

        if self.socket_path:
            self._server = await loop.create_unix_server(protocol, self.socket_path)
            return self
        self._server = await loop.create_server(protocol, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        # One that was accepted in this moment closes its socket only once its task has begun.
        await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert isinstance(reader, _Reader)
        self._tasks.add(task)
        self._connected.add(task)
        self.connections += 1
        try:
            while request := await _read_request(reader):
                self.requests.append(request)
                self._news.set()
                if not await _unless_left(reader, self._answer(request, writer)):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the test is over
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._tasks.discard(task)
            self._connected.discard(task)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can go on."""
        return await _write_reply(writer, await self._reply(request))

    async def _reply(self, request: Request) -> Reply:
        if self.script is not None:
            scripted = self.script(request)
            reply = await scripted if isinstance(scripted, Awaitable) else scripted
            if reply is not None:
                return reply
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return Reply(401, {"content-type": JSON}, b'{"error":"invalid_token"}')
        if self.transport == "sse":
            return await self._reply_sse(request)
        if request.method == "DELETE":
            self.known_sessions.discard(request.headers.get("mcp-session-id", ""))
            return Reply(204)
        if self.standing and request.method == "GET" and request.path == "/mcp":
            return Reply(200, {"content-type": EVENTS}, self._pushed_events())
        if request.method != "POST" or request.path.partition("?")[0] != "/mcp":
            return Reply(405 if request.path == "/mcp" else 404, {"content-type": "text/plain"})
        return await self._reply_http(request)

    async def _reply_http(self, request: Request) -> Reply:
        headers: dict[str, str] = {}
        if request.rpc == "initialize" and self.sessions:
            session = f"s{len(self.requests)}"
            self.known_sessions.add(session)
            headers["mcp-session-id"] = session
        elif self._is_lost(request):
            return Reply(404, {"content-type": "text/plain"}, b"Session not found")
        if "id" not in request.message or "method" not in request.message:
            await self.fake.handle(request.message, _nowhere)
            return Reply(202)
        if self.answer == "sse":
            return Reply(200, {**headers, "content-type": EVENTS}, self._stream(request))
        reply = await self.fake.handle(request.message, _nowhere, request.headers)
        if reply is None:
            await asyncio.Event().wait()
        return Reply(200, {**headers, "content-type": JSON}, json.dumps(reply).encode())

    def _is_lost(self, request: Request) -> bool:
        session = request.headers.get("mcp-session-id")
        return (bool(self.known_sessions) or bool(session)) and session not in self.known_sessions

    async def _stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Everything that belongs to a request as events, the answer last."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def send(message: Message) -> None:
            queue.put_nowait(event(message, self.event_end))

        async def work() -> None:
            reply = await self.fake.handle(request.message, send, request.headers)
            if reply is not None:
                await send(reply)
                queue.put_nowait(None)

        task = asyncio.create_task(work())
        self._tasks.add(task)
        yield b": hello" + (self.event_end * 2).encode()
        while (item := await queue.get()) is not None:
            yield item
        self._tasks.discard(task)

    async def _reply_sse(self, request: Request) -> Reply:
        path = request.path.partition("?")[0]
        if request.method == "GET" and path == "/sse":
            return Reply(200, {"content-type": EVENTS}, self._standing_stream())
        if request.method != "POST" or path != "/messages":
            return Reply(404 if path != "/sse" else 405, {"content-type": "text/plain"})

        async def send(message: Message) -> None:
            self._outbox.put_nowait(event(message, self.event_end))

        async def work() -> None:
            reply = await self.fake.handle(request.message, send, request.headers)
            if reply is not None:
                await send(reply)

        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Reply(202, {}, b"Accepted")

    async def _pushed_events(self) -> AsyncGenerator[bytes, None]:
        yield b": listening\n\n"
        while True:
            yield await self._pushed.get()

    async def _standing_stream(self) -> AsyncGenerator[bytes, None]:
        end = self.event_end
        # The newest client gets the answers; one that left would swallow them.
        outbox = self._outbox = asyncio.Queue()
        yield f"event: endpoint{end}data: /messages?session=1{end}{end}".encode()
        while True:
            yield await outbox.get()


@contextlib.contextmanager
def running(server: Served) -> Iterator[Served]:
    """The server in a thread and loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake mcp server", daemon=True)
    thread.start()

    def do(work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(10)

    do(server.__aenter__())
    try:
        yield server
    finally:
        do(server.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def event(message: Any, end: str = "\n", *, identity: str = "") -> bytes:
    data = message if isinstance(message, str) else json.dumps(message)
    head = f"id: {identity}{end}" if identity else ""
    return f"{head}event: message{end}data: {data}{end}{end}".encode()


async def _nowhere(message: Message) -> None:
    """Where answers are plain JSON there is no way to say anything else."""


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    start = await reader.readexactly(1)
    if not start.isalpha():
        return None  # somebody speaks TLS
    head = start + await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)


async def _unless_left(reader: _Reader, answering: Coroutine[Any, Any, bool]) -> bool:
    """The outcome of `answering`; False once the client has left."""
    answer, leave = asyncio.create_task(answering), asyncio.create_task(reader.left.wait())
    try:
        await asyncio.wait({answer, leave}, return_when=asyncio.FIRST_COMPLETED)
        return answer.done() and answer.result()
    finally:
        answer.cancel()
        leave.cancel()
        await asyncio.gather(answer, leave, return_exceptions=True)


async def _write_reply(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    """Whether the connection can go on."""
    if reply.raw is not None:
        writer.write(reply.raw)
    else:
        await _write_answer(writer, reply)
    await writer.drain()
    if reply.abort:
        # A reset instead of an end.
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    return not (reply.abort or reply.cut)


async def _write_answer(writer: asyncio.StreamWriter, reply: Reply) -> None:
    chunked = not isinstance(reply.body, bytes)
    headers = dict(reply.headers)
    if chunked:
        headers["transfer-encoding"] = "chunked"
    elif "content-length" not in headers:
        headers["content-length"] = str(len(reply.body))  # type: ignore[arg-type]
    lines = [f"HTTP/1.1 {reply.status} Status", *(f"{k}: {v}" for k, v in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if isinstance(reply.body, bytes):
        writer.write(reply.body)
    else:
        async with contextlib.aclosing(reply.body) as chunks:
            async for chunk in chunks:
                writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                await writer.drain()
        if not (reply.abort or reply.cut):
            writer.write(b"0\r\n\r\n")


async def _main(options: dict[str, Any]) -> None:
    behaviour = Behaviour(**options.pop("behaviour", {}))
    async with FakeHttp(behaviour, **options) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")))
