"""What a server may ask of us: sizes, counts and seconds, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_MESSAGE_BYTES: Final = 16 * MIB  # one line, one event, one decoded body
MAX_TOOLS: Final = 512
MAX_PAGES: Final = 100
MAX_DEFINITION_BYTES: Final = 8 * MIB  # names, descriptions and schemas of one server
MAX_TOOL_NAME: Final = 1000  # characters
MAX_TOOL_NAME_BYTES: Final = 2500  # what an index of Postgres holds beside a server's id
MAX_INSTRUCTIONS: Final = 64 * 1024  # characters
STDERR_TAIL_BYTES: Final = 8192
MAX_ERROR_TEXT: Final = 2000  # characters of a server's own words in an error

REQUEST_TIMEOUT: Final = 60.0
TOOL_TIMEOUT: Final = 120.0
# Progress renews a call's limit, but not for ever.
PROGRESS_FACTOR: Final = 10

# Name parts of tools that take long by nature (U46, U47).
SLOW_CLASSES: Final[tuple[tuple[float, tuple[str, ...]], ...]] = (
    (
        900.0,
        ("codebase", "deep", "research", "web_search", "graph_search", "graph_neighbors"),
    ),
    (300.0, ("image", "video", "visuali", "data_vis")),
)


@dataclass(frozen=True)
class Limits:
    """What one server may send and be sent (requirements, section 0; A37-A43).

    Sizes are in bytes of UTF-8. `depth` and `nodes` bound arguments and schemas: how deep values
    are nested, and how many there are. `call_seconds` stands in for a limit of calls that nobody
    set; None leaves the common rule.
    """

    tools: int = MAX_TOOLS
    tool_pages: int = MAX_PAGES
    definition_bytes: int = MAX_DEFINITION_BYTES
    message_bytes: int = MAX_MESSAGE_BYTES
    result_bytes: int = MAX_MESSAGE_BYTES
    schema_bytes: int = MAX_DEFINITION_BYTES
    argument_bytes: int = 4 * MIB
    depth: int = 64
    nodes: int = 100_000
    call_seconds: float | None = None


STANDARD: Final = Limits()
STRICT: Final = Limits(
    tools=64,
    tool_pages=20,
    message_bytes=256 * KIB,
    result_bytes=128 * KIB,
    schema_bytes=16 * KIB,
    argument_bytes=64 * KIB,
    depth=32,
    nodes=10_000,
    call_seconds=30.0,
)
PROFILES: Final = {"standard": STANDARD, "strict": STRICT}
MAX_INFLIGHT_CALLS: Final = 4  # of one server at once; others wait in order (U5)


@dataclass(frozen=True)
class RetryPolicy:
    """Of calls that a server asks to repeat (U49-U58). Waits are in milliseconds."""

    attempts: int = 3  # the first one counts; 1 switches retries off
    base_ms: int = 250
    max_ms: int = 4000


@dataclass(frozen=True)
class TimeLimit:
    """`seconds` is None without a limit; `option` names what set it."""

    seconds: float | None
    option: str


def call_limit(
    tool: str,
    *,
    given: float | None = None,
    tool_timeout: float | None = None,
    request_timeout: float | None = None,
    profile: float | None = None,
) -> TimeLimit:
    """How long one call of `tool` may take (U42-U48, A37).

    What the caller has `given` replaces a set `tool_timeout`, that the `profile`'s limit, and that
    the default and the slow classes; a set `request_timeout` cuts further, while one that nobody
    set does not. 0 means no limit.
    """
    if given is not None:
        limit = TimeLimit(given or None, "the limit given with this call")
    elif tool_timeout is not None:
        limit = TimeLimit(tool_timeout or None, "tool_timeout_secs")
    elif profile is not None:
        limit = TimeLimit(profile, "the limits profile")
    else:
        limit = TimeLimit(_default_seconds(tool), "the default of tool_timeout_secs")
    if request_timeout and (limit.seconds is None or request_timeout < limit.seconds):
        return TimeLimit(request_timeout, "request_timeout_secs")
    return limit


def _default_seconds(tool: str) -> float:
    name = tool.lower()
    for seconds, parts in SLOW_CLASSES:
        if any(part in name for part in parts):
            return seconds
    return TOOL_TIMEOUT


def request_limit(request_timeout: float | None) -> TimeLimit:
    """The limit of any request but a tool call; 0 lifts it (U43)."""
    seconds = REQUEST_TIMEOUT if request_timeout is None else request_timeout or None
    return TimeLimit(seconds, "request_timeout_secs")


def start_limit(start_timeout: float) -> TimeLimit:
    """How long a stdio server may take to its first answer, a cold `npx` included (C10)."""
    return TimeLimit(start_timeout or None, "start_timeout_secs")
