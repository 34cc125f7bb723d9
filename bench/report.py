"""The figures as a Markdown table, with the machine they hold for."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("mcp", "django", "celery", "redis")
PROGRAMS = {"Node": "node", "bubblewrap": "bwrap", "Redis server": "redis-server"}


@dataclass(frozen=True)
class Row:
    """One figure. `value` is text with its unit; `aim` is empty where there is none."""

    what: str
    value: str
    aim: str
    detail: str


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def spread(seconds: Sequence[float]) -> str:
    return f"{min(seconds) * 1000:,.0f} to {max(seconds) * 1000:,.0f}"


def write(path: Path, rows: Sequence[Row], *, load: float, seconds: float) -> str:
    """Replace the file; the text that was written."""
    lines = ["# Bench", "", *_machine(load, seconds), ""]
    lines += ["| Figure | Measured | Aim | How it comes about |", "| --- | ---: | --- | --- |"]
    lines += [f"| {row.what} | {row.value} | {row.aim} | {row.detail} |" for row in rows]
    lines += ["", *_NOTES]
    text = "\n".join(lines) + "\n"
    path.write_text(text, encoding="utf-8")
    return text


_NOTES = [
    "All figures are medians of rounds in which both sides take turns, on the same servers:",
    "`server-everything`, by `node`, and for e and h the fake server of the tests, a process of",
    "its own. The bare SDK is `mcp.Client` in its handshake mode, in a process that has imported",
    "it already, without sandbox, record or script. A run's time goes from its claim, or from",
    "where it is said, to its last `tool.result` event; each of its calls is an `ump` process in",
    "the run's sandbox. e calls the toolbox of a run without a script, every call recorded; both",
    "sides are bound by one core at 32 calls at once. Other work on the machine lengthens all.",
]


def _machine(load: float, seconds: float) -> list[str]:
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    programs = ", ".join(f"{name} {_version(program)}" for name, program in PROGRAMS.items())
    return [
        f"Measured on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC in {seconds:.0f} s by `make bench`.",
        "",
        f"- Machine: {os.cpu_count()} cores ({_processor()}), load {load:.1f} at the start and "
        f"{os.getloadavg()[0]:.1f} at the end",
        f"- System: {platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"- Packages: {packages}",
        f"- Programs: {programs}",
    ]


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.machine()


def _version(program: str) -> str:
    """The first word of `--version` that holds a number."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "missing"
    words = done.stdout.replace("v=", "").split()
    return next((word.lstrip("v") for word in words if any(c.isdigit() for c in word)), "?")
