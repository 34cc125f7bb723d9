"""What callers of the MCP engine see: settings, tools, results and errors.

Importing this module loads neither the SDK nor Django; `servers.mcp.client` loads the SDK.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from servers import limits as rules
from servers.limits import MAX_INFLIGHT_CALLS, STANDARD, Limits, RetryPolicy, TimeLimit

TransportKind = Literal["http", "stdio", "unix"]


@dataclass(frozen=True)
class Challenge:
    """What a refusal says of how to be let in (RFC 6750, 3; RFC 9728, 5.1): the server's words."""

    status: int = 401
    resource_metadata: str = ""
    # None: the challenge names no scope; "" is a scope parameter without one.
    scope: str | None = None
    error: str = ""
    error_description: str = ""
    # The schemes that it asks for, in lower case; empty: it does not say.
    schemes: tuple[str, ...] = field(default=(), compare=False)


class Credentials(Protocol):
    """Where the bearer token of an OAuth login comes from. Called in the connection's tasks, by
    several at once; every method may take its time. The tokens never leave the process.

    Each may raise `LoginRequired`, and `ServerUnavailable` where the provider does not answer.
    """

    async def token(self) -> str:
        """The access token to send now, refreshed if it is about to end; empty: there is none
        yet, and the server's challenge will say how to get one."""
        ...

    async def renewed(self, refused: str, challenge: Challenge, *, sure: bool) -> str:
        """Another token than `refused`, which the server answered with 401; empty: there is none.

        The request is sent once more with it. Without `sure`, the 401 may mean something else, and
        the login does not end by it.
        """
        ...

    async def given_up(self, refused: str, challenge: Challenge) -> None:
        """The server refused the renewed token too: the login is over (A36)."""
        ...

    async def wants_scopes(self, challenge: Challenge) -> None:
        """The server answered 403 `insufficient_scope`: the next login asks for more."""
        ...

    def tell(self, learn: Callable[[Mapping[str, str]], None]) -> None:
        """Have each new secret told, by what it is called, before it is used: for maskers.

        `learn` is called from any thread.
        """
        ...


@dataclass(frozen=True)
class ConnectionSettings:
    """Everything that one connection needs, references already resolved.

    `url` may hold a query; with `unix` it is the address used over the socket at `socket_path`
    (U12). Time-outs are in seconds; None is the default of `servers.limits`, 0 lifts the limit.
    `remembered` is what worked last (`Connection.remembered`), tried first. `warnings` are
    sentences about the settings themselves, to be shown with what the connection finds.
    """

    name: str
    transport: TransportKind
    url: str = ""
    socket_path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 120.0
    connect_timeout: float = 30.0
    request_timeout: float | None = None
    tool_timeout: float | None = None
    limits: Limits = STANDARD
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_inflight: int = MAX_INFLIGHT_CALLS
    allow_stateless: bool = True  # U16
    reinit_on_expired_session: bool = True  # U17
    strict_initialized_ack: bool = False  # U18
    remembered: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    # Of an OAuth login; asked only where `headers` hold no Authorization.
    credentials: Credentials | None = field(default=None, compare=False)
    # Nothing authenticates the requests: a person's test looks for a login (P35, P36).
    looks_for_login: bool = False

    @property
    def call_cut(self) -> float | None:
        """Seconds that end any call whatever its progress: a request limit that somebody set."""
        return None if self.transport == "stdio" else self.request_timeout or None

    def call_limit(self, tool: str, timeout: float | None = None) -> TimeLimit:
        """How long a call of `tool` may take; `timeout` stands in for the server's own limit."""
        return rules.call_limit(
            tool,
            given=timeout,
            tool_timeout=self.tool_timeout,
            request_timeout=self.call_cut,
            profile=self.limits.call_seconds,
        )

    def __repr__(self) -> str:
        """Without addresses, headers, arguments and environment: they may hold secrets."""
        return f"ConnectionSettings(name={self.name!r}, transport={self.transport!r})"


