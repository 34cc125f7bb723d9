"""The wire between the engine and a fake server, which writes down all that it receives.

    async with wire("stdio", "2025-06-18") as (server, connection):
        await connection.list_tools()
        assert server.methods() == ["initialize", "notifications/initialized", "tools/list"]

The ways are "stdio", "json" and "events" (Streamable HTTP with answers of either kind) and "sse"
(the transport of 2024-11-05). A handshake is not preceded by the probe of newer revisions, unless
`remembered` says otherwise.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import pytest

from servers.mcp.client import Connection, connect
from servers.mcp.types import Asker, ConnectionSettings
from tests.fakes.mcp_helpers import Recorder, http_settings
from tests.fakes.mcp_http import EVENTS, JSON, FakeHttp, Reply, Request, event
from tests.fakes.mcp_server import MODERN_VERSION, Behaviour, Fake, Message

HTTP_WAYS: Final = ("json", "events")
WAYS: Final = {
    "2024-11-05": ("stdio", "sse"),
    "2025-03-26": ("stdio", *HTTP_WAYS),
    "2025-06-18": ("stdio", *HTTP_WAYS),
    "2025-11-25": ("stdio", *HTTP_WAYS),
    "2026-07-28": ("stdio", *HTTP_WAYS),
}
SECONDS: Final = 20  # after which a test that waits has failed

Answer = Message | Reply | None
# The answer to a message ("result" or "error", or over HTTP a whole reply); None leaves it to the
# fake server.
Script = Callable[[Message], "Awaitable[Answer] | Answer"]
RequestScript = Callable[[Request], "Reply | None"]


class Spec:
    """The base of all classes of tests here. `way` becomes each way of the revision, `http_way`
    those of Streamable HTTP, `stream_way` those on which a server can speak while it works."""

    revision: str

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "way" in metafunc.fixturenames:
            metafunc.parametrize("way", WAYS[self.revision])
        if "http_way" in metafunc.fixturenames:
            metafunc.parametrize("http_way", HTTP_WAYS)
        if "stream_way" in metafunc.fixturenames:
            ways = [way for way in WAYS[self.revision] if way != "json"]
            metafunc.parametrize("stream_way", ways)


@dataclass(frozen=True)
class Heard:
    """One line of standard input, or one HTTP request; `method` is then that of HTTP."""

    message: Message
    raw: bytes
    method: str = ""
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


async def never() -> Answer:
    """A script's answer that does not come."""
    await asyncio.Event().wait()
    return None


