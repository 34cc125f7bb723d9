"""The answer that a browser brings back from the provider (RFC 6749, 4.1.2). No Django here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from servers.oauth.types import OAuthError, Provider, ProviderRefusal
from umpteenth.core.http import shown_host
from umpteenth.core.text import clean, with_full_stop

MAX_ERROR: Final = 60
MAX_WORDS: Final = 300
_HINTS: Final = {
    "access_denied": "Start the login again, and approve it there.",
    "invalid_scope": "Correct the scopes in the settings of the server, part OAuth client.",
    "unauthorized_client": "Look at what the provider allows this client to do.",
    "server_error": "Try again later.",
    "temporarily_unavailable": "Try again later.",
}


@dataclass(frozen=True)
class Answer:
    """Its parameters, as anybody may have written them. `iss` None: there was none."""

    state: str
    code: str = field(default="", repr=False)
    error: str = ""
    description: str = ""
    iss: str | None = None

    @classmethod
    def read(cls, params: Mapping[str, Sequence[str]]) -> Self:
        """Raises `OAuthError` for what no provider sends (I07)."""
        names = ("state", "code", "error", "error_description", "iss")
        given = {name: list(params.get(name, ())) for name in names}
        twice = [name for name, values in given.items() if len(values) > 1]
        if twice:  # RFC 6749, 3.1
            raise _malformed(f"names {twice[0]} twice")
        one = {name: values[0] for name, values in given.items() if values}
        if not one.get("state"):
            raise _malformed("names no login: its state is missing")
        if bool(one.get("code")) == bool(one.get("error")):
            both = "both a code and an error" if one.get("code") else "neither a code nor an error"
            raise _malformed(f"holds {both}")
        return cls(
            state=one["state"],
            code=one.get("code", ""),
            error=clean(one.get("error", "").strip(), MAX_ERROR),
            description=clean(one.get("error_description", "").strip(), MAX_WORDS),
            iss=one.get("iss"),
        )

    def raise_error(self, provider: Provider) -> None:
        """Raises `ProviderRefusal` in the provider's words, where it refused."""
        if not self.error:
            return
        host = shown_host(provider.authorization_endpoint) or provider.issuer
        said = f": {with_full_stop(self.description)}" if self.description else "."
        what = f"The login was refused ({self.error}) by"
        if self.error == "access_denied":
            what = "The login was not approved at"
        raise ProviderRefusal(f"{what} {host}{said}", _HINTS.get(self.error, ""), error=self.error)


def _malformed(what: str) -> OAuthError:
    return OAuthError(f"The answer of the login {what}.", "Start the login again.")
