#!/usr/bin/python3 -ISE
"""ump: how a run's script calls tools of MCP servers and keeps state, outputs and steps.

One file, standard library only, Python 3.8 and later. It speaks to the run's broker over a Unix
socket (UMP_SOCKET, with the token UMP_TOKEN): one JSON line there, one back. Exit codes: 0 fine,
1 the call failed, 2 wrong usage.

Started for every call, so it imports next to nothing: argparse alone would double its start.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import _socket as socket  # without the enums of `socket`, which cost 8 ms
except ImportError:
    import socket  # type: ignore[no-redef]

try:
    import _json  # without the rest of `json`, whose `re` and `enum` cost another 8 ms
except ImportError:
    _json = None  # type: ignore[assignment]

MAX_REQUEST = 8 * 1024 * 1024
JSON_SPACE = " \t\r\n"
FAILED = 1
USAGE = 2

HELP = """\
usage: ump COMMAND …

  ump mcp tools [SERVER] [--json]             list the tools that this job may call
  ump mcp call SERVER TOOL [JSON|-] [--json]  call a tool; print its result
  ump state get KEY                           print a value that the job keeps between runs
  ump state set KEY [VALUE|-]                 keep a value
  ump state list                              print the keys
  ump output set NAME [VALUE|-]               set an output of this run
  ump step NAME                               begin a step on the timeline
  ump summary [TEXT|-]                        say what the run did (text; Markdown comes later)
  ump fail [REASON|-]                         end as failed, with a reason
  ump connect HOST PORT                       join standard input and output to a host
  ump help [COMMAND]

A VALUE that is JSON keeps its type; anything else is a string. Without VALUE, TEXT or REASON,
or with -, it is read from standard input; a call's JSON only with -.
Files in /ump/outputs are kept with the run; its input is /ump/input.json.
Exit codes: 0 fine, 1 the call failed, 2 wrong usage.
"""


class Stop(Exception):
    """Ends the program with an exit code and a message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def main(argv: list[str]) -> int:
    try:
        return run(argv)
    except Stop as stop:
        complain(stop.message)
        return stop.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does.
        return 0


def run(argv: list[str]) -> int:
    if not argv or argv[0] in ("help", "-h", "--help"):
        show(help_for(argv[1:]))
        return 0 if argv else USAGE
    words = [argv[0]]
    if argv[0] in GROUPS:
        if len(argv) < 2 or argv[1] in ("-h", "--help"):
            show(help_for(words))
            return USAGE if len(argv) < 2 else 0
        words.append(argv[1])
    command = COMMANDS.get(" ".join(words))
    if command is None:
        raise Stop(USAGE, f"unknown command '{' '.join(words)}'; see: ump help")
    rest = argv[len(words) :]
    if rest and rest[0] in ("-h", "--help"):
        show(help_for(words))
        return 0
    return command(rest)


def help_for(words: list[str]) -> str:
    """The lines of the help that concern a command; all of it for none."""
    start = "  ump " + " ".join(words[:2])
    lines = [line for line in HELP.splitlines() if words and (line + " ").startswith(start + " ")]
    return "usage:\n" + "\n".join(lines) + "\n" if lines else HELP


def mcp_tools(arguments: list[str]) -> int:
    as_json, arguments = take_flag(arguments, "--json")
    expect("mcp tools [SERVER] [--json]", arguments, 0, 1)
    server = arguments[0] if arguments else None
    tools = ask("mcp_tools", {"server": server})
    if as_json:
        show(to_json(tools) + "\n")
        return 0
    for tool in tools:
        description = (tool.get("description") or tool.get("title") or "").strip()
        columns = [tool["name"], description.split("\n")[0]]
        if server is None:
            columns.insert(0, tool.get("server") or "")
        show("\t".join(columns).rstrip() + "\n")
    return 0


def mcp_call(arguments: list[str]) -> int:
    usage = "mcp call SERVER TOOL [JSON|-] [--json]"
    as_json, arguments = take_flag(arguments, "--json")
    expect(usage, arguments, 2, 3)
    text = arguments[2] if len(arguments) == 3 else "{}"
    if text == "-":
        text = read_input()
    try:
        values = parse(text)
    except ValueError as error:
        raise Stop(USAGE, f"the arguments of the tool are not JSON: {error}") from None
    if not isinstance(values, dict):
        raise Stop(USAGE, "the arguments of the tool must be a JSON object such as '{\"a\": 1}'")
    request = {"server": arguments[0], "tool": arguments[1], "arguments": values}
    result = ask("mcp_call", request)
    if as_json:
        show(to_json(result) + "\n")
        return 0 if result["ok"] else FAILED
    if not result["ok"]:
        raise Stop(FAILED, result["text"] or result["error"] or "the tool reports an error")
    text = result["text"]
    if not text and result["structured"] is not None:
        text = to_json(result["structured"])
    show(with_newline(text))
    return 0


def state_get(arguments: list[str]) -> int:
    expect("state get KEY", arguments, 1, 1)
    value = ask("state_get", {"key": arguments[0]})
    show(with_newline(value if isinstance(value, str) else to_json(value)))
    return 0


def state_set(arguments: list[str]) -> int:
    expect("state set KEY [VALUE|-]", arguments, 1, 2)
    ask("state_set", {"key": arguments[0], "value": typed(text_of(arguments[1:]))})
    return 0


def state_list(arguments: list[str]) -> int:
    expect("state list", arguments, 0, 0)
    for key in ask("state_list", {}):
        show(key + "\n")
    return 0


def output_set(arguments: list[str]) -> int:
    expect("output set NAME [VALUE|-]", arguments, 1, 2)
    ask("output_set", {"name": arguments[0], "value": typed(text_of(arguments[1:]))})
    return 0


