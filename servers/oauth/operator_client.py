"""The OAuth client that an operator enters for a server (P56-P58): what its fields may hold.

Nothing here imports Django. `check` returns sentences by field, as `servers.definition` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from secrets_vault.errors import BadReference
from secrets_vault.references import find_names
from servers.oauth.clients import is_key
from servers.oauth.scopes import is_scope

LoginKind = Literal["person", "machine"]
PERSON: Final = "person"
MACHINE: Final = "machine"

MAX_CLIENT_ID = 500
MAX_CLIENT_SECRET = 8192  # an RSA key of 4096 bits in PEM has some 3300 characters
MAX_SCOPES = 1000
MOST_SCOPES = 50

# RFC 6749, appendices A.1 and A.2: visible ASCII and blanks.
_VISIBLE = re.compile(r"[\x20-\x7e]*")
_NO_CLIENT = "A client secret needs the client ID that it belongs to."


@dataclass(frozen=True)
class OAuthClientData:
    """Who logs in, and as which client. A `secret` of None keeps what is stored.

    Without a client ID, Umpteenth makes itself known to the provider at the login (P54); `scopes`
    replace what the server asks for, empty keeps it so (P58). `kind` machine: the client logs in
    by itself, without a person (RFC 6749, 4.4).
    """

    kind: str = PERSON
    client_id: str = ""
    secret: str | None = field(default=None, repr=False)
    scopes: str = ""


def tidied(data: OAuthClientData) -> OAuthClientData:
    """Without the blanks that come along when people paste (E01)."""
    return replace(
        data,
        client_id=data.client_id.strip(),
        secret=data.secret if data.secret is None else data.secret.strip(),
        scopes=" ".join(data.scopes.split()),
    )


def check(data: OAuthClientData) -> dict[str, str]:
    """One sentence for each field that is at fault. Whether a kept secret is there, and still
    meant for this server, `servers.kept` knows."""
    problems = {
        "kind": _kind_problem(data),
        "client_id": _client_id_problem(data),
        "client_secret": _secret_problem(data.secret or ""),
        "scopes": _scopes_problem(data.scopes),
    }
    return {f"oauth.{name}": problem for name, problem in problems.items() if problem}


def _kind_problem(data: OAuthClientData) -> str:
    if data.kind not in (PERSON, MACHINE):
        return "Choose who logs in: a person, or the client by itself."
    return ""


def _client_id_problem(data: OAuthClientData) -> str:
    if not data.client_id:
        if data.kind == MACHINE:
            return "A client that logs in by itself needs a client ID; the provider gives it out."
        return _NO_CLIENT if data.secret else ""
    if len(data.client_id) > MAX_CLIENT_ID:
        return f"The client ID is too long: {MAX_CLIENT_ID} characters are possible."
    if not _VISIBLE.fullmatch(data.client_id):
        return "The client ID contains a character that no client ID can hold."
    if "{{" in data.client_id:
        return "A client ID is no secret: write it out, and refer to a secret below."
    return ""


def _secret_problem(secret: str) -> str:
    if len(secret) > MAX_CLIENT_SECRET:
        return f"The client secret is too long: {MAX_CLIENT_SECRET} characters are possible."
    # A key in PEM has lines; they are folded away before the rest is looked at.
    line = re.sub(r"\r?\n", "", secret) if is_key(secret) else secret
    if re.search(r"[\r\n]", line):
        return "The client secret contains a line break; only a private key in PEM has lines."
    if not _VISIBLE.fullmatch(line):
        return "The client secret contains a character that no client secret can hold."
    try:
        find_names(secret)
    except BadReference as error:
        return str(error)
    return ""


def _scopes_problem(scopes: str) -> str:
    if len(scopes) > MAX_SCOPES:
        return f"The scopes are too long: {MAX_SCOPES} characters are possible."
    named = scopes.split()
    if len(named) > MOST_SCOPES:
        return f"There are {len(named)} scopes; {MOST_SCOPES} are possible."
    for scope in named:
        if not is_scope(scope):
            return (
                "Scopes are separated by blanks and hold only visible characters of ASCII, "
                "without quotes and backslashes."
            )
        if scope.endswith(","):
            return "Separate scopes by blanks, not by commas."
    return ""
