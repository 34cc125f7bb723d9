"""docs/ump.md and README.md tell what `ump` does and where it ends, no more and no less."""

from __future__ import annotations

import re
import runpy

import pytest

from jobs import collect, effects, toolbox
from jobs.broker import protocol
from jobs.sandbox.files import UMP_SOURCE
from umpteenth.core.config import PROJECT_ROOT
from umpteenth.core.text import MAX_JSON_DEPTH

UMP = runpy.run_path(str(UMP_SOURCE))
PAGE = " ".join((PROJECT_ROOT / "docs" / "ump.md").read_text().split())
MIB = 1024 * 1024


def described(text: str) -> set[str]:
    """The commands that a text shows at the beginning of a line or of a row."""
    words = re.findall(r"(?m)^(?:\| `|  )?ump ((?:mcp|state|output)? ?[a-z]+)", text)
    return {" ".join(found.split()) for found in words} - {"help"}


@pytest.mark.parametrize("name", ["docs/ump.md", "README.md"])
def test_every_command_is_described(name: str) -> None:
    text = (PROJECT_ROOT / name).read_text()
    assert described(text) == set(UMP["COMMANDS"]) == described(UMP["HELP"])


@pytest.mark.parametrize(
    "words",
    [
        f"| a request | {protocol.MAX_REQUEST // MIB} MiB, {protocol.MAX_VALUES:,} values |",
        f"| {protocol.MAX_CONCURRENT}, and {protocol.MAX_WAITING} that wait |",
        f"| outputs | {protocol.MAX_OUTPUTS}, {protocol.MAX_OUTPUT_BYTES // MIB} MiB together",
        f"| steps | {protocol.MAX_STEPS:,} of {protocol.MAX_STEP_BYTES} bytes |",
        f"| summary | {protocol.MAX_SUMMARY_BYTES // 1024} KiB |",
        f"| reason of a failure | {protocol.MAX_FAIL_REASON:,} characters |",
        f"| {protocol.MAX_STATE_KEYS:,} keys of {protocol.MAX_STATE_KEY} characters, "
        f"{protocol.MAX_STATE_VALUE // MIB} MiB each, "
        f"{protocol.MAX_STATE_TOTAL // MIB} MiB together |",
        f"| {collect.MAX_FILES}, {collect.MAX_TOTAL // MIB} MiB together |",
        f"| JSON | {MAX_JSON_DEPTH} levels deep |",
        f"The first {toolbox.MAX_RECORDED:,} calls of a run are on its timeline",
        f"up to {toolbox.MAX_EFFECTS} more",
        f"the first {effects.MAX_ARGUMENTS} characters of the arguments",
        f"The first {effects.MAX_CALLS} are named",
    ],
)
def test_the_limits_are_those_of_the_code(words: str) -> None:
    """reference.md, section 2; P75, P76."""
    assert words in PAGE
