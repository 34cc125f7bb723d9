"""What names, values and scopes of secrets may look like; the same for pages and commands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from secrets_vault.errors import BadSecret
from secrets_vault.references import NAME_RULE, is_name
from umpteenth.core.text import clean

MAX_VALUE_BYTES = 64 * 1024
MAX_DESCRIPTION = 500
MAX_SCOPE_ENTRIES = 100

_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.:-]*[a-z0-9_])?")
_SCOPE_WORDS = {"allowed_hosts": "host", "allowed_servers": "server", "allowed_jobs": "job"}


def check_name(name: str) -> str:
    if not is_name(name):
        raise BadSecret("name", f"The name must be {NAME_RULE}.".replace("`", ""))
    return name


def check_value(value: str) -> tuple[str, list[str]]:
    """The value to keep and what the person should know about it (E01).

    A token that is pasted or piped often carries a line end, which would later break the header
    it goes into. Spaces and line ends around the value go; inside they stay.
    """
    trimmed = value.strip(" \t\r\n")
    if not trimmed:
        raise BadSecret("value", "The value is empty; enter one.")
    if "\0" in trimmed:
        raise BadSecret("value", "The value contains a NUL character; enter it as text.")
    try:
        size = len(trimmed.encode())
    except UnicodeEncodeError:
        raise BadSecret("value", "The value is not valid text (UTF-8); enter it again.") from None
    if size > MAX_VALUE_BYTES:
        raise BadSecret("value", f"The value has {size:,} bytes; at most 65,536 can be kept.")
    return trimmed, [_trimming_note(value, trimmed)] if trimmed != value else []


def _trimming_note(value: str, trimmed: str) -> str:
    if value.rstrip("\r\n") == trimmed:
        return "The line break at the end of the value was removed."
    return "Spaces and line breaks around the value were removed."


def check_description(text: str) -> str:
    text = clean(text).strip()
    if len(text) > MAX_DESCRIPTION:
        raise BadSecret(
            "description", f"The description has more than {MAX_DESCRIPTION} characters."
        )
    return text


def check_scope(field: str, entries: Sequence[str]) -> list[str]:
    """Entries without repetitions; hosts in small letters, optionally `*.` and a domain."""
    word = _SCOPE_WORDS[field]
    cleaned = [clean(entry).strip() for entry in entries]
    if field == "allowed_hosts":
        cleaned = [entry.lower().rstrip(".") for entry in cleaned]
    kept = list(dict.fromkeys(entry for entry in cleaned if entry))
    if len(kept) > MAX_SCOPE_ENTRIES:
        raise BadSecret(field, f"Name at most {MAX_SCOPE_ENTRIES} {word}s.")
    for entry in kept:
        if len(entry) > 253 or (field == "allowed_hosts" and not _HOST.fullmatch(entry)):
            raise BadSecret(
                field, f"“{clean(entry, 60)}” is no {word} name; write it like {_EXAMPLES[field]}."
            )
    return kept


_EXAMPLES = {
    "allowed_hosts": "api.example.org or *.example.org",
    "allowed_servers": "github",
    "allowed_jobs": "nightly digest",
}
