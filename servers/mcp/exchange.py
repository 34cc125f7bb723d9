"""Single HTTP exchanges with one server: credentials, redirects and refusals.

Headers of the settings and tokens of a login go only to the server's own origin. A redirect is
followed where origin, method and body stay the same; any other is refused with a sentence that
says where it points (B12). What a 401 means for a login, `servers.mcp.bearer` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import errno
import html
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urljoin

import httpx2
from mcp_types import JSONRPCError

from servers.limits import request_limit
from servers.mcp.bearer import Bearer, Refusal, challenge_of, wants_more_rights
from servers.mcp.bodies import (
    OFFERED_CODINGS,
    charset_of,
    content_type,
    dismiss,
    read_beginning,
    text_of,
)
from servers.mcp.errors import (
    HttpRefusal,
    NotMcp,
    RpcError,
    chain,
    explain_http,
    own_words,
)
from servers.mcp.messages import decode_json, read_messages
from servers.mcp.types import (
    Challenge,
    ConnectionSettings,
    LoginRequired,
    MoreRightsRequired,
    ServerError,
    ServerUnavailable,
)
from umpteenth.core import deadlines
from umpteenth.core.http import async_client, origin, public_url, same_origin, without_userinfo

INITIALIZED: Final = "notifications/initialized"
# Answered without side effects, so that a busy server can be asked again.
REPEATABLE: Final = ("initialize", "server/discover", "tools/list")
MAX_REDIRECTS: Final = 5
# All of them go back with every request, where a load balancer may count on its own.
MAX_COOKIES: Final = 50
MAX_REFUSAL_BYTES: Final = 64 * 1024
MAX_REFUSAL_TEXT: Final = 8 * 1024  # characters; patterns on a hostile page take their time
MAX_SCOPES_SHOWN: Final = 500
REFUSAL_SECONDS: Final = 5.0
# A busy server is waited for once, and not longer (connect and list only).
MAX_RETRY_AFTER: Final = 5.0
BUSY: Final = (429, 503)
# Client errors that may be over soon; 409 says that the last stream has not ended there yet.
_PASSING: Final = (408, 409, 425, 429)
CHECK_PATH: Final = "Check the path; many servers listen at /mcp, older ones at /sse."
# The SDK for Python takes such hosts only with a port, and answers others so.
CHECK_HOST: Final = (
    "The host and port of the address become the Host header, and the server takes others; many "
    "take localhost only with a port, such as http://localhost:8000/mcp."
)
_CREDENTIAL: Final = re.compile(r"auth|token|key|secret|cookie|password|credential", re.IGNORECASE)


@dataclass(frozen=True)
class _Message:
    """A request, wherever it goes."""

    method: str
    headers: Mapping[str, str]
    content: bytes | None
    refusal: Refusal


class Door:
    """The HTTP client of one connection, bound to the origin of its server."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        connect = settings.connect_timeout or None
        # Reading and writing are bounded by the total time of each request, not by the byte.
        self.client = async_client(
            timeout=httpx2.Timeout(None, connect=connect), socket_path=settings.socket_path
        )
        self._headers = dict(settings.headers)
        self.sends_credentials = any(_CREDENTIAL.search(name) for name in self._headers)
        # A header that somebody has written wins over a login (P49).
        self._is_authorized = any(name.lower() == "authorization" for name in self._headers)
        uses_login = settings.credentials is not None and not self._is_authorized
        self._bearer = Bearer(settings.credentials) if uses_login else None
        self.moved_to = ""  # where the server's own URL was last redirected to

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        patient: bool = False,
        refusal: Refusal = "counts",
    ) -> AsyncIterator[httpx2.Response]:
        """A successful response whose body is not read yet.

        With `patient` a busy server is asked once more. `refusal` is what a 401 means for a login
        that the server is sent (`servers.mcp.bearer`). A GET must begin to answer within the
        request's limit (U41); other requests are bounded as a whole by their callers. Raises
        `ServerError`: `ConnectionLost` where the server may have got the message.
        """
        limit = request_limit(self._settings.request_timeout)
        try:
            async with deadlines.timeout(limit.seconds if method == "GET" else None):
                message = _Message(method, headers, content, refusal)
                response = await self._ask(message, url, patient)
        except TimeoutError:
            raise ServerUnavailable(
                f"{public_url(url)} did not begin to answer within {limit.seconds:g} seconds "
                f"({limit.option})."
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self._explain(error, url) from error
        try:
            if not response.is_success:
                raise await self._refusal(response)
            yield response
        finally:
            await response.aclose()

    async def _ask(self, message: _Message, url: str, patient: bool) -> httpx2.Response:
        response = await self._follow(message, url)
        if not patient or response.status_code not in BUSY:
            return response
        await dismiss(response)
        await asyncio.sleep(_retry_after(response))
        return await self._follow(message, url)

    async def _follow(self, message: _Message, url: str) -> httpx2.Response:
        asked = url
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send(message, url)
            if not response.has_redirect_location:
                if asked == self._settings.url:
                    self.moved_to = url if url != asked and response.is_success else ""
                return response
            await dismiss(response)
            url = self._next_url(response, message.method, url)
        raise ServerUnavailable(
            f"{public_url(url)} redirects again and again.", "Check the address."
        )

    async def _send(self, message: _Message, url: str) -> httpx2.Response:
        is_own = same_origin(url, self._settings.url)
        own = self._headers if is_own else {}

        async def send(authorization: Mapping[str, str]) -> httpx2.Response:
            return await self._send_once(message, url, [*own.items(), *authorization.items()])

        if self._bearer is None or not is_own:
            return await send({})
        return await self._bearer.send(send, message.refusal)

    async def _send_once(
        self, message: _Message, url: str, own: list[tuple[str, str]]
    ) -> httpx2.Response:
        # Those of the protocol win, in whatever case the person wrote theirs.
        given = [*own, ("accept-encoding", OFFERED_CODINGS), *message.headers.items()]
        merged = {name.lower(): value for name, value in given}
        # As bytes: the client would refuse the upper half of Latin-1 in text.
        lines = [(name.encode(), value.encode("latin-1")) for name, value in merged.items()]
        request = self.client.build_request(
            message.method, url, headers=lines, content=message.content
        )
        response = await self.client.send(request, stream=True, follow_redirects=False)
        if len(self.client.cookies.jar) > MAX_COOKIES:
            self.client.cookies.clear()
        return response

    def _next_url(self, response: httpx2.Response, method: str, url: str) -> str:
        try:
            target = without_userinfo(urljoin(url, response.headers["location"]))
        except ValueError:
            raise ServerUnavailable(
                f"{public_url(url)} redirects to an address that cannot be read.",
                "Check the address.",
            ) from None
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

    def _explain(self, error: Exception, url: str) -> ServerError:
        if self._settings.socket_path and (fault := self._socket_fault(error)):
            return fault
        return explain_http(error, url, self._settings.connect_timeout)

    def _socket_fault(self, error: Exception) -> ServerUnavailable | None:
        """Why a Unix socket could not be opened (U12)."""
        path = self._settings.socket_path
        numbers = {cause.errno for cause in chain(error) if isinstance(cause, OSError)}
        if numbers & {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return ServerUnavailable(
                f"There is no socket at {path}.", "Check the path and that the server runs."
            )
        if errno.ECONNREFUSED in numbers:
            return ServerUnavailable(
                f"Nobody listens at the socket {path}.", "Check that the server runs."
            )
        if numbers & {errno.EACCES, errno.EPERM}:
            return ServerUnavailable(
                f"Umpteenth may not open the socket {path}: permission denied.",
                "Let the user that Umpteenth runs as write to the socket and enter its directory.",
            )
        return None

    async def _refusal(self, response: httpx2.Response) -> ServerError:
        status = response.status_code
        body = await read_beginning(response, MAX_REFUSAL_BYTES, REFUSAL_SECONDS)
        answer = _rpc_error(body)
        if answer is not None and status not in (401, 403):
            return answer.with_status(status)
        challenge = challenge_of(response) if status in (401, 403) else None
        words = _words_of(response, body) or _reason_in(challenge)
        title = f"{status} {_phrase(status)}".strip()
        told = f"{title}: {words}" if words else f"{title}."
        if status not in (401, 403):
            return HttpRefusal(f"The server answered {told}", _hint_for(status), status=status)
        if self._bearer is not None and "authorization" in response.request.headers:
            return await self._refusal_of_login(self._bearer, challenge, status, told)
        if self._refuses_headers(challenge):
            return HttpRefusal(
                f"The server refused the credentials: {told}",
                "Check the value of the header that holds them.",
                status=status,
            )
        refusal = LoginRefusal(
            f"The server requires a login: {told}",
            self._way_in,
            status=status,
        )
        refusal.challenge = challenge
        return refusal

    @property
    def _way_in(self) -> str:
        # A login is made in a browser, which reaches no socket of this machine.
        by_login = self._settings.transport == "http"
        first = "Log in under MCP Servers, add an" if by_login else "Add an"
        return f"{first} Authorization header, or name a secret in the option token_ref."

    def _refuses_headers(self, challenge: Challenge | None) -> bool:
        """Whether it is about a header that somebody has set: not where it points to a login,
        and none of the headers is what a login would send."""
        points_to_login = challenge is not None and bool(challenge.resource_metadata)
        return self.sends_credentials and (self._is_authorized or not points_to_login)

    async def _refusal_of_login(
        self, bearer: Bearer, challenge: Challenge | None, status: int, told: str
    ) -> ServerError:
        if status == HTTPStatus.FORBIDDEN and wants_more_rights(challenge):
            assert challenge is not None, "it names the rights"
            await bearer.credentials.wants_scopes(challenge)
            scopes = own_words(challenge.scope or "", MAX_SCOPES_SHOWN)
            wish = f" It names these: {scopes}." if scopes else ""
            error = MoreRightsRequired(
                f"The OAuth login lacks rights for this: {told}",
                f"Log in again for more rights under MCP Servers.{wish}",
                scopes=scopes,
            )
            error.challenge = challenge
            return error
        if status == HTTPStatus.FORBIDDEN:
            return HttpRefusal(
                f"The server refused this to the OAuth login: {told}",
                "Whoever logged in may not do this there, or the login lacks a scope.",
                status=status,
            )
        refusal = LoginRefusal(
            f"The server refused the OAuth login: {told}",
            "Log in again under MCP Servers.",
            status=status,
        )
        refusal.challenge = challenge
        return refusal


class LoginRefusal(LoginRequired):
    """401 or 403 to a request without credentials, or 401 to one with a login."""

    def __init__(self, message: str, hint: str, *, status: int) -> None:
        super().__init__(message, hint)
        self.status = status


class RpcRefusal(RpcError):
    """A JSON-RPC error that came with an HTTP status of failure."""

    def with_status(self, status: int) -> RpcRefusal:
        self.status = status
        return self


def foreign_redirect(source: str, target: str) -> ServerUnavailable:
    """Why a redirect to another origin is not followed."""
    shown = public_url(target)
    ours, theirs = origin(source), origin(target)
    if theirs is None:
        return ServerUnavailable(
            f"The server redirects to {shown}, which is no web address.", "Check the address."
        )
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
    return error.status if isinstance(error, HttpRefusal | LoginRefusal | RpcError) else None


def is_final(error: ServerError | None) -> bool:
    """Whether the server would say the same again: of its kind, not of the moment."""
    status = status_of(error)
    if status is None:
        return isinstance(error, NotMcp | LoginRequired)
    return status not in _PASSING and (status < 500 or status == HTTPStatus.NOT_IMPLEMENTED)


def not_mcp(response: httpx2.Response, url: str) -> NotMcp:
    kind = content_type(response)
    shown = public_url(url)
    if "html" in kind:
        return NotMcp(
            f"{shown} answers with a web page, not as an MCP server.",
            CHECK_PATH,
        )
    what = f"with {own_words(kind, 100)}" if kind else "without a content type"
    return NotMcp(f"{shown} answers {what}, not as an MCP server.", "Check the address.")


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
    text = text_of(body, charset_of(response)).strip()[:MAX_REFUSAL_TEXT]
    if "json" in content_type(response):
        with contextlib.suppress(ValueError):
            return own_words(_message_in(decode_json(text)) or text, 500)
    if text.startswith("<") or "html" in content_type(response):
        return own_words(_text_of_page(text), 200)
    return own_words(text, 500)


def _reason_in(challenge: Challenge | None) -> str:
    return own_words(challenge.error_description, 500) if challenge else ""


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
        return CHECK_PATH
    if status == HTTPStatus.MISDIRECTED_REQUEST:
        return CHECK_HOST
    if status in BUSY:
        return "The server is busy; try again later."
    return ""


def _retry_after(response: httpx2.Response) -> float:
    """Seconds to wait for a busy server: a number or a date (RFC 9110, 10.2.3), else one."""
    value = response.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value)
    # Not a number compares with nothing.
    return min(seconds, MAX_RETRY_AFTER) if seconds >= 0 else 0.0


def _seconds_until(date: str) -> float:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 1.0
