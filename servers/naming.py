"""Names of tools as models see them (P72). Everything else uses the raw names."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final

MAX_NAME: Final = 64  # the limit of OpenAI; Anthropic takes as many or more
_DIGITS: Final = 20
_READABLE: Final = MAX_NAME - _DIGITS - len("__")
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


def model_name(server: str, tool: str) -> str:
    """`<server>__<tool>__<hash>`: legal everywhere, and never the same for two pairs.

    The hash is one of the raw pair, so that the name is equal in every run and on every machine.
    """
    pair = json.dumps([server, tool], separators=(",", ":"))
    suffix = hashlib.sha256(pair.encode()).hexdigest()[:_DIGITS]
    return f"{_readable(server, tool)}__{suffix}"


def _readable(server: str, tool: str) -> str:
    """Both parts, shortened where they must be: models choose by the tool, so it keeps more."""
    room = _READABLE - len("__")
    server, tool = _FOREIGN.sub("_", server), _FOREIGN.sub("_", tool)
    server = server[: max(room - len(tool), room // 3)]
    return f"{server}__{tool[: room - len(server)]}"
