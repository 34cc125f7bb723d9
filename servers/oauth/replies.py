"""What a provider answers, read without trust: tokens, registrations' refusals, its own words.

Nothing here asks anybody; times are Unix seconds.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from servers.oauth.types import OAuthError, ProviderRefusal, ProviderUnreachable, Tokens
from umpteenth.core.http import public_url
from umpteenth.core.masking import Masker
from umpteenth.core.text import clean, finite_number, with_full_stop

MAX_WORDS: Final = 500
MAX_ERROR_CODE: Final = 100
# What servers take in a header at most; a longer one would be of no use.
MAX_TOKEN: Final = 64 * 1024
MAX_SCOPE_TEXT: Final = 16 * 1024
# Beyond it a number is no lifetime but a mistake, and no date of ours.
MAX_LIFETIME: Final = 100 * 365 * 86400.0

# What may stand in a header as it is; RFC 6750 allows less, and providers do not all keep to it.
_TOKEN = re.compile(r"[\x21-\x7e]+")
_DIGITS = re.compile(r"[0-9]{1,15}")
_CLIENT_WORDS = re.compile("client[ _-]?(id|secret|auth|credential)", re.IGNORECASE)
# Other words for RFC 6749, 5.2 (GitHub, Slack), so that what follows does not depend on them.
_SAME_AS: Final = {
    "bad_refresh_token": "invalid_grant",
    "invalid_refresh_token": "invalid_grant",
    "token_expired": "invalid_grant",
    "expired_token": "invalid_grant",
    "bad_verification_code": "invalid_grant",
    "invalid_code": "invalid_grant",
    "incorrect_client_credentials": "invalid_client",
    "bad_client_secret": "invalid_client",
    "invalid_client_id": "invalid_client",
    "unknown_client": "invalid_client",
}
_HINTS: Final = {
    "invalid_grant": "Log in again.",
    "invalid_scope": "Change Scopes in the server's settings, or leave them empty.",
    "invalid_target": "The authorization server does not know the MCP server by the address that "
    "its metadata name. Tell whoever runs the server.",
}
_NOT_OF_CLIENTS: Final = (
    "access_denied", "authorization_pending", "invalid_grant", "invalid_scope", "invalid_target",
    "unauthorized_client", "unsupported_grant_type",
)  # fmt: skip
_UNKNOWN: Final = (401, 403, 404)
_LATER: Final = (408, 425, 429)
# Secrets of a good answer.
_GIVEN: Final = (
    "access_token", "refresh_token", "id_token", "client_secret", "registration_access_token",
)  # fmt: skip
# Where the words are, in the order of what says most.
_WORDS: Final = ("error_description", "message", "detail", "title", "error_message", "msg")


@dataclass(frozen=True)
class Reply:
    """One answer of an endpoint; `body` is None where it is no JSON object."""

    url: str
    status: int
    body: Mapping[str, Any] | None = None

    @property
    def place(self) -> str:
        return public_url(self.url)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refusal(self) -> bool:
        """A no, and not: perhaps later."""
        return 400 <= self.status < 500 and self.status not in _LATER


def read_tokens(reply: Reply, now: float, *, sent: Masker) -> Tokens:
    """The tokens of an answer (RFC 6749, 5.1). Raises `ProviderRefusal`, `ProviderUnreachable`.

    `sent` holds what was sent and may come back in the words of an error.
    """
    body = reply.body
    if not reply.is_success or body is None:
        raise refusal(reply, sent)
    access_token = body.get("access_token")
    if not access_token or body.get("error"):
        raise refusal(reply, sent)
    if not is_token(access_token):
        raise ProviderUnreachable(
            f"The access token that {reply.place} answered cannot be sent in a header."
        )
    kind = body.get("token_type")
    if kind and str(kind).lower() != "bearer":
        _learn(sent, body)
        shown = clean(sent.mask(clean(str(kind))), MAX_ERROR_CODE)
        raise ProviderRefusal(
            f"{reply.place} gave a token of type {shown}; Umpteenth uses Bearer tokens only.",
            "Let the authorization server give out Bearer tokens for this client.",
            status=reply.status,
        )
    refresh = body.get("refresh_token")
    return Tokens(
        access_token=access_token,
        refresh_token=refresh if isinstance(refresh, str) and _is_sendable(refresh) else "",
        expires_at=expiry(body, access_token, now),
        issued_at=now,
        scopes=_granted_scopes(body.get("scope")),
    )


def is_token(value: Any) -> TypeGuard[str]:
    """Whether it can be sent as a bearer token: nothing in it ends a header."""
    return isinstance(value, str) and len(value) <= MAX_TOKEN and bool(_TOKEN.fullmatch(value))


def _is_sendable(value: str) -> bool:
    try:
        return 0 < len(value.encode()) <= MAX_TOKEN
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def expiry(body: Mapping[str, Any], access_token: str, now: float) -> float | None:
    """When the access token is over; None: unknown, so it is used until it is refused (A22-A24)."""
    seconds = _lifetime(body.get("expires_in"))
    return _jwt_expiry(access_token, now) if seconds is None else now + seconds


def _lifetime(value: Any) -> float | None:
    """What is negative, absurd or no number says nothing."""
    number = number_in(value)
    return number if number is not None and 0 <= number <= MAX_LIFETIME else None


def number_in(value: Any) -> float | None:
    """A number, which some providers send as digits in a text."""
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    return finite_number(value)


def _jwt_expiry(token: str, now: float) -> float | None:
    """What a JWT says of its own end. Only a hint: it is not ours to verify.

    Where it also says when it was made, the provider's clock need not agree with ours. One that
    has ended already on our clock tells nothing but that the clocks differ.
    """
    claims = _jwt_claims(token)
    ends, made = finite_number(claims.get("exp")), finite_number(claims.get("iat"))
    if ends is None or not now < ends <= now + MAX_LIFETIME:
        return None
    return ends if made is None or made >= ends else min(ends, now + ends - made)


def _jwt_claims(token: str) -> Mapping[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _granted_scopes(value: Any) -> tuple[str, ...] | None:
    """Scopes as granted; None where nothing is said, which means as asked for. Some providers
    send a list."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = " ".join(value)
    if not isinstance(value, str):
        return None
    return tuple(dict.fromkeys(clean(value, MAX_SCOPE_TEXT).split()))