@dataclass(frozen=True)
class Tool:
    """A tool as its server lists it; the hints are None where the server gives none."""

    name: str
    title: str = ""
    description: str = ""
    input_schema: dict[str, Any] = field(default_factory=dict)
    output_schema: dict[str, Any] | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    open_world: bool | None = None

    @cached_property
    def content_hash(self) -> str:
        """64 hexadecimal digits; equal exactly if everything that the server says is equal."""
        content = [
            self.name,
            self.title,
            self.description,
            self.input_schema,
            self.output_schema,
            self.read_only,
            self.destructive,
            self.open_world,
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class ToolList:
    """The tools that can be used, and one sentence for each thing that was left out or odd."""

    tools: list[Tool]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CallResult:
    """What a tool answered.

    `text` is the result as text, whether or not the call went well; `error` says why `ok` is
    False. `content` holds the raw parts, `structured` the structured content (None if absent).
    """

    ok: bool
    text: str
    structured: Any = None
    content: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    duration_ms: float = 0.0
    warnings: list[str] = field(default_factory=list)
    attempts: int = 1


class Observer(Protocol):
    """Told about the progress of a connection; must not block."""

    def step(self, label: str) -> None:
        """A new step began, for example `Connecting`."""
        ...

    def stderr(self, line: str) -> None:
        """The server wrote a line to its standard error, or noise to its standard output."""
        ...

    def notice(self, sentence: str) -> None:
        """Something that belongs on the record happened by itself: the session was renewed, a
        question was declined, a call is repeated, the tools have changed."""
        ...


@dataclass(frozen=True)
class Question:
    """What a server asks a person while it works (elicitation; input required).

    `schema` describes a flat form; `url`, where it is set, an address that the person should
    visit instead. All of it is the server's own text: untrusted.
    """

    message: str
    schema: dict[str, Any] = field(default_factory=dict)
    url: str = ""


@dataclass(frozen=True)
class Answer:
    """`content` goes with `accept` only."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


# Answers a server's question; called in the task of the connection, may take its time.
Asker = Callable[[Question], Awaitable[Answer]]


class StdioProcess(Protocol):
    """A started stdio server; `kill` ends its whole process tree and may be called twice."""

    @property
    def stdin(self) -> asyncio.StreamWriter: ...
    @property
    def stdout(self) -> asyncio.StreamReader: ...
    @property
    def stderr(self) -> asyncio.StreamReader: ...
    @property
    def verdict(self) -> str:
        """What it did against a limit, for which it was ended; empty where it was not."""
        ...

    async def wait(self) -> int: ...
    async def kill(self) -> None: ...


# Starts argv with exactly this environment. Raises `ServerError` or `OSError`.
Spawner = Callable[[Sequence[str], Mapping[str, str]], Awaitable[StdioProcess]]

# progress, total, message
ProgressCallback = Callable[[float, "float | None", "str | None"], Awaitable[None]]


class ServerError(Exception):
    """A server could not be used; the message is what a person reads.

    `hint` says what to do next, `stderr_tail` is the end of a stdio server's standard error,
    `exit_code` its exit code (negative: the signal) where it ended. `in_doubt`: the request was
    sent, and whether it was carried out is not known.
    """

    in_doubt = False

    def __init__(
        self,
        message: str,
        hint: str = "",
        stderr_tail: str = "",
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.stderr_tail = stderr_tail
        self.exit_code = exit_code


class ServerUnavailable(ServerError):
    """The server cannot be reached, does not start, or does not speak the protocol."""


class LoginRequired(ServerError):
    """The server wants credentials and there are none, or those of the login are over.

    `challenge` is what the server said of how to be let in, where it said anything.
    """

    challenge: Challenge | None = None


class MoreRightsRequired(LoginRequired):
    """The login lacks scopes for one request (403 `insufficient_scope`), which was not run.

    `scopes` are those that the server named, blank-separated.
    """

    def __init__(self, message: str, hint: str = "", *, scopes: str = "") -> None:
        super().__init__(message, hint)
        self.scopes = scopes


class InvalidArguments(ServerError):
    """The arguments do not match the tool's input schema or its limits; nothing was sent."""


class CallTimedOut(ServerError):
    """A call got no answer within its limit. It may have happened."""


class ConnectionLost(ServerError):
    """The connection ended while it was in use. A pending call may have happened."""
