"""Rows of headers, variables and arguments as the page shows and sends them.

A stored value of a header or variable that is no reference is never sent to a browser. Its row
holds an empty field and a mark (`…_kept`) that says "as it was" (E07). Beside the mark stands a
keyed digest, by which an outdated form can tell whether somebody changed the value meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from django.http import QueryDict
from django.utils.crypto import salted_hmac

from servers.definition import Entry, refers

# How an empty argument is written, since an empty row means "no argument".
EMPTY_ARGUMENT = '""'


@dataclass
class Row:
    """One row; `value_error` and `name_error` stand under it."""

    name: str = ""
    value: str = ""
    kept: str = ""
    digest: str = ""
    name_error: str = ""
    value_error: str = ""


def stored_row(name: str, value: str) -> Row:
    """A row of a stored value: references as they are, anything else unseen."""
    if refers(value):
        return Row(name=name, value=value)
    return Row(name=name, kept=name, digest=value_digest(value))


def value_digest(value: str) -> str:
    """Tells whether two values are equal without telling anything else about them."""
    return salted_hmac("servers.forms.value", value).hexdigest()[:24]


def shown_argument(argument: str) -> str:
    return argument or EMPTY_ARGUMENT


def posted_arguments(data: QueryDict) -> list[Row]:
    return [Row(value=_lines(text)) for text in data.getlist("arg") if text.strip()]


def posted_rows(data: QueryDict, prefix: str) -> list[Row]:
    columns = (data.getlist(f"{prefix}_{part}") for part in ("name", "value", "kept", "digest"))
    rows = [
        Row(name=name.strip(), value=_lines(value), kept=kept, digest=digest)
        for name, value, kept, digest in zip_longest(*columns, fillvalue="")
    ]
    # A row without name and value was emptied or never filled: without script, that removes it.
    return [row for row in rows if row.name or row.value]


def entries(rows: list[Row]) -> tuple[Entry, ...]:
    return tuple(
        Entry(row.name, None if row.kept and not row.value else row.value, row.kept) for row in rows
    )


def padded(rows: list[Row], error: str = "") -> list[Row]:
    """With a blank row at the end to be filled; what is wrong with all of them stands there."""
    return [*rows, Row(value_error=error)]


def _lines(text: str) -> str:
    """Browsers send every line end of a text area as CR LF."""
    return text.replace("\r\n", "\n")
