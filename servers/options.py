"""Options of single servers: names, defaults, ranges and what they mean, in one place.

The Advanced part of the form, `--set` on the command line, imports and the server's sheet all
read this catalogue. Nothing here imports Django. `Server.options` holds what differs from the
defaults; `read` makes it typed. Sources are the requirements' numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from servers.limits import (
    MAX_INFLIGHT_CALLS,
    MIB,
    PROFILES,
    REQUEST_TIMEOUT,
    TOOL_TIMEOUT,
    Limits,
    RetryPolicy,
)

Kind = Literal["switch", "seconds", "milliseconds", "count", "bytes", "choice", "text"]

HTTP, STDIO, UNIX = "http", "stdio", "unix"
EVERYWHERE: Final = (HTTP, STDIO, UNIX)
OVER_HTTP: Final = (HTTP, UNIX)
DEFAULT_ACTOR_HEADER: Final = "x-ugent-actor"
DAY: Final = 86_400
MAX_HEADER_NAME: Final = 200

# RFC 9110, section 5.6.2.
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
# The connection itself writes these; a second value would break it.
OWN_HEADERS: Final = frozenset(
    {
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "mcp-protocol-version",
        "mcp-session-id",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# What a message says in these wins over a person's value, so that no actor would be named.
_NO_ACTOR_HEADERS: Final = OWN_HEADERS | {
    "accept",
    "accept-encoding",
    "authorization",
    "cache-control",
    "last-event-id",
    "mcp-method",
    "mcp-name",
}
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Option:
    """One option. `default` None: another rule decides, which `unset` tells in words."""

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    unset: str = ""
    transports: tuple[str, ...] = EVERYWHERE
    minimum: float = 0
    maximum: float = DAY
    choices: tuple[str, ...] = ()
    group: str = "Time"


class OptionError(ValueError):
    """A value that cannot be used; the message is a sentence that names the option."""


_LIMITS_GROUP: Final = "Limits"
_BY_PROFILE: Final = "the profile's"

CATALOGUE: Final[tuple[Option, ...]] = (
    Option(
        "start_timeout_secs",
        "seconds",
        "How long the server may take to its first answer, downloads included. 0: no limit.",
        120.0,
        transports=(STDIO,),
    ),
    Option(
        "connect_timeout_secs",
        "seconds",
        "How long opening the TCP connection may take. 0: no limit.",
        30.0,
        transports=(HTTP,),
    ),
    Option(
        "request_timeout_secs",
        "seconds",
        "Limit of one whole HTTP request. Where it is set it cuts tool calls too. 0: no limit, "
        "so that a server that stalls can hold a request for ever.",
        unset=f"{REQUEST_TIMEOUT:g}, tool calls excepted",
        transports=(HTTP,),
    ),
    Option(
        "tool_timeout_secs",
        "seconds",
        "Limit of one tool call, for all tools of the server, the slow ones included. "
        "0: no limit but the run's.",
        unset=f"{TOOL_TIMEOUT:g}, 300 or 900 by the tool's name",
    ),
    Option(
        "max_inflight_calls",
        "count",
        "How many calls the server gets at once, from all runs together; others wait in order.",
        MAX_INFLIGHT_CALLS,
        minimum=1,
        maximum=256,
        group="Calls",
    ),
    Option(
        "tool_call_max_attempts",
        "count",
        "How often a read-only call is sent in all when the server asks to repeat it. "
        "1: never again.",
        RetryPolicy().attempts,
        minimum=1,
        maximum=10,
        group="Calls",
    ),
    Option(
        "tool_call_retry_base_ms",
        "milliseconds",
        "The wait before the second attempt; it doubles from there, and chance shortens it.",
        RetryPolicy().base_ms,
        minimum=1,
        maximum=60_000,
        group="Calls",
    ),
    Option(
        "tool_call_retry_max_ms",
        "milliseconds",
        "The longest wait between two attempts.",
        RetryPolicy().max_ms,
        minimum=1,
        maximum=600_000,
        group="Calls",
    ),
    Option(
        "allow_stateless",
        "switch",
        "Accept a server that gives no session id.",
        True,
        transports=OVER_HTTP,
        group="Protocol",
    ),
    Option(
        "reinit_on_expired_session",
        "switch",
        "Open a new session when the server has forgotten ours (404).",
        True,
        transports=OVER_HTTP,
        group="Protocol",
    ),
    Option(
        "initialized_ack_mode",
        "choice",
        "What counts as an answer to `initialized`: lenient takes any success, strict only the "
        "202 or 204 of the specification.",
        "lenient",
        transports=OVER_HTTP,
        choices=("lenient", "strict"),
        group="Protocol",
    ),
    Option(
        "token_ref",
        "text",
        "A secret as @NAME that is sent as bearer token. An Authorization header wins over it.",
        "",
        transports=OVER_HTTP,
        group="Credentials",
    ),
    Option(
        "per_actor",
        "switch",
        "Give each person who starts a run a session of their own, named in the actor header.",
        False,
        transports=OVER_HTTP,
        group="People",
    ),
    Option(
        "actor_header",
        "text",
        "The header that names the person.",
        DEFAULT_ACTOR_HEADER,
        transports=OVER_HTTP,
        group="People",
    ),
    Option(
        "evidence_source",
        "switch",
        "Let agents cite what its tools list. Only for servers that you trust: anything it lists "
        "becomes citable.",
        False,
        group="People",
    ),
    Option(
        "limits_profile",
        "choice",
        "standard is generous; strict suits servers of strangers.",
        "standard",
        choices=tuple(PROFILES),
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_tools",
        "count",
        "Tools that are listed; the rest is left out.",
        unset=_BY_PROFILE,
        minimum=1,
        maximum=10_000,
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_tool_pages",
        "count",
        "Pages of tools that are read.",
        unset=_BY_PROFILE,
        minimum=1,
        maximum=10_000,
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_definition_bytes",
        "bytes",
        "Names, descriptions and schemas of all tools together.",
        unset=_BY_PROFILE,
        minimum=1024,
        maximum=64 * MIB,
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_message_bytes",
        "bytes",
        "One message of the server, after decompression.",
        unset=_BY_PROFILE,
        minimum=1024,
        maximum=64 * MIB,
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_result_bytes",
        "bytes",
        "The result of one call.",
        unset=_BY_PROFILE,
        minimum=1024,
        maximum=64 * MIB,
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_schema_bytes",
        "bytes",
        "One schema of one tool.",
        unset=_BY_PROFILE,
        minimum=256,
        maximum=64 * MIB,
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_argument_bytes",
        "bytes",
        "The arguments of one call.",
        unset=_BY_PROFILE,
        minimum=256,
        maximum=64 * MIB,
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_depth",
        "count",
        "How deep arguments and schemas may be nested.",
        unset=_BY_PROFILE,
        minimum=1,
        maximum=512,
        group=_LIMITS_GROUP,
    ),
    Option(
        "max_nodes",
        "count",
        "How many values arguments and schemas may hold.",
        unset=_BY_PROFILE,
        minimum=1,
        maximum=10_000_000,
        group=_LIMITS_GROUP,
    ),
)
BY_NAME: Final = {option.name: option for option in CATALOGUE}
# They matter to calls and runs alone: what a test has found stays true when they change.
NOT_TESTED: Final = frozenset(
    {
        "tool_timeout_secs",
        "max_inflight_calls",
        "tool_call_max_attempts",
        "tool_call_retry_base_ms",
        "tool_call_retry_max_ms",
        "evidence_source",
        "max_result_bytes",
        "max_argument_bytes",
    }
)

# Where the single limits go.
LIMIT_FIELDS: Final = {
    "max_tools": "tools",
    "max_tool_pages": "tool_pages",
    "max_definition_bytes": "definition_bytes",
    "max_message_bytes": "message_bytes",
    "max_result_bytes": "result_bytes",
    "max_schema_bytes": "schema_bytes",
    "max_argument_bytes": "argument_bytes",
    "max_depth": "depth",
    "max_nodes": "nodes",
}


@dataclass(frozen=True)
class ServerOptions:
    """Typed options of one server; attribute names are the options' names."""

    start_timeout_secs: float = 120.0
    connect_timeout_secs: float = 30.0
    request_timeout_secs: float | None = None
    tool_timeout_secs: float | None = None
    max_inflight_calls: int = MAX_INFLIGHT_CALLS
    tool_call_max_attempts: int = RetryPolicy().attempts
    tool_call_retry_base_ms: int = RetryPolicy().base_ms
    tool_call_retry_max_ms: int = RetryPolicy().max_ms
    allow_stateless: bool = True
    reinit_on_expired_session: bool = True
    initialized_ack_mode: str = "lenient"
    token_ref: str = ""
    per_actor: bool = False
    actor_header: str = DEFAULT_ACTOR_HEADER
    evidence_source: bool = False
    limits_profile: str = "standard"
    limits: Limits = field(default_factory=Limits)

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(
            self.tool_call_max_attempts,
            self.tool_call_retry_base_ms,
            self.tool_call_retry_max_ms,
        )

    @property
    def token_name(self) -> str:
        """The secret that `token_ref` names, without its @."""
        return self.token_ref.removeprefix("@")

    @property
    def call_timeout(self) -> float | None:
        """Seconds that stand in for the common rule of tool calls; None leaves it (U44, A37)."""
        if self.tool_timeout_secs is None:
            return self.limits.call_seconds
        return self.tool_timeout_secs


