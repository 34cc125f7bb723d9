"""The one door for outbound HTTP: every client that this process uses is made here.

Each connection is made to an address that was checked (`umpteenth.core.addresses`), redirects,
reconnects and streams included. What is refused raises `TargetRefused`, which is a `ConnectError`
of the client, too.
"""

from __future__ import annotations

import logging
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from umpteenth import __version__
from umpteenth.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

USER_AGENT = f"umpteenth/{__version__}"
MAX_SHOWN_URL = 500
MAX_SHOWN_HOST = 260  # longer is no name of the DNS
KEEPALIVE_SECONDS = 4.0
DEFAULT_PORTS = {"http": 80, "https": 443}
# Signs that IDNA 2003 turns into others, or into nothing.
_DEVIATIONS = frozenset("ßς\u200c\u200d")

Origin = tuple[str, str, int]


def async_client(
    *,
    timeout: float | httpx2.Timeout | None,
    headers: Mapping[str, str] | None = None,
    socket_path: str = "",
) -> httpx2.AsyncClient:
    """A client that follows no redirect by itself; the caller closes it.

    `timeout` counts for connecting, and for each single read and write where it is a number.
    With `socket_path` every request goes to that Unix socket, whatever host it names, and past
    any proxy. Else proxies come from the environment, unless the rules could refuse what a proxy
    dials unseen; certificates always do.
    """
    import httpx2  # loaded where it is used: not every process makes requests

    from umpteenth.core.guard import client_transports

    _keep_quiet()
    context, limits = _ssl_context(), _limits()
    transport: httpx2.AsyncBaseTransport
    mounts: dict[str, httpx2.AsyncBaseTransport | None] = {}
    if socket_path:
        transport = httpx2.AsyncHTTPTransport(verify=context, limits=limits, uds=socket_path)
    else:
        transport, mounts = client_transports(context=context, limits=limits)
    # A client that is given a transport takes no proxy from the environment by itself.
    return httpx2.AsyncClient(
        timeout=timeout,
        headers={"User-Agent": USER_AGENT, **(headers or {})},
        follow_redirects=False,
        transport=transport,
        mounts=mounts,
    )


def _limits() -> httpx2.Limits:
    """As many connections as there are requests: callers count those that wait themselves.

    Idle ones are let go before the five seconds of uvicorn, Node and others are over: a request
    on a connection that its server is just closing is lost, and nobody knows whether it was run.
    """
    import httpx2

    return httpx2.Limits(
        max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEPALIVE_SECONDS
    )


@lru_cache(maxsize=1)
def _keep_quiet() -> None:
    """The client's own logs hold whole URLs, and queries may hold keys."""
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


@lru_cache(maxsize=1)
def _ssl_context() -> ssl.SSLContext:
    """Shared by all clients: reading the certificates takes longer than most requests."""
    import httpx2

    return httpx2.create_ssl_context()


def origin(url: str) -> Origin | None:
    """Scheme, host and port, default ports filled in; None if `url` is no HTTP address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    scheme, host = parts.scheme.lower(), parts.hostname
    if scheme not in DEFAULT_PORTS or not host:
        return None
    port = DEFAULT_PORTS[scheme] if port is None else port
    return scheme, _ascii_host(host.rstrip(".")), port


def _ascii_host(host: str) -> str:
    """As the DNS has it, which is how servers name themselves; as it is where readers disagree."""
    if host.isascii() or is_ambiguous(host):
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def shown_host(url: str) -> str:
    """Host and port of `url` for people who are to recognise them: as the DNS has them, so that no
    letter looks like another one. Empty where there is none."""
    try:
        parts = urlsplit(url)
        host, port = _ascii_host(parts.hostname or ""), parts.port
    except ValueError:
        return ""
    if not host.isascii():
        return ""
    shown = f"[{host}]" if ":" in host else host
    return clean(f"{shown}:{port}" if port else shown, MAX_SHOWN_HOST)


def is_ambiguous(host: str) -> bool:
    """Whether it is one name to browsers and another to older readers (UTS 46, deviations)."""
    return not _DEVIATIONS.isdisjoint(host.lower())


def same_origin(first: str, second: str) -> bool:
    """Whether both are HTTP addresses of one scheme, host and port."""
    known = origin(first)
    return known is not None and known == origin(second)


def without_userinfo(url: str) -> str:
    """`url` without a user name and password, which the client would send as credentials."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def public_url(url: str) -> str:
    """`url` as it may be shown: without query, fragment and user information (U60), cleaned and
    bounded, since servers name addresses too."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the address"
    host = parts.netloc.rpartition("@")[2]
    return clean(urlunsplit((parts.scheme, host, parts.path, "", "")), MAX_SHOWN_URL)
