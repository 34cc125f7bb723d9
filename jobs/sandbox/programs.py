"""Which of the programs that scripts expect a sandbox on this machine has."""

from __future__ import annotations

import asyncio
import re

from jobs.sandbox import base as sandbox
from umpteenth.core import deadlines

# What people call the programs of the default environment; npx and uvx come with their like.
NAMES = {
    "python3": "Python",
    "node": "Node",
    "npm": "npm",
    "uv": "uv",
    "git": "git",
    "curl": "curl",
    "jq": "jq",
    "rg": "ripgrep",
}
_TIME = 30.0  # seconds that all of them together may take to name their versions
_MAX_ANSWER = 64 * 1024
_MARK = "\x1e"
# Only what a shell has itself: an image may hold little more.
_ASK = (
    'for name in "$@"; do if command -v "$name" >/dev/null 2>&1; then '
    r"""printf '\036%s\n' "$name"; "$name" --version 2>&1 </dev/null; fi; done"""
)


async def default_environment() -> list[tuple[str, str]]:
    """What the default environment has: names and versions, the version empty where it is missing.

    Asked inside of a sandbox, whichever way those are made here; that takes up to a second, so
    keep what it says. Nothing where no sandbox starts. Raises `SandboxError`.
    """
    if await asyncio.to_thread(sandbox.problem):
        return []
    spec = sandbox.SandboxSpec(party="agent", network=False)
    process = await sandbox.start(["/bin/sh", "-c", _ASK, "sh", *NAMES], spec)
    try:
        process.stdin.close()
        async with deadlines.timeout(_TIME):
            # A longer answer is nobody's version.
            said = await process.stdout.read(_MAX_ANSWER)
            while more := await process.stdout.read(_MAX_ANSWER):
                said = (said + more)[:_MAX_ANSWER]
    except TimeoutError:
        return []
    finally:
        await process.kill()
    return _versions(said.decode("utf-8", "replace"))


def _versions(said: str) -> list[tuple[str, str]]:
    """The first number after each name; `?` where a program is there and says none."""
    found = {}
    for part in said.split(_MARK)[1:]:
        name, _, words = part.partition("\n")
        number = re.search(r"\d+(?:\.\d+)+", words)
        found[name] = number.group() if number else "?"
    return [(shown, found.get(name, "")) for name, shown in NAMES.items()]