def refusal(reply: Reply, sent: Masker, *, what: str = "the request") -> OAuthError:
    """An answer that is not what was asked for, as an error in the provider's own words."""
    _learn(sent, reply.body or {})
    words = own_words(reply.body or {}, sent)
    if reply.status in _LATER or reply.status >= 500:
        return ProviderUnreachable(
            _sentence(f"{reply.place} answered with status {reply.status}", words),
            "Perhaps it works later.",
        )
    code = error_code(reply.body)
    if not code and _CLIENT_WORDS.search(words):  # {"message": "Unrecognized client_id"}
        code = "invalid_client"
    if reply.body is None or (reply.is_success and not code and not words):
        return ProviderUnreachable(
            f"{reply.place} answered with status {reply.status}, and with nothing that OAuth "
            "knows.",
            "Check with whoever runs the authorization server that this is its address.",
        )
    if not words:
        words = f"status {reply.status}"
    return ProviderRefusal(
        _sentence(f"{reply.place} refused {what}", words),
        _HINTS.get(code, ""),
        error=sent.mask(code),
        status=reply.status,
    )


def _learn(sent: Masker, body: Mapping[str, Any]) -> None:
    """What is given may stand in the words of the same answer, too."""
    for name in _GIVEN:
        value = body.get(name)
        if isinstance(value, str) and _is_sendable(value):
            sent.add(name, value)


def _sentence(beginning: str, words: str) -> str:
    return with_full_stop(f"{beginning}: {words}" if words else beginning)


def with_hint(error: ProviderRefusal, hint: str) -> ProviderRefusal:
    """The same refusal with another next step."""
    return ProviderRefusal(error.message, hint, error=error.error, status=error.status)


def error_code(body: Mapping[str, Any] | None) -> str:
    """The error in OAuth's words; other providers' words for the same are translated."""
    code = (body or {}).get("error")
    if isinstance(code, Mapping):  # {"error": {"code": …, "message": …}}
        code = code.get("code") or code.get("status")
    if not isinstance(code, str):
        return ""
    code = clean(code.strip())
    return _SAME_AS.get(code, code) if len(code) <= MAX_ERROR_CODE else ""


def own_words(body: Mapping[str, Any], sent: Masker) -> str:
    """What the provider says, without what was sent to it; its code in brackets behind it."""
    given = body.get("error")
    code = given if isinstance(given, str) else ""
    inner = given if isinstance(given, Mapping) else {}
    found = next(
        (
            text
            for source in (body, inner)
            for name in _WORDS
            if isinstance(text := source.get(name), str) and text.strip()
        ),
        "",
    )
    words = found.strip()
    if code and code not in words:
        words = f"{words.removesuffix('.')} ({code})" if words else code
    return clean(sent.mask(clean(words)), MAX_WORDS)  # cut last: half a secret is not found


def refuses_client(reply: Reply) -> bool:
    """Whether it is about who we are, not about what we asked: another method may do (A16).

    Some say `invalid_request` when they find no client where they look for one, and some, such as
    GitHub, are silent about it. What is surely about the code or the token is asked only once.
    """
    if reply.is_success and not (reply.body or {}).get("error"):
        return False
    code = error_code(reply.body)
    if code == "invalid_request":
        return bool(_CLIENT_WORDS.search(own_words(reply.body or {}, Masker())))
    return code == "invalid_client" or (reply.status in _UNKNOWN and code not in _NOT_OF_CLIENTS)