def parse(name: str, text: str) -> Any:
    """The value of an option as people write it. Raises `OptionError`."""
    option = BY_NAME.get(name)
    if option is None:
        known = ", ".join(BY_NAME)
        raise OptionError(f"There is no option {name}. The options are: {known}.")
    text = text.strip()
    if option.kind == "switch":
        return _switch(option, text)
    if option.kind == "choice":
        if text not in option.choices:
            raise OptionError(f"{name} must be {' or '.join(option.choices)}, not {text[:50]!r}.")
        return text
    if option.kind == "text":
        return _text(option, text)
    return _number(option, text)


def _switch(option: Option, text: str) -> bool:
    if text.lower() in _YES:
        return True
    if text.lower() in _NO:
        return False
    raise OptionError(f"{option.name} must be true or false, not {text[:50]!r}.")


def _text(option: Option, text: str) -> str:
    if option.name == "token_ref" and text:
        if not text.startswith("@") or not _SECRET_NAME.fullmatch(text[1:]):
            # Never quoted: people paste the token itself here (U30).
            raise OptionError(
                "token_ref must name a secret as @NAME, not hold the token itself; "
                "create the secret first."
            )
        return text
    if option.name == "actor_header":
        if not _TOKEN.fullmatch(text) or len(text) > MAX_HEADER_NAME:
            raise OptionError(f"actor_header must be a header's name, not {text[:50]!r}.")
        if text.lower() in _NO_ACTOR_HEADERS:
            raise OptionError(f"actor_header cannot be {text}, which has another use.")
    return text


