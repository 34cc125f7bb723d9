"""What a server's settings may be: one place for the form, the command line and imports.

Nothing here imports Django. `check` returns sentences by field; the keys are `name`,
`description`, `transport`, `url`, `socket_path`, `command`, `args`, `args.<i>`,
`headers.<i>.name`, `headers.<i>.value`, `env.<i>.name`, `env.<i>.value`, `options.<name>`,
`policy.<part>`, `oauth.kind`, `oauth.client_id`, `oauth.client_secret` and `oauth.scopes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote_plus, urlsplit

from secrets_vault.errors import BadReference
from secrets_vault.references import find_names
from servers import options as catalogue
from servers import policy as policies
from servers.oauth import operator_client
from servers.oauth.operator_client import MACHINE as MACHINE
from servers.oauth.operator_client import PERSON as PERSON
from servers.oauth.operator_client import OAuthClientData as OAuthClientData
from servers.options import HTTP as HTTP
from servers.options import MAX_HEADER_NAME, OWN_HEADERS
from servers.options import OVER_HTTP as OVER_HTTP
from servers.options import STDIO as STDIO
from servers.options import UNIX as UNIX
from servers.policy import Policy
from umpteenth.core.text import clean

MAX_NAME = 64
MAX_DESCRIPTION = 500
MAX_COMMAND = 500
MAX_URL = 2000
MAX_QUERY = 4096
MAX_SOCKET_PATH = 107  # bytes that the kernel has room for, without the NUL at the end
MAX_ROWS = 100
MAX_ARGUMENT = 4096
MAX_ENTRY_NAME = MAX_HEADER_NAME
MAX_HEADER_VALUE = 8192
MAX_ENV_VALUE = 32 * 1024

# Not a dash first: on a command line that would be an option (A19).
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
# RFC 9110, section 5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Programs that start a package, which an argument names, with an example for each.
_RUNNERS = {"npx": "@modelcontextprotocol/server-memory", "uvx": "mcp-server-time"}
_HOST_CHARACTERS = re.compile(r"[^\x00-\x20\x7f<>\"{}|\\^`%/?#@]+")


@dataclass(frozen=True)
class Entry:
    """A header or a variable. A value of None keeps what is stored under the name `kept`."""

    name: str
    value: str | None
    kept: str = ""


@dataclass(frozen=True)
class ServerData:
    """A server as a person describes it. Fields of other transports are ignored.

    `url` may hold a query; `keep_query` keeps the stored one where `url` holds none. With a Unix
    socket, `url` is the address used over `socket_path` (U12). `options` are all that are set, as
    `servers.options.parse` gives them; an option that is not among them gets its default.
    `options`, `policy` and `oauth` of None keep what is stored.
    """

    name: str
    transport: str
    description: str = ""
    url: str = ""
    keep_query: bool = False
    headers: tuple[Entry, ...] = ()
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Entry, ...] = ()
    socket_path: str = ""
    options: Mapping[str, Any] | None = None
    policy: Policy | None = None
    oauth: OAuthClientData | None = None


Errors = dict[str, str]


def check(data: ServerData) -> Errors:
    """One sentence for each field that is at fault; empty if the data can be stored."""
    errors: Errors = {}
    if problem := name_problem(data.name):
        errors["name"] = problem
    if len(data.description) > MAX_DESCRIPTION:
        errors["description"] = f"Shorten the description to {MAX_DESCRIPTION} characters."
    if data.transport == HTTP:
        _check_http(data, errors)
    elif data.transport == UNIX:
        _check_unix(data, errors)
    elif data.transport == STDIO:
        _check_stdio(data, errors)
    else:
        errors["transport"] = "Choose HTTP, stdio or Unix socket."
        return errors
    if data.options is not None:
        errors |= _options_problems(data, data.options)
    if data.policy is not None:
        errors |= policies.check(data.policy)
    if data.oauth is not None and data.transport == HTTP:
        errors |= operator_client.check(data.oauth)
    return errors


def name_problem(name: str) -> str:
    """Why this is no name of a server; empty if it is one."""
    if not name:
        return "Give the server a name, for example github."
    if len(name) > MAX_NAME:
        return f"The name has {len(name)} characters; {MAX_NAME} are possible."
    if not _NAME.fullmatch(name):
        return "The name can hold only letters, digits, _ and -, and no - at first, like github."
    return ""


def split_query(url: str) -> tuple[str, str]:
    """The address up to the question mark, and the query after it."""
    address, _, query = url.strip().partition("?")
    return address, query


def url_problem(url: str) -> str:
    """Why this is no address of an HTTP server; empty if it is one."""
    address, query = split_query(url)
    if not address:
        return "Enter the address, for example https://api.githubcopilot.com/mcp/."
    if len(address) > MAX_URL or len(query) > MAX_QUERY:
        return f"The address is too long: {MAX_URL} characters, and {MAX_QUERY} for its query."
    if "#" in url:
        return "The address cannot hold a # part; leave it out."
    if "{{" in address:
        return "In an address, a secret can stand only after the question mark."
    odd = re.search(r"[\x00-\x20\x7f\\]", address) or re.search(r"[\x00-\x20\x7f]", _bare(query))
    if odd or not _can_be_shown(url):
        return "The address holds a space or a character that no address can hold."
    try:
        return _parts_problem(urlsplit(address)) or reference_problem(unquote_plus(query))
    except ValueError:
        return "This is no address; it looks like https://host/path."


def _is_utf8(text: str) -> bool:
    """A terminal hands over other bytes as lone surrogates (PEP 383), which nothing stores."""
    return re.search("[\ud800-\udfff]", text) is None


def _can_be_shown(text: str) -> bool:
    """Without control characters of any kind and without bytes that were no UTF-8 (C17)."""
    return clean(text) == text


def _bare(query: str) -> str:
    """The query without references, inside whose braces spaces are allowed."""
    return re.sub(r"\{\{.*?\}\}", "", query)


def _parts_problem(parts: SplitResult) -> str:
    if parts.scheme not in ("http", "https"):
        return "The address must begin with https:// or http://, for example https://host/path."
    if "@" in parts.netloc:
        return (
            "The address cannot hold a user name or password; "
            "put credentials into a header that refers to a secret."
        )
    host = parts.hostname or ""
    port = parts.port  # raises ValueError for what is no port
    if not host or port == 0 or not _is_host(host):
        return "The address has no usable host; it looks like https://host/path."
    return ""


def _is_host(host: str) -> bool:
    if ":" in host:  # IPv6; urlsplit has checked the brackets
        return True
    if not _HOST_CHARACTERS.fullmatch(host) or len(host) > 253:
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _check_http(data: ServerData, errors: Errors) -> None:
    if problem := url_problem(data.url):
        errors["url"] = problem
    _check_entries("headers", data.headers, errors, _header_name_problem, _header_value_problem)


def _check_unix(data: ServerData, errors: Errors) -> None:
    if problem := socket_path_problem(data.socket_path):
        errors["socket_path"] = problem
    if not data.url:
        errors["url"] = (
            "Enter the address that is used over the socket, for example http://localhost/mcp."
        )
    elif problem := url_problem(data.url):
        errors["url"] = problem
    _check_entries("headers", data.headers, errors, _header_name_problem, _header_value_problem)


def socket_path_problem(path: str) -> str:
    """Why no Unix socket can have this path; empty if one can (U12)."""
    if not path:
        return "Enter the path of the socket, for example /run/engine/mcp.sock."
    if re.search(r"[\x00-\x1f\x7f]", path) or not _can_be_shown(path):
        return "The path holds a character that no path can hold."
    if not path.startswith("/"):
        return "Write the whole path, beginning with /; ~ and variables are not replaced."
    if path.endswith("/"):
        return "This is a directory; name the socket in it."
    if (size := len(path.encode(errors="replace"))) > MAX_SOCKET_PATH:
        return f"The path has {size} bytes; a socket's path can have {MAX_SOCKET_PATH}."
    return ""


def _options_problems(data: ServerData, options: Mapping[str, Any]) -> Errors:
    errors = catalogue.check(options, data.transport)
    if errors or not options.get("per_actor"):
        return errors
    header = str(options.get("actor_header") or catalogue.DEFAULT_ACTOR_HEADER)
    if any(entry.name.lower() == header.lower() for entry in data.headers):
        # Two values of one header would be sent, and the server picks either (E15).
        errors["options.actor_header"] = (
            f"{header} stands among the headers already; leave it out there, "
            "or give the actor another header."
        )
    return errors


def _check_stdio(data: ServerData, errors: Errors) -> None:
    if problem := _command_problem(data.command):
        errors["command"] = problem
    if len(data.args) > MAX_ROWS:
        errors["args"] = f"There are {len(data.args)} arguments; {MAX_ROWS} are possible."
    elif not errors.get("command") and (problem := _package_problem(data)):
        errors["args"] = problem
    for index, argument in enumerate(data.args[:MAX_ROWS]):
        if problem := _argument_problem(argument):
            errors[f"args.{index}"] = problem
    _check_entries("env", data.env, errors, _variable_problem, _variable_value_problem)


def _check_entries(
    field: str,
    entries: tuple[Entry, ...],
    errors: Errors,
    name_problem: Callable[[str], str],
    value_problem: Callable[[str, str], str],
) -> None:
    if len(entries) > MAX_ROWS:
        errors[field] = f"There are {len(entries)} rows; {MAX_ROWS} are possible."
    seen: set[str] = set()
    for index, entry in enumerate(entries[:MAX_ROWS]):
        key = entry.name.lower() if field == "headers" else entry.name
        if key in seen:
            errors[f"{field}.{index}.name"] = f"{entry.name} stands here twice; keep one of them."
        elif problem := name_problem(entry.name):
            errors[f"{field}.{index}.name"] = problem
        what = entry.name.strip() or "this row"
        if entry.value is not None and (problem := value_problem(what, entry.value)):
            errors[f"{field}.{index}.value"] = problem
        seen.add(key)


def refers(text: str) -> bool:
    """Whether the text holds a whole reference to a secret."""
    try:
        return bool(find_names(text))
    except BadReference:
        return False


def reference_problem(text: str) -> str:
    """What is wrong with a reference in the text; empty if all are whole."""
    try:
        find_names(text)
    except BadReference as error:
        return str(error)
    return ""


def _header_name_problem(name: str) -> str:
    if not name:
        return "Name the header, for example Authorization."
    if len(name) > MAX_ENTRY_NAME or not _TOKEN.fullmatch(name):
        return "A header's name can hold only letters, digits and - _ . and the like."
    if name.lower() in OWN_HEADERS:
        return f"Umpteenth writes {name} itself; leave it out."
    return ""


def _header_value_problem(name: str, value: str) -> str:
    """E01: a line break must never reach the HTTP library, whose error would quote the value."""
    value = value.strip()
    if re.search(r"[\r\n]", value):
        return f"The value of {name} contains a line break; a header has only one line."
    if not is_header_value(value):
        return (
            f"The value of {name} contains a character that a header cannot hold; "
            "only visible characters of Latin-1 and blanks can be sent."
        )
    if len(value) > MAX_HEADER_VALUE:
        return f"The value of {name} is too long: {MAX_HEADER_VALUE} characters are possible."
    return reference_problem(value)


def is_header_value(value: str) -> bool:
    """Whether HTTP can carry it: visible characters of Latin-1, and blanks.

    RFC 9110, section 5.5, without the tab and the C1 control characters, which nobody means (E01).
    """
    return re.search(r"[^\x20-\x7e\xa0-\xff]", value) is None


def _variable_problem(name: str) -> str:
    if not name:
        return "Name the variable, for example BRAVE_API_KEY."
    if len(name) > MAX_ENTRY_NAME or not _VARIABLE.fullmatch(name):
        return "A variable's name can hold only letters, digits and _, and no digit at first."
    if name.startswith("LD_"):
        # The dynamic linker would obey it in the programs that build the server's sandbox.
        return f"{name} would change how programs are loaded; leave it out."
    return ""


def _variable_value_problem(name: str, value: str) -> str:
    if "\0" in value:
        return f"The value of {name} contains a NUL character, which no variable can hold."
    if not _is_utf8(value):
        return f"The value of {name} is not text in UTF-8."
    if len(value) > MAX_ENV_VALUE:
        return f"The value of {name} is too long: {MAX_ENV_VALUE} characters are possible."
    return reference_problem(value)


def _command_problem(command: str) -> str:
    if not command:
        return "Enter the program that starts the server, for example npx."
    if len(command) > MAX_COMMAND:
        return f"The command has {len(command)} characters; {MAX_COMMAND} are possible."
    odd = re.search(r"[\x00-\x1f\x7f]", command) or not _can_be_shown(command)
    if odd or command.startswith("-"):
        return "This is no program; enter its name or its path, for example npx."
    if " " in command and not command.startswith("/"):
        program = command.split()[0]
        return f"The command is the program alone ({program}); the rest are its arguments."
    if "{{" in command:
        return "A secret cannot stand in the command; use a variable of its environment."
    return ""


def _package_problem(data: ServerData) -> str:
    """npx and uvx without a package end at once, or wait for somebody at a keyboard."""
    program = data.command.rpartition("/")[2]
    example = _RUNNERS.get(program, "")
    if not example or any(arg and not arg.startswith("-") for arg in data.args):
        return ""
    return f"{program} needs a package to start: name it as an argument, for example {example}."


def _argument_problem(argument: str) -> str:
    if "\0" in argument:
        return "The argument contains a NUL character, which no argument can hold."
    if not _is_utf8(argument):
        return "The argument is not text in UTF-8, so that no page could show it."
    if len(argument.encode()) > MAX_ARGUMENT:
        return f"The argument is too long: {MAX_ARGUMENT} bytes are possible."
    if re.search(r"\{\{\s*secret:", argument):
        return "A secret cannot stand in an argument, where others can read it; use a variable."
    return ""


def query_pieces(query: str) -> Iterator[tuple[str, str, str]]:
    """The parts of a query as they stand: (name, `=` or nothing, value), none decoded."""
    for piece in query.split("&"):
        yield piece.partition("=")
