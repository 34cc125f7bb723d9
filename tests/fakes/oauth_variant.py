"""How a fake provider and the server that it protects differ from well-behaved ones.

Texts may hold {server} and {provider} (origins without a slash), {url} (the MCP endpoint),
{issuer}, {resource} and {pointer} (the address of the document of RFC 9728 that is pointed to).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakes.mcp_http import Reply, Request
from tests.fakes.mcp_server import Behaviour

# A field of an answer that is left out.
OMIT: Final = object()

Answer = Reply | Callable[[Request], "Awaitable[Reply | None] | Reply | None"]

# Where metadata of the provider can be, with the issuer's path inserted or appended (A07).
PLACES: Final = {
    "oauth-inserted": "/.well-known/oauth-authorization-server{path}",
    "oidc-inserted": "/.well-known/openid-configuration{path}",
    "oidc-appended": "{path}/.well-known/openid-configuration",
    "oauth-appended": "{path}/.well-known/oauth-authorization-server",
}
# Where the document of RFC 9728 can be.
RESOURCE_PLACES: Final = {
    "path": "/.well-known/oauth-protected-resource/mcp",
    "root": "/.well-known/oauth-protected-resource",
    "elsewhere": "/about/logins.json",
}


@dataclass
class Variant:
    # --- Any address
    # Path (without query, on either origin) to what is answered there, in the fake's stead: a
    # reply, or a function of the request, async or not, whose None lets the fake answer.
    replies: Mapping[str, Answer] = field(default_factory=dict)
    # What unknown addresses answer (A08).
    missing: Reply = field(default_factory=lambda: Reply(404, {"content-type": "text/plain"}))

    # --- The MCP server
    behaviour: Behaviour = field(default_factory=Behaviour)
    answer: str = "json"  # or "sse"
    # It serves without a login too, whatever it publishes.
    lets_in: bool = False
    refusal_status: int = 401
    # WWW-Authenticate as it is sent; None: Bearer with pointer and scope below; "": no such header.
    challenge: str | None = None
    # Which of RESOURCE_PLACES the challenge points to; "": no pointer.
    pointer: str = "path"
    challenge_scope: str | None = None
    # It takes no token, however fresh (A36).
    refuses_every_token: bool = False
    # Tool -> scopes without which its call is answered with 403 insufficient_scope.
    tool_scopes: Mapping[str, str] = field(default_factory=dict)

    # --- Its document (RFC 9728)
    resource_at: tuple[str, ...] = ("path",)
    resource: str = "{url}"
    authorization_servers: tuple[str, ...] = ("{issuer}",)
    resource_scopes: tuple[str, ...] | None = None
    # Laid over the document; OMIT takes a field out.
    resource_document: Mapping[str, Any] = field(default_factory=dict)

    # --- The provider's document (RFC 8414)
    # The provider answers on the MCP server's own origin.
    same_origin: bool = False
    issuer_path: str = ""
    metadata_at: tuple[str, ...] = ("oauth-inserted",)
    scopes_supported: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    # --- Clients
    # "open", or "none": no dynamic registration (P55).
    registration: str = "open"
    # Laid over the answer (A14, A15); OMIT takes a field out.
    registration_answer: Mapping[str, Any] = field(default_factory=dict)
    registration_status: int = 201
    # Any https address is a client's identifier, whose document `client_document` returns.
    takes_client_documents: bool = False
    client_document: Callable[[str], Mapping[str, Any]] | None = None
    # What works at the token endpoint, and what the metadata say of it (None: the same; A16).
    auth_methods: tuple[str, ...] = ("none", "client_secret_basic", "client_secret_post")
    advertised_auth_methods: tuple[str, ...] | None = None

    # --- The authorization endpoint
    # "approve" at once, "ask" on a page with two buttons, or an error code such as access_denied.
    decision: str = "approve"
    error_description: str = ""
    # Any request for scopes is answered with invalid_scope.
    refuses_scopes: bool = False
    # `iss` of the answer; None: none (RFC 9207).
    iss: str | None = "{issuer}"
    # authorization_response_iss_parameter_supported; None: absent.
    sends_issuer: bool | None = True
    # The resource must be sent, and be this one byte for byte, in all three requests (A04).
    strict_resource: bool = False

    # --- The token endpoint
    expires_in: Any = 3600
    # Laid over each answer; OMIT takes a field out.
    token_answer: Mapping[str, Any] = field(default_factory=dict)
    token_status: int = 200
    # Access tokens are JWTs that end after so many seconds (A23).
    jwt_seconds: float | None = None
    gives_refresh_token: bool = True
    # Refresh tokens are good once; a second use revokes the whole family (A20).
    rotates: bool = True
    reuse_revokes: bool = True

    # --- The revocation endpoint (RFC 7009)
    revocation: bool = True
