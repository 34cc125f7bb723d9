"""`umpteenth mcp call`: one call of one tool, with what happens on the way on standard error."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.mcp_words import get_server
from umpteenth.cli.output import emit_json, fail, json_option
from umpteenth.cli.seconds import Seconds
from umpteenth.core.text import clean, read_json, with_full_stop

if TYPE_CHECKING:
    from servers.models import Server


@click.command()
@click.argument("name")
@click.argument("tool")
@click.argument("arguments", default="{}")
@click.option("--timeout", type=Seconds(min=0.1), help="Limit of the call in seconds.")
@json_option
def call(name: str, tool: str, arguments: str, timeout: float | None, as_json: bool) -> None:
    """Call a TOOL of a server with ARGUMENTS, a JSON object (- reads it from standard input).

    Exit status 1 where the tool reports an error. Progress and questions of the server appear on
    the terminal; without one, questions are answered with their defaults or declined.
    """
    values = _read_arguments(arguments)
    setup()
    result = _call(get_server(name), tool, values, timeout)
    if as_json:
        emit_json(result)
    elif result["text"] and result["text"] == result["error"]:
        pass  # said once, below
    elif result["text"]:
        click.echo(result["text"])
    elif result["structured"] is not None:
        emit_json(result["structured"])
    if not result["ok"]:
        if as_json:
            sys.exit(1)
        fail(result["error"] or "The tool reported an error without a word.")


def _read_arguments(text: str) -> dict[str, Any]:
    if text == "-":
        text = sys.stdin.read()
    try:
        value = read_json(text)
    except ValueError as error:
        raise click.UsageError(f"ARGUMENTS {error}.") from None
    if not isinstance(value, dict):
        raise click.UsageError('The arguments must be a JSON object such as {"message": "hi"}.')
    return value


def _call(
    server: Server, tool: str, arguments: dict[str, Any], timeout: float | None
) -> dict[str, Any]:
    """{ok, text, structured, error, duration_ms}; a server that cannot be used is an error."""
    import asyncio
    import time

    from secrets_vault.errors import SecretError
    from servers.calling import call_once
    from servers.mcp.types import ServerError
    from umpteenth.cli.asking import terminal_asker

    began = time.monotonic()
    ask = terminal_asker(server.name)
    line = ProgressLine()
    work = call_once(
        server,
        tool,
        arguments,
        timeout=timeout,
        ask=ask,
        on_progress=line.show if is_screen() else None,
        on_notice=line.note,
    )
    try:
        result = asyncio.run(work)
    except (SecretError, ServerError) as error:
        words, hint = str(error), getattr(error, "hint", "")
        return {
            "ok": False,
            "text": "",
            "structured": None,
            "error": f"{with_full_stop(words)} {hint}" if hint else words,
            "duration_ms": round((time.monotonic() - began) * 1000, 1),
        }
    finally:
        line.clear()
    for warning in result.warnings:
        click.echo(f"Warning: {warning}", err=True)
    return {
        "ok": result.ok,
        "text": result.text,
        "structured": result.structured,
        "error": result.error or None,
        "duration_ms": round(result.duration_ms, 1),
    }


def is_screen() -> bool:
    """Whether a line can be written anew."""
    return sys.stderr.isatty()


class ProgressLine:
    """One line of the terminal, on standard error, that each progress writes anew."""

    def __init__(self) -> None:
        self._shown = False

    async def show(self, progress: float, total: float | None, message: str | None) -> None:
        amount = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        words = f"{amount}: {' '.join(message.split())}" if message else amount
        width = max(shutil.get_terminal_size().columns - 1, 20)
        self._write(f"\r\x1b[K{clean(words, width)}")
        self._shown = True

    def note(self, sentence: str) -> None:
        """A sentence above the line."""
        self.clear()
        click.echo(f"Note: {sentence}", err=True)

    def clear(self) -> None:
        if self._shown:
            self._write("\r\x1b[K")
        self._shown = False

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
