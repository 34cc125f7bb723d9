"""One request to an endpoint of a provider, and its bounded answer.

Loaded where somebody asks, by `grants` and `registration`: it brings the HTTP client along.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode, urljoin

import httpx2

from servers.limits import MIB
from servers.mcp.bodies import charset_of, read_body, text_of
from servers.mcp.errors import explain_http
from servers.mcp.types import ServerError
from servers.oauth import replies
from servers.oauth.assertions import prove
from servers.oauth.replies import Reply
from servers.oauth.types import (
    AuthMethod,
    Client,
    OAuthError,
    Provider,
    ProviderRefusal,
    ProviderUnreachable,
    Tokens,
)
from umpteenth.core import deadlines, http
from umpteenth.core.masking import Masker
from umpteenth.core.text import is_too_deep

LIMIT_SECONDS: Final = 30.0
MAX_ANSWER: Final = 1 * MIB
# Of the same origin, with the same method and body (RFC 9110, 15.4.8 and 15.4.9).
MAX_REDIRECTS: Final = 3
FORM: Final = "application/x-www-form-urlencoded"
# What of a form must not come back in somebody's words.
_SECRET_FIELDS: Final = ("code", "code_verifier", "refresh_token", "token")

Form = Mapping[str, str]


async def ask_for_tokens(provider: Provider, client: Client, form: Form) -> tuple[Tokens, Client]:
    """The tokens, and the client with the method that worked.

    Raises `ProviderRefusal`, `ProviderUnreachable`, and `OAuthError` for a key that cannot sign.
    """
    answer, method = await _ask(provider.token_endpoint, provider, client, form)
    try:
        tokens = replies.read_tokens(answer, time.time(), sent=_masker(client, form))
    except ProviderRefusal as error:
        if error.error != "invalid_client" and error.status != 401:
            raise
        raise replies.with_hint(error, _client_hint(client)) from None
    return tokens, replace(client, method=method)


async def revoke_tokens(provider: Provider, client: Client, tokens: Tokens) -> None:
    """Both tokens, the refresh token first: most providers end the other one with it."""
    given = (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token))
    failed: OAuthError | None = None
    for hint, token in given:
        if not token:
            continue
        try:
            await _revoke(provider, client, {"token": token, "token_type_hint": hint})
        except OAuthError as error:
            failed = failed or error
    if failed is not None:
        raise failed


async def _revoke(provider: Provider, client: Client, form: Form) -> None:
    answer, _ = await _ask(provider.revocation_endpoint, provider, client, form)
    if not answer.is_success and replies.error_code(answer.body) != "unsupported_token_type":
        raise replies.refusal(answer, _masker(client, form), what="to end the login")


async def _ask(
    url: str, provider: Provider, client: Client, form: Form
) -> tuple[Reply, AuthMethod]:
    """A provider that does not know the client by the first method is asked once more with the
    next one, never with two at once (A16). If it knows none, its first answer counts. Both
    together take no longer than one may."""
    first: tuple[Reply, AuthMethod] | None = None
    clock = asyncio.get_running_loop().time
    ends = clock() + LIMIT_SECONDS
    filled = urlencode([(name, value) for name, value in form.items() if value])
    for method, audience in _ways(client, provider):
        headers, body = prove(
            client, method, provider, endpoint=url, audience=audience, form=filled
        )
        answer = await post(
            url, body.encode(), {"Content-Type": FORM, **headers}, seconds=ends - clock()
        )
        if not replies.refuses_client(answer):
            return answer, method
        first = first or (answer, method)
    assert first is not None  # there is always one way
    return first


def _ways(client: Client, provider: Provider) -> list[tuple[AuthMethod, str]]:
    """How the client may be shown, and to whom a signed statement is addressed."""
    if client.method == "private_key_jwt":
        # Either is possible (RFC 7523, 3); the issuer is the newer and stricter reading.
        return [(client.method, provider.issuer), (client.method, provider.token_endpoint)]
    if client.method == "none" or not client.secret:
        return [("none", "")]
    if client.method == "client_secret_post":
        return [(client.method, ""), ("client_secret_basic", "")]
    return [(client.method, ""), ("client_secret_post", "")]


def _client_hint(client: Client) -> str:
    if client.kind == "operator":
        return "Check the Client ID and the client secret in the server's settings."
    if client.kind == "document":
        where = http.public_url(client.client_id)
        return f"The authorization server has to be able to read Umpteenth's document at {where}."
    return "Log in again: Umpteenth then registers with the authorization server anew."


def _masker(client: Client, form: Form) -> Masker:
    values = {name: form[name] for name in _SECRET_FIELDS if form.get(name)}
    return Masker({**values, **({"client_secret": client.secret} if client.secret else {})})


async def post_json(url: str, body: Mapping[str, Any]) -> Reply:
    """Raises `ProviderUnreachable`."""
    return await post(url, json.dumps(body).encode(), {"Content-Type": "application/json"})


async def post(
    url: str, body: bytes, headers: Mapping[str, str], *, seconds: float | None = None
) -> Reply:
    """The answer, whatever its status. Raises `ProviderUnreachable`."""
    if http.origin(url) is None:
        raise ProviderUnreachable(f"{http.public_url(url)} is no address of an endpoint.")
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
    try:
        async with (
            deadlines.timeout(LIMIT_SECONDS if seconds is None else seconds),
            http.async_client(timeout=LIMIT_SECONDS, headers=headers) as client,
        ):
            for _ in range(MAX_REDIRECTS + 1):
                async with client.stream("POST", url, content=body) as response:
                    following = _next_address(response, url)
                    if not following:
                        return Reply(url, response.status_code, await _body(response, url))
                url = following
    except TimeoutError:
        raise ProviderUnreachable(
            f"{http.public_url(url)} did not answer within {LIMIT_SECONDS:g} seconds.",
            "Perhaps it works later.",
        ) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise _unreachable(error, url) from error
    raise ProviderUnreachable(f"{http.public_url(url)} redirects again and again.")


def _unreachable(error: Exception, url: str) -> ProviderUnreachable:
    found = explain_http(error, url, LIMIT_SECONDS)
    return ProviderUnreachable(found.message, found.hint)


def _next_address(response: httpx2.Response, url: str) -> str:
    """Where a redirect leads; empty: it is none. Codes and secrets are never sent elsewhere."""
    if not 300 <= response.status_code < 400 or "location" not in response.headers:
        return ""
    target = ""
    with contextlib.suppress(ValueError):
        target = urljoin(url, response.headers["location"])
    if response.status_code in (307, 308) and http.same_origin(url, target):
        return http.without_userinfo(target)
    shown = http.public_url(target) or "another address"
    raise ProviderUnreachable(
        f"{http.public_url(url)} redirects to {shown}, where Umpteenth sends no codes and secrets.",
        "Check with whoever runs the authorization server that its metadata are right.",
    )


async def _body(response: httpx2.Response, url: str) -> Mapping[str, Any] | None:
    """The JSON object of an answer; None where it is anything else."""
    try:
        content = await read_body(response, MAX_ANSWER)
    except ServerError as error:
        raise ProviderUnreachable(
            f"The answer of {http.public_url(url)} could not be read: {error.message}", error.hint
        ) from error
    return _object(text_of(content, charset_of(response)))


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_too_deep(value) else None
