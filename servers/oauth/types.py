"""The words of OAuth logins, as discovery finds them and as they are kept. No Django here.

RFC 6749 (grants), 7591 (registration), 8414 (metadata), 8707 (resource), 9207 (issuer), 9728
(protected resources), and MCP authorization in its revisions 2025-03-26 to 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, Self

from umpteenth.core.text import with_full_stop

# Who made the client, in the order of preference (P54-P57).
ClientKind = Literal["operator", "document", "registered"]
AuthMethod = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
CLIENT_NAME: Final = "Umpteenth"


def _known(cls: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass; what another version wrote besides is left out."""
    names = {item.name for item in fields(cls)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in raw.items()
        if name in names
    }


class _Stored:
    """Dataclasses of plain values that are kept as JSON."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        return cls(**_known(cls, raw))


@dataclass(frozen=True)
class Provider(_Stored):
    """An authorization server, as its metadata describes it (RFC 8414, 2). Endpoints are checked
    addresses; None in a list means that the document does not say."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    scopes_supported: tuple[str, ...] | None = None
    token_auth_methods: tuple[str, ...] | None = None
    token_auth_algorithms: tuple[str, ...] | None = None
    code_challenge_methods: tuple[str, ...] | None = None
    # authorization_response_iss_parameter_supported (RFC 9207, 3)
    sends_issuer: bool = False
    # client_id_metadata_document_supported
    takes_client_documents: bool = False
    # Where it was found; empty: the default endpoints of revision 2025-03-26.
    metadata_url: str = ""


@dataclass(frozen=True)
class Advertised:
    """What a server says of its logins."""

    provider: Provider
    # What is sent as `resource`, byte for byte (A04).
    resource: str
    # The document of RFC 9728; empty: there is none, the provider is the server's own origin.
    resource_metadata_url: str = ""
    # None: the challenge or the document names none.
    challenge_scopes: tuple[str, ...] | None = None
    resource_scopes: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Advertised:
        """Raises `KeyError` and `TypeError` for what is no such document."""
        values: dict[str, Any] = _known(cls, raw)
        return cls(**{**values, "provider": Provider.from_json(raw["provider"])})


@dataclass(frozen=True)
class Client(_Stored):
    """Us, as a provider knows us."""

    client_id: str
    kind: ClientKind
    # Of the token endpoint; what the registration's answer says wins (A15).
    method: AuthMethod = "none"
    # A key in PEM with `private_key_jwt`. For kind `operator` the reference is resolved anew each
    # time, so that it is empty where it is stored.
    secret: str = field(default="", repr=False)
    # Unix seconds; None: the secret does not end (RFC 7591, 3.2.1).
    secret_expires_at: float | None = None


@dataclass(frozen=True)
class Tokens(_Stored):
    """An answer of the token endpoint (RFC 6749, 5.1). Unix seconds; None: unknown (A23)."""

    access_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    expires_at: float | None = None
    # When it was answered: a fifth of the lifetime is how early it is refreshed at the latest.
    issued_at: float = 0.0
    # None: as asked for (RFC 6749, 5.1).
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LoginSecrets:
    """What of a login is encrypted, with all that a refresh and a revocation need."""

    tokens: Tokens
    provider: Provider
    client: Client
    resource: str
    scopes: tuple[str, ...] = ()  # as asked for
    # The client logs in by itself (RFC 6749, 4.4): the same request brings the next token.
    machine: bool = False

    @property
    def can_refresh(self) -> bool:
        """Whether a new access token comes without a person."""
        return self.machine or bool(self.tokens.refresh_token)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LoginSecrets:
        return cls(
            tokens=Tokens.from_json(raw["tokens"]),
            provider=Provider.from_json(raw["provider"]),
            client=Client.from_json(raw["client"]),
            resource=str(raw["resource"]),
            scopes=tuple(raw.get("scopes", ())),
            machine=bool(raw.get("machine")),
        )


class OAuthError(Exception):
    """A login did not work; the message is what a person reads, `hint` what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def words(self) -> str:
        """Both in one text, as a toast shows them."""
        return f"{with_full_stop(self.message)} {self.hint}".strip()


class DiscoveryFailed(OAuthError):
    """No way to log in was found. `tried` holds (URL, answer), and `advertised` tells whether the
    server said that there is one."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        tried: tuple[tuple[str, str], ...] = (),
        advertised: bool = False,
    ) -> None:
        super().__init__(message, hint)
        self.tried = tried
        self.advertised = advertised

    @property
    def in_full(self) -> str:
        """With a line for each address that was tried."""
        return "\n".join([self.message, *(f"{url}: {answer}" for url, answer in self.tried)])


@dataclass(frozen=True)
class Looked:
    """What the search for a login found. Neither: the server has no logins."""

    advertised: Advertised | None = None
    failure: DiscoveryFailed | None = None


class ProviderRefusal(OAuthError):
    """The provider said no in OAuth's own words (RFC 6749, 4.1.2.1 and 5.2); cleaned, bounded."""

    def __init__(
        self, message: str, hint: str = "", *, error: str = "", status: int | None = None
    ) -> None:
        super().__init__(message, hint)
        self.error = error
        self.status = status


class ProviderUnreachable(OAuthError):
    """No usable answer came: the network, a busy provider, or no OAuth document. Perhaps later."""


class ClientNeeded(OAuthError):
    """P55: only an operator's Client ID helps."""
