"""One fake MCP server for all tests: every era, over stdio here and over HTTP in `mcp_http`.

It behaves unless told otherwise. As a process it takes its `Behaviour` as JSON:

    python mcp_server.py '{"start": "die", "stderr": "KEY is required"}'

or from the environment as FAKE_MCP. Standard library only, so that it runs in any sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
UNSUPPORTED_VERSION = -32022
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]


def object_schema(**properties: Any) -> Message:
    return {"type": "object", "properties": properties}


def _tool(name: str, description: str, annotations: Message | None = None) -> Message:
    tool: Message = {"name": name, "description": description, "inputSchema": object_schema()}
    return tool if annotations is None else {**tool, "annotations": annotations}


READ_ONLY = {"readOnlyHint": True}
TOOLS = [
    _tool("echo", "Returns its arguments", READ_ONLY),
    _tool("content", "Returns the given parts as content"),
    _tool("raw", "Returns the given result as it is"),
    _tool("fail", "Reports an error"),
    _tool("rpc_error", "Answers with a JSON-RPC error"),
    _tool("sleep", "Sleeps for `seconds`"),
    _tool("progress", "Reports progress `steps` times, every `interval` seconds"),
    _tool("hang", "Never answers"),
    _tool("block", "Reads nothing for `seconds`"),
    _tool("count", "Counts its calls", {"destructiveHint": False}),
    _tool("calls", "Says how often each tool was called", READ_ONLY),
    _tool("environ", "Returns its environment", READ_ONLY),
    _tool("headers", "Returns the headers of this request", READ_ONLY),
    _tool("ask", "Asks the client with `method` and `params` and returns the answer"),
    _tool("form", "Requires `requests` as input, `rounds` times, and returns the answers"),
    _tool("flaky", "Fails with `error` the first `times`", READ_ONLY),
    _tool("flaky_write", "The same, and changes something"),
    _tool("late", "Answers once `release` was called, cancelled or not"),
    _tool("release", "Lets `late` answer"),
    _tool("change", "Adds the tool `new` and announces it"),
    _tool("big", "Returns `bytes` bytes of text"),
    _tool("ugly", "Returns NUL, a lone surrogate and an escape sequence"),
    _tool("stderr", "Writes `bytes` bytes to standard error"),
    _tool("bytes", "Writes raw bytes, given in hexadecimal, to standard output"),
    _tool("exit", "Ends the process with `code`", {"destructiveHint": True}),
    _tool("close_stdout", "Closes standard output and lives on"),
    _tool("fork", "Leaves a process behind that ignores the end of its input"),
]


@dataclass
class Behaviour:
    # Which revisions: "legacy" (handshake), "modern" (2026-07-28) or "both".
    era: str = "legacy"
    versions: list[str] = field(default_factory=lambda: list(HANDSHAKE_VERSIONS))
    # Answer an unknown version with an error instead of a counter-offer.
    refuse_unknown_version: bool = False
    only_unversioned: bool = False
    # What the first unknown message does to a legacy server: "error", "ignore", "exit".
    on_probe: str = "error"
    capabilities: Message | None = field(default_factory=lambda: {"tools": {}})
    server_info: Any = field(default_factory=lambda: {"name": "fake", "version": "1.2.3"})
    instructions: str = ""
    initialize_result: Message | None = None

    tools: list[Any] = field(default_factory=lambda: list(TOOLS))
    page_size: int = 0
    # What ends a page: "" (a proper cursor), "repeat", "endless", "empty".
    cursor: str = ""
    list_error: int = 0

    # stdio: "" runs, "die" exits at once, "mute" never answers.
    start: str = ""
    exit_code: int = 1
    delay: float = 0.0
    stderr: str = ""
    stderr_bytes: int = 0
    noise: list[str] = field(default_factory=list)
    ignore_eof: bool = False
    line_end: str = "\n"
    dribble: bool = False  # one byte a write

    @classmethod
    def from_json(cls, text: str) -> Behaviour:
        return cls(**json.loads(text or "{}"))


class RpcFailure(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class Fake:
    """The server behind any transport: a message in, its answer out."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.received: list[Message] = []
        self.cancelled: list[Any] = []
        self.calls: dict[str, int] = {}
        self._waiting: dict[Any, asyncio.Future[Message]] = {}
        self._questions = 0
        self._released = asyncio.Event()
        self.listeners: list[Send] = []  # of 2026-07-28, by their streams

    def methods(self) -> list[str]:
        return [message.get("method", "") for message in self.received]

    async def handle(
        self, message: Message, send: Send, headers: dict[str, str] | None = None
    ) -> Message | None:
        """The answer to a message; None where there is none."""
        self.received.append(message)
        if "method" not in message:
            waiting = self._waiting.pop(message.get("id"), None)
            if waiting is not None:
                waiting.set_result(message)
            return None
        if "id" not in message:
            if message["method"] == "notifications/cancelled":
                self.cancelled.append(message["params"]["requestId"])
            return None
        try:
            result = await self._answer(message, send, headers or {})
        except RpcFailure as failure:
            return {"jsonrpc": "2.0", "id": message["id"], "error": failure.error}
        return None if result is None else {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _answer(
        self, message: Message, send: Send, headers: dict[str, str]
    ) -> Message | None:
        method, params = message["method"], message.get("params", {})
        modern = "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})
        if self.behaviour.era == "legacy" and method == "server/discover":
            self._probed()
            return None
        if self.behaviour.era == "modern" and not modern:
            raise RpcFailure(UNSUPPORTED_VERSION, "Unsupported", {"supported": [MODERN_VERSION]})
        answers: dict[str, Callable[[], Message]] = {
            "server/discover": self._discover,
            "initialize": lambda: self._initialize(params),
            "ping": dict,
            "tools/list": lambda: self._list(params.get("cursor")),
        }
        if method == "tools/call":
            return await self._call(message, params, send, headers)
        if method == "subscriptions/listen":
            return await self._listen(send)
        if method not in answers:
            raise RpcFailure(METHOD_NOT_FOUND, "Method not found")
        return answers[method]()

    def _probed(self) -> None:
        if self.behaviour.on_probe == "exit":
            os._exit(3)
        if self.behaviour.on_probe == "error":
            raise RpcFailure(METHOD_NOT_FOUND, "Method not found")

    def _discover(self) -> Message:
        return {
            "resultType": "complete",
            "supportedVersions": [MODERN_VERSION],
            "capabilities": self.behaviour.capabilities,
            "instructions": self.behaviour.instructions,
            "_meta": {"io.modelcontextprotocol/serverInfo": self.behaviour.server_info},
        }

    async def _listen(self, send: Send) -> Message:
        wanted = {"notifications": {"toolsListChanged": True}}
        method = "notifications/subscriptions/acknowledged"
        self.listeners.append(send)
        await send({"jsonrpc": "2.0", "method": method, "params": wanted})
        await asyncio.Event().wait()
        return {}

    def _initialize(self, params: Message) -> Message:
        behaviour = self.behaviour
        if behaviour.initialize_result is not None:
            return behaviour.initialize_result
        asked = params.get("protocolVersion")
        if behaviour.only_unversioned and asked is not None:
            raise RpcFailure(INVALID_PARAMS, "Unsupported protocol version")
        if asked not in behaviour.versions:
            if behaviour.refuse_unknown_version:
                raise RpcFailure(INVALID_PARAMS, "Unsupported protocol version")
            asked = behaviour.versions[-1]
        result = {"protocolVersion": asked, "serverInfo": behaviour.server_info}
        if behaviour.capabilities is not None:
            result["capabilities"] = behaviour.capabilities
        return {**result, "instructions": behaviour.instructions}

    def _list(self, cursor: str | None) -> Message:
        behaviour = self.behaviour
        if behaviour.list_error:
            raise RpcFailure(behaviour.list_error, "No list today")
        if not behaviour.page_size:
            return {"tools": behaviour.tools}
        start = int(cursor) if cursor and cursor.isdigit() else 0
        if cursor == "":
            start = behaviour.page_size
        end = start + behaviour.page_size
        page: Message = {"tools": behaviour.tools[start:end]}
        following = {
            "": str(end) if end < len(behaviour.tools) else None,
            "repeat": "8",
            "endless": str(end),
            "empty": "" if cursor is None else None,
            "null": None,
        }[behaviour.cursor]
        return {**page, "nextCursor": following}

    async def _call(
        self, message: Message, params: Message, send: Send, headers: dict[str, str]
    ) -> Message | None:
        name, arguments = params["name"], params.get("arguments", {})
        self.calls[name] = self.calls.get(name, 0) + 1
        if name == "headers":
            return text(json.dumps(headers))
        if name == "ask":
            return text(json.dumps(await self._ask(arguments, send)))
        if name == "form":
            return _form(params, arguments)
        if name == "change":
            self.behaviour.tools.append(_tool("new", "Was not there before"))
            for tell in [send] if self.behaviour.era == "legacy" else self.listeners:
                await tell({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            return text("changed")
        if name == "progress":
            return await self._progress(params, arguments, send)
        handler = getattr(self, f"_tool_{name}", None)
        if handler is None:
            raise RpcFailure(INVALID_PARAMS, f"Unknown tool: {name}")
        result: Any = handler(arguments)
        answer: Message = await result if asyncio.iscoroutine(result) else result
        return answer

    async def _ask(self, arguments: Message, send: Send) -> Message:
        self._questions += 1
        identity = f"question-{self._questions}"
        waiting = self._waiting[identity] = asyncio.get_running_loop().create_future()
        method, params = arguments["method"], arguments.get("params", {})
        await send({"jsonrpc": "2.0", "id": identity, "method": method, "params": params})
        answer = await waiting
        return answer.get("result") if "result" in answer else {"error": answer["error"]}

    async def _progress(self, params: Message, arguments: Message, send: Send) -> Message:
        token = params.get("_meta", {}).get("progressToken")
        for step in range(1, arguments["steps"] + 1):
            await asyncio.sleep(arguments["interval"])
            progress = {"progressToken": token, "progress": step, "message": f"step {step}"}
            await send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        return text("done")

    def _tool_echo(self, arguments: Message) -> Message:
        return {**text(json.dumps(arguments)), "structuredContent": arguments}

    def _tool_content(self, arguments: Message) -> Message:
        return {"content": arguments["parts"]}

    def _tool_raw(self, arguments: Message) -> Message:
        result: Message = arguments["result"]
        return result

    def _tool_fail(self, arguments: Message) -> Message:
        return {**text(arguments.get("text", "token expired")), "isError": True}

    def _tool_rpc_error(self, arguments: Message) -> Message:
        raise RpcFailure(arguments["code"], arguments["message"], arguments.get("data"))

    def _tool_flaky(self, arguments: Message) -> Message:
        if self.calls["flaky"] + self.calls.get("flaky_write", 0) <= arguments["times"]:
            error = arguments["error"]
            raise RpcFailure(error["code"], error.get("message", "busy"), error.get("data"))
        return text("done at last")

    def _tool_flaky_write(self, arguments: Message) -> Message:
        self.calls.setdefault("flaky", 0)
        return self._tool_flaky(arguments)

    async def _tool_late(self, arguments: Message) -> Message:
        await self._released.wait()
        return text("late")

    def _tool_release(self, arguments: Message) -> Message:
        self._released.set()
        return text("released")

    async def _tool_sleep(self, arguments: Message) -> Message:
        await asyncio.sleep(arguments["seconds"])
        return text("slept")

    def _tool_block(self, arguments: Message) -> Message:
        sys.stderr.write("blocking\n")
        sys.stderr.flush()
        time.sleep(arguments["seconds"])  # reads nothing meanwhile
        return text("awake")

    async def _tool_hang(self, arguments: Message) -> Message:
        await asyncio.Event().wait()
        return text("never")

    def _tool_count(self, arguments: Message) -> Message:
        return text(str(self.calls["count"]))

    def _tool_calls(self, arguments: Message) -> Message:
        return text(json.dumps(self.calls))

    def _tool_environ(self, arguments: Message) -> Message:
        return text(json.dumps(dict(os.environ)))

    def _tool_big(self, arguments: Message) -> Message:
        return text("x" * arguments["bytes"])

    def _tool_ugly(self, arguments: Message) -> Message:
        return text("a\x00b \ud800 \x1b[31mred\x1b[0m")

    def _tool_stderr(self, arguments: Message) -> Message:
        end = "\r" if arguments.get("no_newline") else "\n"
        line = ("e" * 99 + end).encode()
        for _ in range(arguments["bytes"] // len(line)):
            sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        return text("written")

    def _tool_bytes(self, arguments: Message) -> Message:
        sys.stdout.buffer.write(bytes.fromhex(arguments["hex"]))
        sys.stdout.buffer.flush()
        return text("written")

    def _tool_exit(self, arguments: Message) -> Message:
        sys.stderr.write(arguments.get("words", ""))
        sys.stderr.flush()
        os._exit(arguments.get("code", 1))

    async def _tool_close_stdout(self, arguments: Message) -> Message:
        os.close(1)
        await asyncio.Event().wait()
        return text("never")

    def _tool_fork(self, arguments: Message) -> Message:
        child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        return text(str(child.pid))


def _form(params: Message, arguments: Message) -> Message:
    """The state is the number of rounds so far and the answers, as the client brings it back."""
    state = json.loads(params.get("requestState", '{"round": 0, "answers": []}'))
    if "inputResponses" in params:
        state["answers"].append(params["inputResponses"])
    if state["round"] >= arguments.get("rounds", 1):
        return text(json.dumps(state["answers"]))
    state["round"] += 1
    required = {"resultType": "input_required", "requestState": json.dumps(state)}
    return {**required, "inputRequests": arguments.get("requests")}


def text(value: str) -> Message:
    return {"content": [{"type": "text", "text": value}]}


def _write(message: Message, behaviour: Behaviour) -> None:
    data = json.dumps(message).encode() + behaviour.line_end.encode()
    pieces = [data[i : i + 1] for i in range(len(data))] if behaviour.dribble else [data]
    for piece in pieces:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _prepare(behaviour: Behaviour) -> None:
    """What the server does before it reads its first message."""
    sys.stderr.write(behaviour.stderr)
    sys.stderr.write("e" * behaviour.stderr_bytes)
    sys.stderr.flush()
    if behaviour.start == "die":
        sys.exit(behaviour.exit_code)
    time.sleep(behaviour.delay)
    for line in behaviour.noise:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def serve_stdio(behaviour: Behaviour) -> None:
    fake = Fake(behaviour)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()

    async def send(message: Message) -> None:
        _write(message, behaviour)

    async def answer(message: Message) -> None:
        reply = await fake.handle(message, send)
        if reply is not None:
            await send(reply)

    while line := await reader.readline():
        if behaviour.start == "mute":
            continue
        task = asyncio.create_task(answer(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(0)
    if behaviour.ignore_eof:
        await asyncio.Event().wait()


def main() -> None:
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FAKE_MCP", "")
    behaviour = Behaviour.from_json(given)
    _prepare(behaviour)
    asyncio.run(serve_stdio(behaviour))


if __name__ == "__main__":
    main()
