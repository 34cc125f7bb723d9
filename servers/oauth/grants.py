"""The requests of a login: to the provider's page, for tokens, for new ones, for their end.

RFC 6749 (grants), 7009 (revocation), 7636 (PKCE), 8707 (resource) and 9207 (issuer). Each request
takes 30 seconds at most, and its answer is bounded. What does the asking is loaded when somebody
asks: processes that only show logins need none of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from servers.oauth.types import Client, LoginSecrets, OAuthError, Provider, Tokens

VERIFIER_BYTES: Final = 64  # 86 characters, of 43 to 128 (RFC 7636, 4.1)
STATE_BYTES: Final = 32


def new_verifier() -> str:
    """A code verifier (RFC 7636, 4.1)."""
    return secrets.token_urlsafe(VERIFIER_BYTES)


def new_state() -> str:
    """What binds the answer to the browser that asked (RFC 6749, 10.12)."""
    return secrets.token_urlsafe(STATE_BYTES)


def authorization_url(
    provider: Provider,
    client: Client,
    *,
    redirect_uri: str,
    state: str,
    verifier: str,
    resource: str,
    scopes: Sequence[str],
) -> str:
    """Where the browser is sent (RFC 6749, 4.1.1).

    The endpoint's own query stays (RFC 6749, 3.1), without parameters that are ours to set: each
    may be there once, and a strange document shall not choose the client or where it leads back.
    Raises `OAuthError` where people cannot log in.
    """
    if not provider.authorization_endpoint:
        raise OAuthError(
            "The authorization server has no page on which a person could log in.",
            "Let the client log in by itself: under Edit, OAuth client.",
        )
    from authlib.oauth2.rfc7636 import create_s256_code_challenge

    ours = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": create_s256_code_challenge(verifier),
        "code_challenge_method": "S256",
    }
    if scopes:
        ours["scope"] = " ".join(scopes)
    if "offline_access" in scopes:  # OpenID Connect Core, 11: else it is left out of the grant
        ours["prompt"] = "consent"
    if resource:
        ours["resource"] = resource
    set_by_us = {*ours, "scope", "resource", "request", "request_uri", "response_mode", "nonce"}
    parts = urlsplit(provider.authorization_endpoint)
    theirs = [pair for pair in parse_qsl(parts.query, True) if pair[0] not in set_by_us]
    query = urlencode([*theirs, *ours.items()])
    return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))


def check_issuer(provider: Provider, iss: str | None) -> None:
    """Whether the answer at the callback comes from whom the browser was sent to (A33).

    Compared as it is, without any normalization (RFC 9207, 2.4). Raises `OAuthError`; nothing else
    of that answer may then be used or shown.
    """
    if iss is None and not provider.sends_issuer:
        return
    if iss is None:
        raise OAuthError(
            "The authorization server's answer does not name its issuer, although its metadata "
            "say that every answer does.",
            "Start the login again. If it happens again, tell whoever runs the server.",
        )
    if iss != provider.issuer:
        raise OAuthError(
            "The answer comes from another authorization server than the one that the login was "
            "started with.",
            "Start the login again, and do not follow links to its last step.",
        )


async def exchange_code(
    provider: Provider,
    client: Client,
    *,
    code: str,
    redirect_uri: str,
    verifier: str,
    resource: str,
) -> tuple[Tokens, Client]:
    """The tokens of a login, and the client with the method that worked (A16).

    Raises `ProviderRefusal` and `ProviderUnreachable`.
    """
    from servers.oauth import asking

    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": resource,
    }
    return await asking.ask_for_tokens(provider, client, form)


async def refresh_tokens(login: LoginSecrets, client: Client) -> tuple[Tokens, Client]:
    """New tokens for the refresh token, which is kept where no other one comes (RFC 6749, 6).

    `client` is `login.client`, an operator's with its secret. Raises `ProviderRefusal`, whose
    `error` is `invalid_grant` where the refresh token is over, and `ProviderUnreachable`.
    """
    from servers.oauth import asking

    form = {
        "grant_type": "refresh_token",
        "refresh_token": login.tokens.refresh_token,
        "resource": login.resource,
    }
    tokens, client = await asking.ask_for_tokens(login.provider, client, form)
    return replace(
        tokens,
        refresh_token=tokens.refresh_token or login.tokens.refresh_token,
        scopes=login.tokens.scopes if tokens.scopes is None else tokens.scopes,
    ), client


async def client_credentials(
    provider: Provider, client: Client, *, resource: str, scopes: Sequence[str]
) -> tuple[Tokens, Client]:
    """Tokens for ourselves, without a person (RFC 6749, 4.4). Never with a refresh token: the
    same request brings the next one. Raises `ProviderRefusal` and `ProviderUnreachable`."""
    from servers.oauth import asking

    scope = " ".join(name for name in scopes if name != "offline_access")  # asks for what comes not
    form = {"grant_type": "client_credentials", "scope": scope, "resource": resource}
    tokens, client = await asking.ask_for_tokens(provider, client, form)
    return replace(tokens, refresh_token=""), client


async def revoke(login: LoginSecrets, client: Client) -> None:
    """Tell the provider that the tokens are no longer needed, where it can be told (RFC 7009).

    Raises `ProviderRefusal` and `ProviderUnreachable`: the login goes in any case.
    """
    if not login.provider.revocation_endpoint:
        return
    from servers.oauth import asking

    await asking.revoke_tokens(login.provider, client, login.tokens)
