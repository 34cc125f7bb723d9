"""Which scopes a login asks for. No Django here.

The operator's, else those of the server's challenge, else those of its document (RFC 9728), else
none; never all that the authorization server knows. What a call was refused for comes on top.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from servers.oauth.types import Advertised

MAX_SCOPES: Final = 200
# They become part of an address, and servers take about 8,000 characters of one.
MAX_CHARACTERS: Final = 4000
# RFC 6749, 3.3: no blank, quote or backslash.
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_OFFLINE: Final = "offline_access"


def scopes_to_request(
    advertised: Advertised, *, operator: str, wanted: str = ""
) -> tuple[str, ...]:
    """What is sent as `scope`; empty: the parameter is left out.

    `operator` are the scopes of the server's settings, which replace what it asks for (P58), and
    `wanted` those for the lack of which a call was refused. `offline_access`, which brings a
    refresh token, is added where the authorization server knows it and any scope is asked for.
    """
    scopes = read_scopes([*(operator.split() or _asked_for(advertised)), *wanted.split()])
    known = advertised.provider.scopes_supported or ()
    if scopes and _OFFLINE in known and _OFFLINE not in scopes:
        return (*scopes, _OFFLINE)
    return scopes


def _asked_for(advertised: Advertised) -> tuple[str, ...]:
    if advertised.challenge_scopes is not None:
        return advertised.challenge_scopes
    return advertised.resource_scopes or ()


def read_scopes(words: Iterable[str]) -> tuple[str, ...]:
    """Each of them once, in order, without what is no scope, and no more than a login can send."""
    found: dict[str, None] = {}
    characters = 0
    for word in words:
        if word in found or not is_scope(word):
            continue
        characters += len(word) + 1
        if characters > MAX_CHARACTERS or len(found) == MAX_SCOPES:
            break
        found[word] = None
    return tuple(found)


def is_scope(word: str) -> bool:
    return bool(_SCOPE.fullmatch(word))