def step(arguments: list[str]) -> int:
    expect("step NAME", arguments, 0, 1)
    ask("step", {"name": text_of(arguments)})
    return 0


def summary(arguments: list[str]) -> int:
    expect("summary [TEXT|-]", arguments, 0, 1)
    ask("summary", {"text": text_of(arguments)})
    return 0


def fail(arguments: list[str]) -> int:
    """Sets the run's reason; exits 1, so that a script under `set -e` ends with it."""
    expect("fail [REASON|-]", arguments, 0, 1)
    ask("fail", {"reason": text_of(arguments)})
    return FAILED


def connect(arguments: list[str]) -> int:
    """The program beside this one, which only a guarded sandbox has, takes its place."""
    expect("connect HOST PORT", arguments, 2, 2)
    host, port = arguments
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise Stop(USAGE, "PORT must be a number from 1 to 65535; usage: ump connect HOST PORT")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "proxy-connect")
    try:
        os.execv(program, [program, host, port])
    except FileNotFoundError:
        raise Stop(
            FAILED,
            "the job's network has no proxy to connect through: with No network nothing is "
            "reached, and with Unrestricted network programs connect by themselves",
        ) from None


GROUPS = ("mcp", "state", "output")
COMMANDS = {
    "mcp tools": mcp_tools,
    "mcp call": mcp_call,
    "state get": state_get,
    "state set": state_set,
    "state list": state_list,
    "output set": output_set,
    "step": step,
    "summary": summary,
    "fail": fail,
    "connect": connect,
}


def ask(command: str, arguments: dict[str, Any]) -> Any:
    """Send a command to the broker; its result. Raises `Stop` where it refuses."""
    token = os.environ.get("UMP_TOKEN")
    if not token:
        raise Stop(FAILED, "UMP_TOKEN is not set: ump works only inside a run")
    request = {"token": token, "command": command, "args": arguments}
    line = to_json(request, only_ascii=True).encode() + b"\n"
    if len(line) > MAX_REQUEST:
        raise Stop(USAGE, "the request is larger than 8 MiB")
    try:
        answer = read_json(exchange(line).decode())
    except ValueError:
        raise Stop(FAILED, "the run ended before it answered") from None
    if not answer["ok"]:
        raise Stop(answer.get("exit", FAILED), answer["error"])
    return answer["result"]


def exchange(line: bytes) -> bytes:
    path = os.environ.get("UMP_SOCKET") or "/ump/broker.sock"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        raise Stop(
            FAILED, f"the run's broker at {path} cannot be reached: {error.strerror}"
        ) from None
    chunks = []
    try:  # noqa: SIM105 (contextlib would cost another import)
        connection.sendall(line)
    except OSError:
        pass  # refused before it was read to its end; the reason can still be received
    try:
        while True:
            chunk = connection.recv(65536)
            if not chunk:
                break
            chunks.append(chunk)
    except OSError:
        pass  # what came so far may be the answer
    connection.close()
    return b"".join(chunks)


def take_flag(arguments: list[str], flag: str) -> tuple[bool, list[str]]:
    return flag in arguments, [argument for argument in arguments if argument != flag]


def expect(usage: str, arguments: list[str], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        what = "missing arguments" if len(arguments) < least else "too many arguments"
        raise Stop(USAGE, f"{what}; usage: ump {usage}")


def text_of(arguments: list[str]) -> str:
    """The argument, or standard input where it is missing or `-`."""
    if arguments and arguments[0] != "-":
        return arguments[0]
    return read_input().rstrip("\n")


def read_input() -> str:
    if sys.stdin is None:
        return ""
    data = sys.stdin.buffer.read(MAX_REQUEST + 1)
    if len(data) > MAX_REQUEST:
        raise Stop(USAGE, "standard input is larger than 8 MiB")
    return data.decode("utf-8", "replace")


def typed(text: str) -> Any:
    """JSON keeps its type; anything else is a string."""
    try:
        return parse(text)
    except ValueError:
        return text


def parse(text: str) -> Any:
    try:
        return read_json(text, parse_constant=refuse_constant, parse_float=finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def finite(number: str) -> float:
    value = float(number)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{number[:50]} is too large a number")
    return value


def read_json(text: str, *, parse_constant: Any = float, parse_float: Any = float) -> Any:
    """`json.loads`, by its C half alone where that works."""
    hooks = {"parse_constant": parse_constant, "parse_float": parse_float}
    settings = {**hooks, "parse_int": int, "object_hook": None, "object_pairs_hook": None}
    try:
        context: Any = type("Context", (), {**settings, "strict": True})
        scan = _json.make_scanner(context)
        value, end = scan(text, len(text) - len(text.lstrip(JSON_SPACE)))
        if not text[end:].strip(JSON_SPACE):
            return value
    except (AttributeError, TypeError, ValueError, StopIteration, SystemError):
        # No C half, another one, or no JSON: to say why not, it would need the rest of `json`.
        pass
    import json

    return json.loads(text, **hooks)


def to_json(value: Any, *, only_ascii: bool = False) -> str:
    """`json.dumps`, by its C half alone where that works."""
    try:
        quote = _json.encode_basestring_ascii if only_ascii else _json.encode_basestring
        nobody: Any = None  # for values that JSON does not know
        write = _json.make_encoder(None, nobody, quote, None, ": ", ", ", False, False, True)
        return "".join(write(value, 0))
    except (AttributeError, TypeError):
        import json

        return json.dumps(value, ensure_ascii=only_ascii)


def with_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def show(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def complain(message: str) -> None:
    sys.stderr.buffer.write(f"ump: {message.rstrip()}\n".encode("utf-8", "replace"))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Past the interpreter's own clean-up, which would only cost time.
    os._exit(code)
