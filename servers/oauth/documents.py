"""Fetches the JSON documents in which servers and providers describe their logins. No Django.

Whatever they answer is untrusted: redirects, bytes, depth and time are bounded, and each hop goes
through the guarded door of `umpteenth.core.http`. Whoever asks gets the document, or one sentence
for a list of what was tried (A08).
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

from servers.mcp.types import ServerError
from umpteenth.core import deadlines
from umpteenth.core.addresses import TargetRefused, is_private
from umpteenth.core.http import (
    async_client,
    is_ambiguous,
    origin,
    public_url,
    same_origin,
    without_userinfo,
)
from umpteenth.core.text import clean, is_too_deep

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS: Final = 5
MAX_BYTES: Final = 1024 * 1024
MAX_URL: Final = 2000  # characters
# The newest revision that we know (2025-03-26, Server Metadata Discovery).
PROTOCOL_VERSION: Final = "2026-07-28"
# Said in place of whoever would answer, or until later (RFC 9110, 15.6.3-15.6.5; RFC 6585, 4).
_PASSING: Final = (429, 502, 503, 504)


class NoDocument(Exception):
    """Nothing usable was answered; the message says what instead, as the end of a line.

    `answered`: asking again would bring the same. `forbidden`: which option does not let us ask.
    """

    def __init__(self, message: str, *, answered: bool = True, forbidden: str = "") -> None:
        super().__init__(message)
        self.answered = answered
        self.forbidden = forbidden


def document_client(seconds: float) -> httpx2.AsyncClient:
    """The client for `fetch_document`; the caller closes it."""
    import httpx2  # loaded where it is used: not every process makes requests

    return async_client(
        timeout=httpx2.Timeout(None, connect=seconds),
        headers={"Accept": "application/json", "MCP-Protocol-Version": PROTOCOL_VERSION},
    )


async def fetch_document(
    client: httpx2.AsyncClient, url: str, *, seconds: float
) -> tuple[dict[str, Any], str]:
    """The JSON object at `url`, and where redirects led to it. Raises `NoDocument`."""
    import httpx2

    from servers.mcp.errors import explain_http

    try:
        async with deadlines.timeout(seconds):
            return await _follow(client, url)
    except TimeoutError:
        raise NoDocument(f"no answer within {seconds:.1f} seconds", answered=False) from None
    except TargetRefused as refused:
        raise NoDocument(refused.message, answered=False, forbidden=refused.hint) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise NoDocument(explain_http(error, url, seconds).message, answered=False) from error
    except ServerError as error:
        raise NoDocument(error.message) from error


async def _follow(client: httpx2.AsyncClient, url: str) -> tuple[dict[str, Any], str]:
    for _ in range(MAX_REDIRECTS + 1):
        request = client.build_request("GET", url, headers={"Accept-Encoding": _codings()})
        response = await client.send(request, stream=True, follow_redirects=False)
        client.cookies.clear()  # one client asks many strangers
        try:
            if not response.has_redirect_location:
                return await _read(response), url
            location = response.headers["location"]
        finally:
            await response.aclose()
        url = await _next_url(url, location)
    raise NoDocument(f"more than {MAX_REDIRECTS} redirects, the last one to {public_url(url)}")


def _codings() -> str:
    from servers.mcp.bodies import OFFERED_CODINGS

    return OFFERED_CODINGS


async def _next_url(url: str, location: str) -> str:
    try:
        target = without_userinfo(urljoin(url, location))
    except ValueError:
        raise NoDocument("a redirect to an address that cannot be read") from None
    if problem := await address_problem(target, near=url):
        raise NoDocument(f"a redirect to {public_url(target)}, {problem}")
    return target


async def address_problem(url: str, *, near: str = "") -> str:
    """Why an address that a stranger named is not used, as the end of a sentence; else nothing.

    Plain http is taken inside a private network, where certificates are rare, and on the origin
    of `near`, an address that is in use already. Whether the guard lets a request through is not
    asked here. (I05, I06)
    """
    if len(url) > MAX_URL:
        return f"which is longer than {MAX_URL:,} characters"
    # Browsers drop some of them, and read a backslash as a slash.
    if clean(url) != url or "\\" in url or any(sign.isspace() for sign in url):
        return "which holds a blank, a control character or a backslash"
    if origin(url) is None:
        return "which is no web address"
    parts = urlsplit(url)
    if "@" in parts.netloc:
        return "which holds a user name"
    if is_ambiguous(parts.hostname or ""):
        return "whose name is not the same to all browsers"
    if parts.scheme.lower() == "https" or (near and same_origin(url, near)):
        return ""
    if await is_private(parts.hostname or ""):
        return ""
    return "which is not encrypted: https is needed outside of a private network"


async def _read(response: httpx2.Response) -> dict[str, Any]:
    from servers.mcp.bodies import charset_of, content_type, read_body, text_of

    status = response.status_code
    if status != HTTPStatus.OK:
        raise NoDocument(_title(status), answered=status not in _PASSING)
    kind = content_type(response)
    if kind == "text/event-stream":  # which may have no end
        raise NoDocument(f"{_title(status)}, but a stream of events")
    text = text_of(await read_body(response, MAX_BYTES), charset_of(response)).strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        what = "a web page" if "html" in kind or text.startswith("<") else "no JSON"
        raise NoDocument(f"{_title(status)}, but {what if text else 'nothing in it'}") from None
    if not isinstance(value, dict):
        raise NoDocument(f"{_title(status)}, but no JSON object")
    if is_too_deep(value):
        raise NoDocument(f"{_title(status)}, but JSON that is nested too deeply")
    return value


def _title(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
