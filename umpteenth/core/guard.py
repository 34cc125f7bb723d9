"""Where connections of the HTTP client are let through or refused.

The address that was checked is the one that is dialled, at each connection: a name that stands for
another address a moment later (DNS rebinding, I02) leads nowhere new. `umpteenth.core.http` loads
this only where requests are made.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import anyio
import httpcore2
import httpx2

from umpteenth.core import addresses
from umpteenth.core.addresses import TargetRefused
from umpteenth.core.deadlines import timeout as within

# What an attempt gets before the next address is tried beside it (RFC 8305, section 5).
HEAD_START: Final = 0.25
MAX_ADDRESSES: Final = 16
# A name that a proxy is to resolve may mean nothing here; then nobody waits for it for long, and
# not with every request.
PROXIED_RESOLVE_SECONDS: Final = 1.0
PROXIED_MEMORY_SECONDS: Final = 60.0
MAX_REMEMBERED: Final = 100


class ConnectionRefusedHere(TargetRefused, httpx2.ConnectError):
    """A refused target, for callers that know the client's own errors only."""

    def __init__(self, refused: TargetRefused) -> None:
        TargetRefused.__init__(self, refused.message, refused.hint)
        self._request = None  # the client sets it


class GuardedBackend(httpcore2.AnyIOBackend):
    """Opens TCP connections, to addresses that the rules let through."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with within(timeout):
                _raise_if_refused(host)  # some by their names alone
                found = await addresses.resolve(host, port)
                _raise_if_refused(host, found)
                return await self._first_of(found[:MAX_ADDRESSES], port, socket_options)
        except TargetRefused:
            raise
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error

    async def _first_of(
        self,
        found: Sequence[str],
        port: int,
        options: Iterable[httpcore2.SOCKET_OPTION] | None,
    ) -> httpcore2.AsyncNetworkStream:
        """The connection that stands first; each address gets a head start before the next."""
        if len(found) == 1:
            return await super().connect_tcp(found[0], port, socket_options=options)
        streams: list[httpcore2.AsyncNetworkStream] = []
        failures: list[Exception] = []
        dial = super().connect_tcp

        async def attempt(address: str, over: anyio.Event) -> None:
            try:
                streams.append(await dial(address, port, socket_options=options))
                attempts.cancel_scope.cancel()
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failures.append(error)
            finally:
                over.set()

        try:
            async with anyio.create_task_group() as attempts:
                for address in found:
                    over = anyio.Event()
                    attempts.start_soon(attempt, address, over)
                    with anyio.move_on_after(HEAD_START):
                        await over.wait()
            if not streams:
                cause = ExceptionGroup("several attempts failed", failures)
                raise OSError("All connection attempts failed") from cause
            return streams.pop(0)
        finally:  # two may stand at once, or the caller may be cancelled
            for stream in streams:
                await stream.aclose()


def _raise_if_refused(host: str, found: Iterable[str] = ()) -> None:
    refused = addresses.refusal(host, found)
    if refused is not None:
        raise ConnectionRefusedHere(refused)


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """The client's own transport, with its connections made by `GuardedBackend`."""

    def __init__(self, *, context: ssl.SSLContext, limits: httpx2.Limits) -> None:
        super().__init__(verify=context, limits=limits)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=GuardedBackend(),
        )


class ProxiedTransport(httpx2.AsyncHTTPTransport):
    """Requests through a proxy of the environment, which dials on its own.

    Only used while nothing but metadata addresses is refused; they are, as far as names can be
    resolved here. The proxy itself is the operator's, and may be anywhere.
    """

    def __init__(self, *, proxy: str, context: ssl.SSLContext, limits: httpx2.Limits) -> None:
        super().__init__(verify=context, limits=limits, proxy=proxy)
        self._passed: dict[str, float] = {}  # host: until when

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await self._check(request.url.raw_host.decode("ascii"))
        return await super().handle_async_request(request)

    async def _check(self, host: str) -> None:
        now = time.monotonic()
        if self._passed.get(host, 0.0) > now:
            return
        found: tuple[str, ...] = ()
        with contextlib.suppress(OSError):
            async with within(PROXIED_RESOLVE_SECONDS):
                found = await addresses.resolve(host)
        _raise_if_refused(host, found)
        if len(self._passed) >= MAX_REMEMBERED:
            self._passed.clear()
        self._passed[host] = now + PROXIED_MEMORY_SECONDS


def client_transports(
    *, context: ssl.SSLContext, limits: httpx2.Limits
) -> tuple[GuardedTransport, dict[str, httpx2.AsyncBaseTransport | None]]:
    """What a client dials with, and by pattern of addresses what it uses instead: the proxies of
    the environment, None where there is none to be used."""
    direct = GuardedTransport(context=context, limits=limits)
    if not addresses.current_rules().open:
        return direct, {}
    return direct, dict(_proxies(context, limits))


def _proxies(
    context: ssl.SSLContext, limits: httpx2.Limits
) -> Iterator[tuple[str, httpx2.AsyncBaseTransport | None]]:
    # Private, and better than a second reading of NO_PROXY: it fails loudly where it is moved.
    from httpx2._utils import get_environment_proxies

    for pattern, proxy in get_environment_proxies().items():
        if proxy is None:
            yield pattern, None
        else:
            yield pattern, ProxiedTransport(proxy=proxy, context=context, limits=limits)
