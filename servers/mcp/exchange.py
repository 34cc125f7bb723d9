"""Single HTTP exchanges with one server: credentials, redirects, refusals and bounded bodies.

Headers of the settings go only to the server's own origin. A redirect is followed where origin,
method and body stay the same; any other is refused with a sentence that says where it points (B12).
Bodies are counted after decompression (B23).
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urljoin

import httpx2
from mcp_types import JSONRPCError

from servers.limits import MAX_MESSAGE_BYTES, MIB
from servers.mcp.errors import (
    HttpRefusal,
    NotMcp,
    RpcError,
    explain_http,
    own_words,
    words_of,
)
from servers.mcp.events import Event, EventParser, EventTooLarge
from servers.mcp.messages import decode_json, read_messages
from servers.mcp.types import (
    ConnectionLost,
    ConnectionSettings,
    LoginRequired,
    ServerError,
    ServerUnavailable,
)
from umpteenth.core import deadlines
from umpteenth.core.http import async_client, origin, public_url, same_origin

MAX_REDIRECTS: Final = 5
MAX_REFUSAL_BYTES: Final = 64 * 1024
# A busy server is waited for once, and not longer (connect and list only).
MAX_RETRY_AFTER: Final = 5.0
BUSY: Final = (429, 503)
_CREDENTIAL: Final = re.compile(r"auth|token|key|secret|cookie|password|credential", re.IGNORECASE)


class Door:
    """The HTTP client of one connection, bound to the origin of its server."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        connect = settings.connect_timeout or None
        # Reading and writing are bounded by the total time of each request, not by the byte.
        self.client = async_client(timeout=httpx2.Timeout(None, connect=connect))
        self._headers = dict(settings.headers)
        self.sends_credentials = any(_CREDENTIAL.search(name) for name in self._headers)

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        patient: bool = False,
    ) -> AsyncIterator[httpx2.Response]:
        """A successful response whose body is not read yet.

        With `patient` a busy server is asked once more. Raises `ServerError`.
        """
        try:
            response = await self._follow(method, url, headers, content)
            if patient and response.status_code in BUSY:
                await response.aclose()
                await asyncio.sleep(_retry_after(response))
                response = await self._follow(method, url, headers, content)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise explain_http(error, url, self._settings.connect_timeout) from error
        try:
            if not response.is_success:
                raise await self._refusal(response)
            yield response
        finally:
            await response.aclose()

    async def _follow(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> httpx2.Response:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send(method, url, headers, content)
            if not response.has_redirect_location:
                return response
            await response.aclose()
            url = self._next_url(response, method, url)
        raise ServerUnavailable(
            f"{public_url(url)} redirects again and again.", "Check the address."
        )

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> httpx2.Response:
        own = self._headers if same_origin(url, self._settings.url) else {}
        # Those of the protocol win, in whatever case the person wrote theirs.
        merged = {name.lower(): value for name, value in [*own.items(), *headers.items()]}
        # As bytes: the client would refuse the upper half of Latin-1 in text.
        lines = [(name.encode(), value.encode("latin-1")) for name, value in merged.items()]
        request = self.client.build_request(method, url, headers=lines, content=content)
        return await self.client.send(request, stream=True, follow_redirects=False)

    def _next_url(self, response: httpx2.Response, method: str, url: str) -> str:
        target = urljoin(url, response.headers["location"])
        shown = public_url(target)
        if not same_origin(target, self._settings.url):
            raise foreign_redirect(self._settings.url, target)
        if method != "GET" and response.status_code not in (307, 308):
            raise HttpRefusal(
                f"The server redirects to {shown} with status {response.status_code}, "
                "which would lose the message.",
                f"If that is the right address, enter {shown} as the URL.",
                status=response.status_code,
            )
        return target

    async def _refusal(self, response: httpx2.Response) -> ServerError:
        status = response.status_code
        body = await _read_some(response)
        answer = _rpc_error(body)
        if answer is not None and status not in (401, 403):
            return answer.with_status(status)
        words = _words_of(response, body)
        title = f"{status} {_phrase(status)}".strip()
        message = f"The server answered {title}" + (f": {words}" if words else ".")
        if status not in (401, 403):
            return HttpRefusal(message, _hint_for(status), status=status)
        if self.sends_credentials:
            return HttpRefusal(
                f"The server refused the credentials: {title}" + (f": {words}" if words else "."),
                "Check the value of the header that holds them.",
                status=status,
            )
        return LoginRequired(
            f"The server requires a login: {title}" + (f": {words}" if words else "."),
            "Add an Authorization header under Headers.",
        )


class RpcRefusal(RpcError):
    """A JSON-RPC error that came with an HTTP status of failure."""

    def with_status(self, status: int) -> RpcRefusal:
        self.status = status
        return self


def foreign_redirect(source: str, target: str) -> ServerUnavailable:
    """Why a redirect to another origin is not followed."""
    shown = public_url(target)
    ours, theirs = origin(source), origin(target)
    if ours and theirs and ours[0] == "https" and theirs[0] == "http":
        return ServerUnavailable(
            f"The server redirects to {shown}, which would give up encryption; "
            "Umpteenth does not follow.",
            "A proxy in front of the server probably does not tell it that it is reached "
            "over https.",
        )
    return ServerUnavailable(
        f"The server redirects to {shown}, which is another origin; Umpteenth does not follow.",
        f"If that is the right address, enter {shown} as the URL.",
    )


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, if the server answered with one."""
    return error.status if isinstance(error, HttpRefusal | RpcError) else None


def content_type(response: httpx2.Response) -> str:
    value: str = response.headers.get("content-type", "")
    return value.partition(";")[0].strip().lower()


async def read_body(response: httpx2.Response, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """The decoded body. Raises `ServerError` if it is too large or breaks off."""
    parts: list[bytes] = []
    size = 0
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > limit:
                raise ServerError(f"The server's answer is larger than {limit // MIB} MiB.")
            parts.append(chunk)
    except httpx2.HTTPError as error:
        raise broken_body(error) from error
    return b"".join(parts)


async def read_events(response: httpx2.Response) -> AsyncGenerator[Event, None]:
    """The events of a stream. Raises `ServerError` if one is too large or the stream breaks."""
    parser = EventParser(MAX_MESSAGE_BYTES)
    try:
        async for chunk in response.aiter_bytes():
            for event in parser.feed(chunk):
                yield event
    except EventTooLarge:
        raise ServerError(
            f"The server's answer is larger than {MAX_MESSAGE_BYTES // MIB} MiB."
        ) from None
    except httpx2.HTTPError as error:
        raise broken_body(error) from error


def broken_body(error: Exception) -> ConnectionLost:
    return ConnectionLost(f"response body failed: {words_of(error)}")


def not_mcp(response: httpx2.Response, url: str) -> NotMcp:
    kind = content_type(response)
    shown = public_url(url)
    if "html" in kind:
        return NotMcp(
            f"{shown} answers with a web page, not as an MCP server.",
            "Check the path; many servers listen at /mcp.",
        )
    what = f"with {own_words(kind, 100)}" if kind else "without a content type"
    return NotMcp(f"{shown} answers {what}, not as an MCP server.", "Check the address.")


async def _read_some(response: httpx2.Response) -> bytes:
    """The beginning of an error's body; whatever goes wrong with it matters less than the error."""
    parts: list[bytes] = []
    with contextlib.suppress(httpx2.HTTPError, TimeoutError):
        async with deadlines.timeout(5):
            async for chunk in response.aiter_bytes():
                parts.append(chunk)
                if sum(map(len, parts)) > MAX_REFUSAL_BYTES:
                    break
    return b"".join(parts)


def _rpc_error(body: bytes) -> RpcRefusal | None:
    try:
        messages = list(read_messages(decode_json(body)))
    except ValueError:
        return None
    first = messages[0] if messages else None
    # A plain {"error": "…"} is no JSON-RPC, though the tolerant reader takes it.
    if isinstance(first, JSONRPCError) and b'"jsonrpc"' in body:
        return RpcRefusal(first.error.code, first.error.message, first.error.data)
    return None


def _words_of(response: httpx2.Response, body: bytes) -> str:
    text = body.decode("utf-8", errors="replace").strip()
    if "json" in content_type(response):
        with contextlib.suppress(ValueError):
            return own_words(_message_in(decode_json(text)) or text, 500)
    if text.startswith("<") or "html" in content_type(response):
        return own_words(_text_of_page(text), 200)
    return own_words(text, 500)


def _text_of_page(page: str) -> str:
    """What a person would read on an error page, on one line."""
    page = re.sub(r"(?is)<(script|style|title)\b.*?</\1>|<[^>]*>", " ", page)
    return " ".join(html.unescape(page).split())


def _message_in(value: Any) -> str:
    """The sentence in an error document, under any of its usual names."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return ""
    for name in ("error_description", "message", "detail", "error", "title"):
        found = value.get(name)
        if isinstance(found, str) and found:
            return found
        if isinstance(found, dict | list) and found:
            return _message_in(found) or json.dumps(found)
    return ""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _hint_for(status: int) -> str:
    if status in (404, 405, 410):
        return "Check the path; many servers listen at /mcp."
    if status in BUSY:
        return "The server is busy; try again later."
    return ""


def _retry_after(response: httpx2.Response) -> float:
    """Seconds to wait for a busy server; dates count as one second."""
    try:
        seconds = float(response.headers.get("retry-after", "1"))
    except ValueError:
        seconds = 1.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
