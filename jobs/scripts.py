"""Which program runs a job's script: bash, Python or Node, by its first line. No Django here."""

from __future__ import annotations

import re
import shlex

DEFAULT = ("/usr/bin/env", "bash")
_KNOWN = re.compile(r"(bash|sh|dash|python|python3(\.\d+)?|node|nodejs)")


class ScriptError(ValueError):
    """A script that cannot be run; one sentence for the person."""


def normalise(script: str) -> str:
    """Line ends as programs on this system want them; forms send CRLF."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.endswith("\n") or not text else text + "\n"


def interpreter(script: str) -> list[str]:
    """The command that runs the script, without the script's path. Raises `ScriptError`."""
    first = script.split("\n", 1)[0].strip()
    if not first.startswith("#!"):
        return list(DEFAULT)
    words = _words(first[2:])
    if words and words[0].rpartition("/")[2] == "env":
        words = words[1:]
        if words and words[0] == "-S":
            words = words[1:]
    program = words[0].rpartition("/")[2] if words else ""
    if not _KNOWN.fullmatch(program):
        raise ScriptError(
            f"The first line names {program or 'no program'!r}; a script is run by bash, "
            "python3 or node, for example: #!/usr/bin/env bash"
        )
    # Debian has no `python`.
    return ["/usr/bin/env", "python3" if program == "python" else program, *words[1:]]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise ScriptError("The first line of the script has an open quotation mark.") from None