def _number(option: Option, text: str) -> float | int:
    whole = option.kind != "seconds"
    try:
        value: float | int = int(text) if whole else float(text)
    except ValueError:
        raise OptionError(_range_words(option, text)) from None
    # Not true for NaN either.
    if not option.minimum <= value <= option.maximum:
        raise OptionError(_range_words(option, text))
    return value


def _range_words(option: Option, text: str) -> str:
    unit = {"seconds": " seconds", "milliseconds": " milliseconds", "bytes": " bytes"}
    what = "a number" if option.kind == "seconds" else "a whole number"
    return (
        f"{option.name} must be {what} from {option.minimum:,.0f} to {option.maximum:,.0f}"
        f"{unit.get(option.kind, '')}, not {text[:50]!r}."
    )


def check(options: Mapping[str, Any], transport: str) -> dict[str, str]:
    """One sentence for each option at fault, by `options.<name>`; values as `parse` gives them."""
    errors: dict[str, str] = {}
    options = {name: value for name, value in options.items() if value is not None}
    for name, value in options.items():
        try:
            parse(name, _written(value))
        except OptionError as error:
            errors[f"options.{name}"] = str(error)
            continue
        # U48's neighbour: a stdio server's start limit may come under the other name.
        also = {STDIO} if name == "connect_timeout_secs" else set()
        if transport not in {*BY_NAME[name].transports, *also}:
            kinds = " and ".join(BY_NAME[name].transports)
            errors[f"options.{name}"] = f"{name} is for {kinds} servers only; leave it out."
    base, most = options.get("tool_call_retry_base_ms"), options.get("tool_call_retry_max_ms")
    if not errors and (base or RetryPolicy().base_ms) > (most or RetryPolicy().max_ms):
        errors["options.tool_call_retry_base_ms"] = (
            "tool_call_retry_base_ms must not be larger than tool_call_retry_max_ms."
        )
    return errors


def typed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Values that `check` has passed, as `parse` gives them; None is left out."""
    return {
        name: parse(name, _written(value)) for name, value in options.items() if value is not None
    }


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def without_defaults(options: Mapping[str, Any], transport: str) -> dict[str, Any]:
    """What is stored: known options of this transport that differ from their defaults."""
    kept: dict[str, Any] = {}
    for name, value in options.items():
        option = BY_NAME.get(name)
        if option is None or value is None or value == option.default:
            continue
        if transport == STDIO and name == "connect_timeout_secs":
            kept.setdefault("start_timeout_secs", float(value))
        elif transport in option.transports:
            kept[name] = value
    return kept


def read(options: Mapping[str, Any]) -> ServerOptions:
    """Stored options as a typed value; what an older version stored and nobody knows is ignored."""
    names = {item.name for item in fields(ServerOptions)} - {"limits"}
    plain = {name: value for name, value in options.items() if name in names}
    profile = PROFILES.get(str(options.get("limits_profile", "")), Limits())
    single = {LIMIT_FIELDS[name]: value for name, value in options.items() if name in LIMIT_FIELDS}
    return ServerOptions(**plain, limits=replace(profile, **single))
