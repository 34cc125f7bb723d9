"""Dynamic registration: a provider makes a client of us (RFC 7591; A14, A15)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from servers.oauth import clients, replies
from servers.oauth.types import (
    AuthMethod,
    Client,
    ClientNeeded,
    OAuthError,
    Provider,
    ProviderRefusal,
    ProviderUnreachable,
)
from umpteenth.core.masking import Masker
from umpteenth.core.text import clean

# P55, word for word.
NO_REGISTRATION: Final = (
    "the authorization server doesn't support dynamic client registration, so the server needs an "
    "OAuth client ID"
)
ENTER_ONE: Final = (
    "Register Umpteenth with the authorization server by hand, and enter its Client ID under "
    "Edit, OAuth client."
)
MAX_CLIENT_ID: Final = 2000
MAX_SECRET: Final = 16 * 1024
# The last second that dates can hold.
MAX_TIME: Final = 253402300799.0
# Neither databases nor headers take them: controls, and halves of surrogate pairs.
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_WITH_SECRET: Final[tuple[AuthMethod, ...]] = ("client_secret_post", "client_secret_basic")
_PREFERRED: Final[tuple[AuthMethod, ...]] = ("none", *_WITH_SECRET)


async def register(provider: Provider, *, redirect_uri: str, scopes: Sequence[str]) -> Client:
    """A client of our own at the provider.

    Raises `ClientNeeded` where there is no registration, `ProviderRefusal` and
    `ProviderUnreachable`.
    """
    if not provider.registration_endpoint:
        raise ClientNeeded(NO_REGISTRATION, ENTER_ONE)
    from servers.oauth import asking

    wanted = wanted_method(provider.token_auth_methods)
    request = {**clients.metadata(redirect_uri), "token_endpoint_auth_method": wanted}
    if scopes:
        request["scope"] = " ".join(scopes)
    answer = await asking.post_json(provider.registration_endpoint, request)
    adjusted = _adjusted(request, replies.error_code(answer.body))
    if answer.is_refusal and adjusted:
        second = await asking.post_json(provider.registration_endpoint, adjusted)
        answer = second if second.is_success else answer  # the first refusal says most
    body = answer.body or {}
    if not answer.is_success or not body.get("client_id"):
        raise _refused(replies.refusal(answer, Masker(), what="to register Umpteenth"))
    return read_client(body, provider, wanted, place=answer.place)


def _adjusted(request: Mapping[str, Any], code: str) -> Mapping[str, Any] | None:
    """What may be asked for instead, once (MCP 2026-07-28, Client Registration): OpenID Connect
    ties the addresses to come back to to the type of application, and scopes need not be named."""
    other = "web" if request["application_type"] == "native" else "native"
    if code == "invalid_redirect_uri":
        return {**request, "application_type": other}
    if code in ("invalid_client_metadata", "invalid_scope"):
        least = {name: value for name, value in request.items() if name != "scope"}
        return least if "scope" in request else {**least, "application_type": other}
    return None


def _refused(error: OAuthError) -> OAuthError:
    """With the way out, where asking again would not help."""
    if not isinstance(error, ProviderRefusal):
        return error
    hint = ENTER_ONE
    if error.error == "invalid_redirect_uri":
        hint = (
            "Perhaps it takes addresses with https only, or none of a private network: see app.url "
            f"in the configuration. {ENTER_ONE}"
        )
    return replies.with_hint(error, hint)


def wanted_method(methods: Sequence[str] | None) -> AuthMethod:
    """A public client needs no secret: PKCE protects the code, and nothing can leak or end."""
    return next((method for method in _PREFERRED if method in (methods or ())), "none")


def read_client(
    body: Mapping[str, Any], provider: Provider, wanted: AuthMethod, *, place: str
) -> Client:
    """The client of an answer, whose method wins over the one that was asked for (A15).

    Raises `ProviderUnreachable` for one that nobody could log in with: better now than after a
    person has approved.
    """
    client_id, secret = body["client_id"], body.get("client_secret") or ""
    if not _is_sendable(client_id, MAX_CLIENT_ID) or not _is_sendable(secret, MAX_SECRET):
        raise _unusable(place, "its ID or secret cannot be sent")
    given = body.get("token_endpoint_auth_method") or _unnamed_method(provider, wanted, secret)
    method = next((known for known in _PREFERRED if known == given), None)
    if method is None:
        raise _unusable(place, f"it has to log in by {clean(str(given), 100)}")
    if method == "none":
        return Client(client_id, "registered")
    if not secret:
        raise _unusable(place, f"it has to log in by {method}, and got no secret")
    return Client(client_id, "registered", method, secret, _end_of_secret(body))


def _unnamed_method(provider: Provider, wanted: AuthMethod, secret: str) -> AuthMethod:
    """What an answer without a method means: what was asked for, if it goes with the secret."""
    methods = provider.token_auth_methods
    if not secret or (methods is not None and not any(way in methods for way in _WITH_SECRET)):
        return "none"
    return wanted if wanted != "none" else clients.secret_method(methods)


def _is_sendable(value: Any, limit: int) -> bool:
    if not isinstance(value, str) or len(value) > limit:
        return False
    return not _CONTROL.search(value)


def _end_of_secret(body: Mapping[str, Any]) -> float | None:
    """0 is never (RFC 7591, 3.2.1); what is no number says nothing."""
    number = replies.number_in(body.get("client_secret_expires_at"))
    return number if number is not None and 0 < number < MAX_TIME else None


def _unusable(place: str, why: str) -> ProviderUnreachable:
    return ProviderUnreachable(
        f"{place} registered a client that cannot be used: {why}.", ENTER_ONE
    )
