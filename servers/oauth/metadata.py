"""Reads the documents that describe logins, and says where they may be. No Django, no network.

RFC 9728 (the server), RFC 8414 and OpenID Connect Discovery (the authorization server).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from servers.oauth.documents import MAX_URL, NoDocument
from servers.oauth.scopes import MAX_SCOPES, read_scopes
from servers.oauth.types import Provider
from umpteenth.core.http import origin
from umpteenth.core.text import clean

MAX_SERVERS: Final = 5  # authorization servers of one document that are asked
MAX_WORDS: Final = 200  # in any other list, and characters in each of them
MAX_SHOWN: Final = 300

_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_OAUTH: Final = "/.well-known/oauth-authorization-server"
_OIDC: Final = "/.well-known/openid-configuration"


class ForeignDocument(NoDocument):
    """The document is in order and speaks of somebody else, so that it must not be used."""


@dataclass(frozen=True)
class Resource:
    """What a server's own document says (RFC 9728, 2)."""

    resource: str
    authorization_servers: tuple[str, ...]
    scopes: tuple[str, ...] | None
    warnings: tuple[str, ...] = ()


def own_address(url: str) -> str:
    """The server's address as a resource (RFC 8707, 2): without query and fragment, and without
    the slash of an empty path. A query is left out because it may hold keys."""
    parts = urlsplit(url)
    path = "" if parts.path == "/" else parts.path
    return _built(parts, path)


def base_of(url: str) -> str:
    """The origin of `url`, written as an issuer without a path."""
    return _built(urlsplit(url), "")


def _built(parts: SplitResult, path: str) -> str:
    host = parts.netloc.rpartition("@")[2].lower()
    return urlunsplit((parts.scheme.lower(), host, path, "", ""))


def resource_places(url: str) -> list[str]:
    """Where the document of the server at `url` may be: path inserted, root, path prefixed."""
    path = urlsplit(url).path
    base, bare = base_of(url), path.rstrip("/")
    inserted = [base + _RESOURCE + path, base + _RESOURCE + bare] if bare else []
    prefixed = [base + bare + _RESOURCE] if bare else []
    return list(dict.fromkeys([*inserted, base + _RESOURCE, *prefixed]))


def provider_places(issuer: str) -> list[str]:
    """Where the metadata of `issuer` may be (A07): RFC 8414, OpenID with the path inserted and
    appended, and RFC 8414 with the path appended, which nobody specifies and some do."""
    base, path = base_of(issuer), urlsplit(issuer).path.rstrip("/")
    if not path:
        return [base + _OAUTH, base + _OIDC]
    return [
        base + _OAUTH + path,
        base + _OIDC + path,
        base + path + _OIDC,
        base + path + _OAUTH,
    ]


def read_resource(document: Mapping[str, Any], url: str) -> Resource:
    """The server's own document. Raises `NoDocument`, and `ForeignDocument` where it is about
    another resource than the one at `url` (RFC 9728, 3.3)."""
    resource = document.get("resource")
    if not isinstance(resource, str) or not resource or len(resource) > MAX_URL:
        raise NoDocument("a document that does not name its resource")
    if not covers(resource, url):
        raise ForeignDocument(f"a document about another resource: {shown(resource)}")
    # It is sent as it stands, and what reads addresses leaves these out of them.
    if clean(resource) != resource or any(sign.isspace() for sign in resource):
        raise NoDocument("a document whose resource holds a blank or a control character")
    servers = document.get("authorization_servers")
    if isinstance(servers, str):
        servers = [servers]
    named = [one for one in servers if isinstance(one, str)] if isinstance(servers, list) else []
    if not named:
        raise NoDocument("a document that names no authorization server")
    return Resource(
        resource,
        tuple(dict.fromkeys(named))[:MAX_SERVERS],
        *_resource_scopes(document),
    )


