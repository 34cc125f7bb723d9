"""Causes told apart, each as a sentence with the next step."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from servers.limits import MAX_ERROR_TEXT
from servers.mcp.types import ConnectionLost, ServerError, ServerUnavailable
from umpteenth.core.addresses import TargetRefused, is_this_machine
from umpteenth.core.http import public_url
from umpteenth.core.text import clean

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


class RpcError(ServerError):
    """The server answered with a JSON-RPC error; `status` is the HTTP status if it was not 200."""

    def __init__(self, code: int, message: str, data: Any = None, status: int = 200) -> None:
        super().__init__(own_words(message) or f"The server reported error {code}.")
        self.code = code
        self.data = data
        self.status = status


class HttpRefusal(ServerUnavailable):
    """The server answered a request with an HTTP status that is no success."""

    def __init__(self, message: str, hint: str = "", *, status: int) -> None:
        super().__init__(message, hint)
        self.status = status


class NotMcp(ServerUnavailable):
    """Something answers at the address, but it does not speak the protocol."""


class SessionExpired(ConnectionLost):
    """The server has forgotten the session.

    `not_run`: it surely did not run the request (404, B01), which is then sent once more in a new
    session. Else (every other disguise, B02) the request fails and the next one renews first.
    """

    def __init__(self, message: str = "", *, not_run: bool = True) -> None:
        super().__init__(message or "The server has forgotten the session.")
        self.not_run = not_run


class NothingSent(ConnectionLost):
    """The connection had ended before the request; the server never saw it."""


def own_words(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """A server's text for use in an error: cleaned, on as few lines as it has, bounded."""
    return clean(text.strip(), limit)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and everything it came from, groups opened."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions)
        waiting += [current.__cause__, current.__context__]


def words_of(error: BaseException) -> str:
    """The first words in a chain of exceptions, of which the outer ones are often silent."""
    for cause in chain(error):
        words = (isinstance(cause, OSError) and cause.strerror) or str(cause)
        if words and not isinstance(cause, BaseExceptionGroup):
            return own_words(words)
    return type(error).__name__


def flatten(error: BaseException, settings_name: str) -> ServerError:
    """The one `ServerError` behind any failure, exception groups included (F15)."""
    for cause in chain(error):
        if isinstance(cause, ServerError):
            return cause
    for cause in chain(error):
        if isinstance(cause, Exception) and not isinstance(cause, ExceptionGroup):
            words = words_of(cause)
            return ServerUnavailable(f"The connection to {settings_name} failed: {words}")
    return ServerUnavailable(f"The connection to {settings_name} failed.")


# The connection stood: the server may have read the request before it broke (A49).
_BROKEN_IN_USE: Final = (
    httpx2.ReadError,
    httpx2.WriteError,
    httpx2.CloseError,
    httpx2.RemoteProtocolError,
    httpx2.ReadTimeout,
    httpx2.WriteTimeout,
    httpx2.DecodingError,
)


def explain_http(error: Exception, url: str, connect_timeout: float) -> ServerError:
    """A transport error of the HTTP client as a sentence that names the cause.

    `ConnectionLost` where the request may have been read, else `ServerUnavailable`.
    """
    found = _explain_http(error, url, connect_timeout)
    if isinstance(error, _BROKEN_IN_USE):
        return ConnectionLost(found.message, found.hint)
    return found


def _explain_http(error: Exception, url: str, connect_timeout: float) -> ServerUnavailable:
    parts = urlsplit(url)
    host = parts.hostname or ""
    place = f"{host}:{parts.port}" if parts.port else host
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return ServerUnavailable(
            f"No connection to {place} within {connect_timeout:g} seconds.",
            "Check the address and whether a firewall lies between.",
        )
    for cause in chain(error):
        explained = _explain_cause(cause, host, place)
        if explained is not None:
            return explained
    return _explain_exchange(error, url)


def _explain_cause(cause: BaseException, host: str, place: str) -> ServerUnavailable | None:
    if isinstance(cause, TargetRefused):
        return ServerUnavailable(cause.message, cause.hint)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ServerUnavailable(
            f"The TLS certificate of {place} is not accepted: {cause.verify_message}.",
            "If a private authority signed it, name its file in SSL_CERT_FILE.",
        )
    if isinstance(cause, ssl.SSLError):
        reason = (cause.reason or str(cause)).replace("_", " ").lower()
        return ServerUnavailable(
            f"TLS with {place} failed: {reason}.",
            "Perhaps the server speaks plain http on this port.",
        )
    if isinstance(cause, socket.gaierror):
        passing = cause.errno == socket.EAI_AGAIN  # nobody said that there is no such name
        return ServerUnavailable(
            f"The host name {host} cannot be resolved: {cause.strerror}.",
            "Check this machine's name service, or try again later."
            if passing
            else "Check the spelling of the address.",
        )
    if isinstance(cause, httpx2.ProxyError):
        return ServerUnavailable(
            f"The proxy on the way to {place} refused: {words_of(cause)}.",
            "The environment names it (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY); NO_PROXY names hosts "
            "that are called without it.",
        )
    if isinstance(cause, ConnectionRefusedError):
        return ServerUnavailable(f"{place} refused the connection.", _refused_hint(host))
    if isinstance(cause, OSError) and cause.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return ServerUnavailable(
            f"{place} is unreachable: {os.strerror(cause.errno)}.",
            "Check the address and this machine's network.",
        )
    return None


def _refused_hint(host: str) -> str:
    hint = "Check that the server runs and that the port is right."
    if not is_this_machine(host):
        return hint
    if any(os.path.exists(mark) for mark in CONTAINER_MARKS):
        return (
            f"{hint} Umpteenth runs in a container, where {host} is the container itself; a server "
            "outside of it is reached by the host's name, such as host.docker.internal."
        )
    return f"{hint} {host} is the machine that Umpteenth runs on, not the one you sit at."


def _explain_exchange(error: Exception, url: str) -> ServerUnavailable:
    words = words_of(error)
    shown = public_url(url)
    if isinstance(error, httpx2.RemoteProtocolError):
        if words.startswith("Server disconnected"):
            return ServerUnavailable(
                f"{shown} closed the connection without an HTTP answer.",
                "If it never answers, check the port and whether the address begins with http "
                "or https.",
            )
        return ServerUnavailable(
            f"{shown} did not answer as an HTTP server: {words}",
            "Check the port, and whether the address begins with http or https.",
        )
    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        return ServerUnavailable(f"The address {shown} cannot be used: {words}")
    return ServerUnavailable(f"The connection to {shown} failed: {words}")
