"""Reads what a refusal says of how to be let in (RFC 9110, 11.6.1; RFC 6750, 3; RFC 9728, 5.1).

A header may hold several challenges, several headers may come, and commas part both challenges
and their parameters. Servers also leave out quotes and commas, so both are read where no other
meaning is possible. No Django here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from servers.mcp.types import Challenge
from umpteenth.core.text import clean

MAX_LINES: Final = 20
MAX_LINE: Final = 16 * 1024  # characters
MAX_SCHEMES: Final = 10
MAX_PARAMETERS: Final = 100
MAX_URL: Final = 2000
MAX_SCOPE: Final = 4000
MAX_ERROR: Final = 100
MAX_DESCRIPTION: Final = 500

_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_GAP: Final = re.compile(r"[\s,]+")
_NAME: Final = re.compile(rf"({_TOKEN})\s*=\s*")
# Instead of parameters; comes right after the scheme.
_TOKEN68: Final = re.compile(r"\s+[A-Za-z0-9\-._~+/]+=*\s*(?:,|$)")
_SCHEME: Final = re.compile(_TOKEN)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)(?:"|\\?$)', re.DOTALL)
# Addresses come without their quotes, too; they hold signs that no token may hold.
_BARE: Final = re.compile(r"[^\s,]*")
_PAIR: Final = re.compile(r"\\(.)", re.DOTALL)

_Found = tuple[str, dict[str, str]]  # a scheme in lower case, and its parameters


def parse_challenges(header_lines: Sequence[str], status: int) -> Challenge | None:
    """What the `WWW-Authenticate` lines of one answer say to a client with bearer tokens.

    Among several bearer challenges the one that says most counts. One of another scheme counts
    where it names `resource_metadata`, which any scheme may (RFC 9728, 5.1); else only the names
    of the schemes are kept. None: there is no challenge at all.
    """
    found: list[_Found] = []
    for line in header_lines[:MAX_LINES]:
        found += _challenges(line[:MAX_LINE])
    bearers = [values for scheme, values in found if scheme == "bearer"]
    others = [values for _, values in found if values.get("resource_metadata")]
    schemes = tuple(dict.fromkeys(scheme for scheme, _ in found if scheme))
    if not schemes and not others:
        return None
    return _read(max(bearers or others or [{}], key=_weight), status, schemes)


def _challenges(line: str) -> Iterator[_Found]:
    values: dict[str, str] = {}
    current: _Found = ("", values)
    place = 0
    while place < len(line):
        if gap := _GAP.match(line, place):
            place = gap.end()
        elif name := _NAME.match(line, place):
            value, place = _value(line, name.end())
            if len(values) < MAX_PARAMETERS:
                # A parameter counts once (RFC 9110, 11.2): the first.
                values.setdefault(name[1].lower(), value)
        elif scheme := _SCHEME.match(line, place):
            yield current
            values = {}
            current = (scheme[0].lower(), values)
            token68 = _TOKEN68.match(line, scheme.end())
            place = (token68 or scheme).end()
        else:
            place += 1
    yield current


def _value(line: str, place: int) -> tuple[str, int]:
    if quoted := _QUOTED.match(line, place):
        return _PAIR.sub(r"\1", quoted[1]), quoted.end()
    bare = _BARE.match(line, place)
    assert bare is not None, "the pattern takes nothing, too"
    return bare[0], bare.end()


def _weight(values: Mapping[str, str]) -> tuple[bool, bool, bool]:
    return "resource_metadata" in values, "scope" in values, "error" in values


def _read(values: Mapping[str, str], status: int, schemes: tuple[str, ...]) -> Challenge:
    pointer = values.get("resource_metadata", "").strip()
    scope = values.get("scope")
    return Challenge(
        status=status,
        # A part of an address is another address.
        resource_metadata=pointer if len(pointer) <= MAX_URL else "",
        scope=None if scope is None else clean(" ".join(scope.split()), MAX_SCOPE),
        error=clean(values.get("error", ""), MAX_ERROR),
        error_description=clean(values.get("error_description", ""), MAX_DESCRIPTION),
        schemes=schemes[:MAX_SCHEMES],
    )