class Watcher(Recorder):
    """An observer whose notices can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._noticed = asyncio.Event()

    def notice(self, sentence: str) -> None:
        super().notice(sentence)
        self._noticed.set()

    async def until_noticed(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self._noticed.wait()


class Server(ABC):
    """What both kinds of servers can do."""

    fake: Fake

    @property
    @abstractmethod
    def heard(self) -> Sequence[Heard]: ...

    @abstractmethod
    async def say(self, message: Any) -> None:
        """Send something that nobody has asked for: a message, or a batch of them."""

    @abstractmethod
    async def until(self, met: Callable[[], object]) -> None: ...

    @property
    def messages(self) -> list[Message]:
        """The JSON-RPC messages, in the order of their arrival."""
        return [heard.message for heard in self.heard if heard.message]

    def methods(self) -> list[str]:
        """Of requests and notifications; "" stands for an answer."""
        return [message.get("method", "") for message in self.messages]

    def sent(self, method: str) -> list[Message]:
        return [message for message in self.messages if message.get("method") == method]

    def params(self, method: str) -> Message:
        """Of the only message with this method."""
        [message] = self.sent(method)
        params: Message = message["params"]
        return params

    def answers(self) -> list[Message]:
        """What the client answered to requests of the server."""
        return [message for message in self.messages if "method" not in message]

    async def answer_to(self, identity: Any, method: str, params: Message | None = None) -> Message:
        """Put a request to the client; its answer without the frame."""
        request: Message = {"jsonrpc": "2.0", "id": identity, "method": method}
        await self.say(request if params is None else {**request, "params": params})

        def found() -> list[Message]:
            return [answer for answer in self.answers() if answer.get("id") == identity]

        await self.until(found)
        [answer] = found()
        assert answer.pop("jsonrpc") == "2.0"
        assert answer.pop("id") == identity
        return answer


class StdioServer(Server):
    """A process in memory: the engine starts it like any other, and gets its streams."""

    def __init__(self, behaviour: Behaviour, script: Script | None) -> None:
        self.fake = Fake(behaviour)
        self.script = script
        self.lines: list[Heard] = []
        self.end: list[str] = []  # how it came about: "stdin closed", "killed"
        self.obeys_eof = True
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.stdin = cast(asyncio.StreamWriter, _Input(self._take, self._close))
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()

    async def __call__(self, argv: Sequence[str], env: Mapping[str, str]) -> StdioServer:
        return self

    @property
    def heard(self) -> Sequence[Heard]:
        return self.lines

    async def say(self, message: Any) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        if not self._gone.is_set():
            self.stdout.feed_data(data)

    async def until(self, met: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not met():
                self._news.clear()
                await self._news.wait()

    verdict = ""

    async def wait(self) -> int:
        await self._gone.wait()
        return 0

    async def kill(self) -> None:
        if not self._gone.is_set():
            self.end.append("killed")
            self._exit()

    def _take(self, line: bytes) -> None:
        heard = Heard(json.loads(line), line)
        self.lines.append(heard)
        self._news.set()
        task = asyncio.create_task(self._reply(heard.message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, message: Message) -> None:
        reply = await _scripted(self.script, message)
        assert not isinstance(reply, Reply)
        if reply is None:
            reply = await self.fake.handle(message, self.say)
        if reply is not None:
            await self.say(reply)

    def _close(self) -> None:
        if not self.end:
            self.end.append("stdin closed")
        if self.obeys_eof:
            self._exit()

    def _exit(self) -> None:
        for task in self._tasks:
            task.cancel()
        if not self._gone.is_set():
            self._gone.set()
            self.stdout.feed_eof()
            self.stderr.feed_eof()


class _Input:
    """The end of a pipe to standard input, as much of it as a client uses."""

    def __init__(self, take: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self._take, self.close = take, close
        self._pending = b""

    def write(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._take(line)

    async def drain(self) -> None:
        pass


class HttpServer(Server):
    """`requests` may answer any HTTP request before anybody looks into it."""

    def __init__(
        self, http: FakeHttp, script: Script | None, requests: RequestScript | None = None
    ) -> None:
        self.http = http
        self.fake = http.fake
        self._script = script
        self._requests = requests
        http.script = self._scripted

    @property
    def heard(self) -> Sequence[Heard]:
        return [
            Heard(request.message, request.body, request.method, request.path, request.headers)
            for request in self.http.requests
        ]

    def of(self, method: str) -> list[Heard]:
        """The HTTP requests of a method."""
        return [heard for heard in self.heard if heard.method == method]

    def bearing(self, rpc: str) -> Heard:
        """The only HTTP request that bears a message of this JSON-RPC method."""
        [found] = [heard for heard in self.heard if heard.message.get("method") == rpc]
        return found

    async def say(self, message: Any) -> None:
        if self.http.transport == "sse":
            self.http._outbox.put_nowait(event(message))
            return
        await self.until(lambda: self.of("GET"))
        self.http._pushed.put_nowait(event(message))

    async def until(self, met: Callable[[], object]) -> None:
        await self.http.until(met)

    async def _scripted(self, request: Request) -> Reply | None:
        reply = self._requests(request) if self._requests else None
        if reply is not None or request.method != "POST":
            return reply
        answer = await _scripted(self._script, request.message)
        if answer is None or isinstance(answer, Reply):
            return answer
        if self.http.transport == "sse":
            await self.say(answer)
            return Reply(202)
        if self.http.answer == "sse":
            return events(event(answer))
        return Reply(200, {"content-type": JSON}, json.dumps(answer).encode())


async def _scripted(script: Script | None, message: Message) -> Answer:
    """The scripted answer in its frame."""
    if script is None or not {"id", "method"} <= message.keys():
        return None
    answer = script(message)
    found = await answer if isinstance(answer, Awaitable) else answer
    if found is None or isinstance(found, Reply):
        return found
    return {"jsonrpc": "2.0", "id": message["id"], **found}


def events(*data: bytes, cut: bool = False) -> Reply:
    """A stream of events as the whole answer; `cut` breaks it off."""

    async def stream() -> AsyncGenerator[bytes, None]:
        for each in data:
            yield each

    return Reply(200, {"content-type": EVENTS}, stream(), cut=cut)


def error(code: int, message: str = "no", data: Any = None) -> Message:
    body = {"code": code, "message": message}
    return {"error": body if data is None else {**body, "data": data}}


def on(method: str, answer: Answer | Awaitable[Answer]) -> Script:
    """A script for the requests of one method."""
    return lambda message: answer if message["method"] == method else None


@asynccontextmanager
async def served(
    way: str,
    revision: str,
    *,
    behaviour: Behaviour | None = None,
    script: Script | None = None,
    requests: RequestScript | None = None,
    http: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Server, ConnectionSettings]]:
    """A server that speaks one revision, and what connects to it.

    `http` are options of `FakeHttp`, all others those of the settings.
    """
    modern = revision == MODERN_VERSION
    behaviour = behaviour or Behaviour()
    if behaviour.era != "both":
        behaviour = replace(behaviour, era="modern" if modern else "legacy")
    if not modern:
        behaviour.versions = [revision]
        options.setdefault("remembered", {"mode": "handshake"})
    if way == "stdio":
        given = {"start_timeout": SECONDS, **options}
        yield (
            StdioServer(behaviour, script),
            ConnectionSettings(name="fake", transport="stdio", command="server", **given),
        )
        return
    if way == "sse":
        options["remembered"] = {"transport": "sse"}
    shapes: dict[str, Any] = {"json": {}, "events": {"answer": "sse"}, "sse": {"transport": "sse"}}
    given = {"standing": not modern, **shapes[way], **(http or {})}
    async with FakeHttp(behaviour, **given) as fake:
        yield HttpServer(fake, script, requests), http_settings(fake.url, **options)


@asynccontextmanager
async def connecting(
    server: Server,
    settings: ConnectionSettings,
    *,
    observer: Recorder | None = None,
    ask: Asker | None = None,
) -> AsyncIterator[Connection]:
    spawn = server if isinstance(server, StdioServer) else None
    async with connect(settings, spawn=spawn, observer=observer, ask=ask) as connection:
        yield connection


@asynccontextmanager
async def wire(
    way: str,
    revision: str,
    *,
    observer: Recorder | None = None,
    ask: Asker | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Server, Connection]]:
    """Both ends; `options` are those of `served`."""
    async with (
        served(way, revision, **options) as (server, settings),
        connecting(server, settings, observer=observer, ask=ask) as connection,
    ):
        yield server, connection


@asynccontextmanager
async def http_wire(
    http_way: str, revision: str, **options: Any
) -> AsyncIterator[tuple[HttpServer, Connection]]:
    async with wire(http_way, revision, **options) as (server, connection):
        assert isinstance(server, HttpServer)
        yield server, connection