def _resource_scopes(
    document: Mapping[str, Any],
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    words = _strings(document.get("scopes_supported"), limit=None)
    warnings = []
    if document.get("dpop_bound_access_tokens_required") is True:
        warnings.append(
            "The server wants tokens that are bound to a key (DPoP), which Umpteenth does not use; "
            "it may refuse the login's tokens."
        )
    if words is None:
        return None, tuple(warnings)
    scopes = read_scopes(words)
    if len(set(words)) > len(scopes) and len(words) > MAX_SCOPES:
        warnings.append(
            f"The server names {len(set(words)):,} scopes, of which a login asks for "
            f"{len(scopes)}; enter those that are needed in Scopes."
        )
    return scopes, tuple(warnings)


def covers(resource: str, url: str) -> bool:
    """Whether `url` belongs to `resource`: the same origin, and its path or one below it. A slash
    at the end makes no difference here (A04), nor does a query that only one of them has; a
    fragment is never allowed (RFC 8707, 2)."""
    ours = origin(resource)
    if ours is None or ours != origin(url) or "#" in resource or "@" in urlsplit(resource).netloc:
        return False
    part, whole = urlsplit(resource), urlsplit(url)
    if part.query and whole.query and part.query != whole.query:
        return False
    above, below = part.path.rstrip("/"), whole.path.rstrip("/")
    return below == above or below.startswith(f"{above}/")


def same_issuer(first: str, second: str) -> bool:
    """Identical (RFC 8414, 3.3) but for one slash at the end, which many leave out or add."""
    return first.removesuffix("/") == second.removesuffix("/")


def read_provider(
    document: Mapping[str, Any], issuers: Sequence[str], metadata_url: str
) -> Provider:
    """The metadata of one of `issuers`, whose addresses are not checked yet.

    Raises `NoDocument`, and `ForeignDocument` where it must not be used: another issuer's
    (RFC 8414, 3.3), or one that cannot do PKCE with S256.
    """
    issuer, token = document.get("issuer"), _text(document, "token_endpoint")
    if not isinstance(issuer, str) or len(issuer) > MAX_URL:
        raise NoDocument("a document without issuer")
    if not token:
        raise NoDocument("a document without token_endpoint")
    if not any(same_issuer(issuer, expected) for expected in issuers):
        raise ForeignDocument(f"metadata of another issuer: {shown(issuer)}")
    grants = _strings(document.get("grant_types_supported"))
    authorization = _text(document, "authorization_endpoint")
    if not authorization and "client_credentials" not in (grants or ()):
        raise NoDocument("a document without authorization_endpoint")
    methods = _strings(document.get("code_challenge_methods_supported"))
    if authorization and methods is not None and "S256" not in methods:
        raise ForeignDocument("the provider does not support PKCE with S256, which is needed")
    return Provider(
        issuer=issuer,
        authorization_endpoint=authorization,
        token_endpoint=token,
        registration_endpoint=_text(document, "registration_endpoint"),
        revocation_endpoint=_text(document, "revocation_endpoint"),
        scopes_supported=_scopes(document.get("scopes_supported")),
        token_auth_methods=_strings(document.get("token_endpoint_auth_methods_supported")),
        token_auth_algorithms=_strings(
            document.get("token_endpoint_auth_signing_alg_values_supported")
        ),
        code_challenge_methods=methods,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        takes_client_documents=document.get("client_id_metadata_document_supported") is True,
        metadata_url=metadata_url,
    )


def default_provider(url: str) -> Provider:
    """Of a server that publishes nothing (2025-03-26, Fallbacks for Servers without Metadata
    Discovery)."""
    base = base_of(url)
    return Provider(
        issuer=base,
        authorization_endpoint=f"{base}/authorize",
        token_endpoint=f"{base}/token",
        registration_endpoint=f"{base}/register",
    )


def shown(text: str) -> str:
    """A value of a stranger inside a sentence: on one line, since each line is one of ours."""
    return clean(" ".join(text.split()), MAX_SHOWN)


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _scopes(value: Any) -> tuple[str, ...] | None:
    """A catalogue, of which one word counts; it may be long."""
    words = _strings(value, limit=None)
    if words is None:
        return None
    return tuple(dict.fromkeys([*read_scopes(words), *_offline(words)]))


def _offline(words: Sequence[str]) -> list[str]:
    return ["offline_access"] if "offline_access" in words else []


def _strings(value: Any, limit: int | None = MAX_WORDS) -> tuple[str, ...] | None:
    """The short texts of a list; a text alone counts as words. None: nothing is said."""
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list):
        return None
    words = (word for word in value if isinstance(word, str) and len(word) <= MAX_WORDS)
    return tuple(dict.fromkeys(words))[:limit]
