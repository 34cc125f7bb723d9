"""What commands print: JSON or a table on standard output, errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import click

# On every command that has something to tell a program.
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def emit_json(value: object, *, compact: bool = False) -> None:
    """Print one JSON document; `compact` puts it on one line (for lists of lines)."""
    text = json.dumps(value, ensure_ascii=False, indent=None if compact else 2, default=str)
    click.echo(text)


def emit_yaml(value: object) -> None:
    """Print one YAML document; texts of several lines, scripts say, as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
    shown = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    click.echo(shown, nl=False)


def fail(message: str, *, status: int = 1) -> NoReturn:
    """Print one sentence on standard error and end the command."""
    from umpteenth.core.masking import known_values

    click.echo(known_values().mask(message), err=True)
    sys.exit(status)


def read_file(file: str, limit: int) -> str:
    """The text of a file that was named (- is standard input); without it the command ends.

    A byte more than may be parsed is read, so that an endless file is refused like a large one.
    """
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as source:
            return source.read(limit + 1).decode("utf-8")
    except UnicodeDecodeError:
        fail(f"{file} is not text in UTF-8.")
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}.")


def is_terminal() -> bool:
    """Whether a person types what the command reads, so that questions can be asked."""
    return sys.stdin.isatty()


def table(rows: Iterable[Sequence[object]], headers: Sequence[str]) -> None:
    """Print rows in columns as wide as their longest cell."""
    cells = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def _cell(value: object) -> str:
    return "" if value is None else " ".join(str(value).split())
