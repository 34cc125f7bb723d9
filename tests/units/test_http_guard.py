"""Connections go to addresses that were checked, and to no others (P77, I01, I02)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest

from servers.mcp.client import connect
from servers.mcp.errors import chain
from servers.mcp.types import ServerUnavailable
from servers.oauth import asking
from servers.oauth.types import ProviderUnreachable
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import FakeHttp, Reply, Request
from tests.fakes.mcp_https import TlsHttp, certificate
from tests.fakes.names import Names
from umpteenth.core import addresses, guard, http
from umpteenth.core.addresses import TargetRefused
from umpteenth.core.http import async_client

SetNetwork = Callable[..., None]
PRIVATE_WORDS = "points to a private or local network address"
METADATA_WORDS = "points to a cloud metadata address"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def fine(request: Request) -> Reply:
    return Reply(200, {"content-type": "text/plain"}, b"fine")


def closing(request: Request) -> Reply:
    return Reply(200, {"connection": "close"}, b"fine")


@asynccontextmanager
async def get(url: str, timeout: float = 10) -> AsyncIterator[httpx2.Response]:
    async with async_client(timeout=timeout) as client:
        yield await client.get(url)


async def refused(url: str) -> TargetRefused:
    with pytest.raises(TargetRefused) as caught:
        async with get(url):
            pass
    return caught.value


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(autouse=True)
def _direct(no_proxies: None) -> None:
    """What the machine has in its environment is no part of these tests."""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "0x7f000001", "0"])
async def test_no_connection_is_made_to_a_private_address_where_they_are_not_allowed(
    host: str, set_network: SetNetwork
) -> None:
    """P77, I01: whatever the form of the address."""
    set_network(allow_private_targets=False)
    async with FakeHttp(script=fine) as server:
        error = await refused(f"http://{host}:{server.port}/")
    assert PRIVATE_WORDS in error.message
    assert server.connections == 0


async def test_a_private_address_is_reached_by_default() -> None:
    """P77."""
    async with FakeHttp(script=fine) as server, get(server.url) as response:
        assert response.text == "fine"


async def test_a_refused_target_is_an_error_of_the_client_too(set_network: SetNetwork) -> None:
    """Whoever handles failed connections handles this one."""
    set_network(allow_private_targets=False)
    error = await refused("http://127.0.0.1:9/")
    assert isinstance(error, httpx2.ConnectError)
    assert error.request.url == "http://127.0.0.1:9/"
    assert str(error) == error.message


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://2852039166/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://metadata.google.internal./computeMetadata/v1/",
        "https://169.254.169.254/",
    ],
)
async def test_metadata_addresses_are_refused_by_default(url: str) -> None:
    """I01, I05."""
    error = await refused(url)
    assert METADATA_WORDS in error.message


async def test_a_blocked_network_is_refused_and_the_rest_is_not(set_network: SetNetwork) -> None:
    set_network(blocked_targets=["127.0.0.2/32"])
    async with FakeHttp(script=fine) as server:
        error = await refused(f"http://127.0.0.2:{server.port}/")
        async with get(server.url) as response:
            assert response.text == "fine"
    assert "points to a blocked address" in error.message


async def test_a_name_with_one_bad_address_is_not_called_at_all(
    names: Names, set_network: SetNetwork
) -> None:
    """I02."""
    set_network(blocked_targets=["127.0.0.2"])
    names.set("mixed.test", "127.0.0.1", "127.0.0.2")
    async with FakeHttp(script=fine) as server:
        await refused(f"http://mixed.test:{server.port}/")
    assert server.connections == 0


async def test_the_checked_address_is_the_one_that_is_dialled(names: Names) -> None:
    """I02: a name is asked for once for each connection, so that no second answer can differ."""
    names.set_in_turn("rebind.test", ["127.0.0.1"], ["169.254.169.254"])
    async with FakeHttp(script=fine) as server, async_client(timeout=10) as client:
        url = f"http://rebind.test:{server.port}/"
        for _ in range(3):
            assert (await client.get(url)).text == "fine"
    assert names.asked == ["rebind.test"]
    assert server.connections == 1


async def test_each_new_connection_is_checked_anew(names: Names) -> None:
    """I02: the name leads elsewhere when the server has closed the first connection."""
    names.set_in_turn("rebind.test", ["127.0.0.1"], ["169.254.169.254"])
    async with FakeHttp(script=closing) as server, async_client(timeout=10) as client:
        url = f"http://rebind.test:{server.port}/"
        assert (await client.get(url)).text == "fine"
        with pytest.raises(TargetRefused, match=METADATA_WORDS):
            await client.get(url)
    assert len(names.asked) == 2


async def test_the_options_count_from_the_next_connection_on(set_network: SetNetwork) -> None:
    async with FakeHttp(script=closing) as server, async_client(timeout=10) as client:
        assert (await client.get(server.url)).status_code == 200
        set_network(allow_private_targets=False)
        with pytest.raises(TargetRefused, match=PRIVATE_WORDS):
            await client.get(server.url)


async def test_a_redirect_is_followed_only_to_an_address_that_may_be_called(names: Names) -> None:
    """I02, B10: the same origin, and yet another address."""
    names.set_in_turn("rebind.test", ["127.0.0.1"], ["169.254.169.254"])

    def moved(request: Request) -> Reply:
        return Reply(307, {"location": "/mcp/", "connection": "close"})

    async with FakeHttp(script=moved) as server:
        settings = http_settings(f"http://rebind.test:{server.port}/mcp")
        with pytest.raises(ServerUnavailable, match=METADATA_WORDS):
            async with connect(settings):
                pass
    assert [request.path for request in server.requests] == ["/mcp"]


async def test_the_old_transport_is_guarded_as_well(names: Names) -> None:
    """I02: the stream and the messages use two connections."""
    names.set_in_turn("rebind.test", ["127.0.0.1"], ["169.254.169.254"])
    async with FakeHttp(transport="sse") as server:
        url = f"http://rebind.test:{server.port}/sse"
        with pytest.raises(ServerUnavailable) as caught:
            async with connect(http_settings(url, remembered={"transport": "sse"})):
                pass
    assert METADATA_WORDS in caught.value.message
    assert [(request.method, request.path) for request in server.requests] == [("GET", "/sse")]


async def test_a_server_that_may_not_be_called_says_why_and_what_to_do(
    set_network: SetNetwork,
) -> None:
    """P77: in a test and at the start of a run."""
    set_network(allow_private_targets=False)
    with pytest.raises(ServerUnavailable) as caught:
        async with connect(http_settings("http://localhost:9/mcp?key=K")):
            pass
    assert caught.value.message == f"localhost {PRIVATE_WORDS} (127.0.0.1)."
    assert "network.allow_private_targets is false" in caught.value.hint


async def test_no_code_or_secret_goes_to_an_endpoint_whose_name_leads_elsewhere_now(
    names: Names, set_network: SetNetwork
) -> None:
    """I02, I05: between the check of the metadata and the exchange of the code."""
    set_network(blocked_targets=["127.0.0.1"])
    names.set_in_turn("as.test", ["203.0.113.1"], ["127.0.0.1"])
    async with FakeHttp(script=fine) as server:
        endpoint = f"http://as.test:{server.port}/token"
        await addresses.check_target(endpoint)
        with pytest.raises(ProviderUnreachable) as caught:
            await asking.post(endpoint, b"code=canary", {})
    assert caught.value.message == "as.test points to a blocked address."
    assert "network.blocked_targets" in caught.value.hint
    assert server.connections == 0


async def test_a_certificate_is_compared_with_the_name_and_not_with_the_address(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = certificate(tmp_path)  # for 127.0.0.1
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(pem)
    trusting = ssl.create_default_context(cafile=str(pem))
    monkeypatch.setattr(http, "_ssl_context", lambda: trusting)
    names.set("tls.test", "127.0.0.1")
    async with TlsHttp(own, script=fine) as server:
        async with get(server.url) as response:
            assert response.text == "fine"
        with pytest.raises(httpx2.ConnectError, match=r"not valid for 'tls\.test'"):
            async with get(f"https://tls.test:{server.port}/"):
                pass


async def test_the_next_address_is_tried_where_the_first_refuses(names: Names) -> None:
    names.set("two.test", "127.0.0.2", "127.0.0.1")
    async with FakeHttp(script=fine) as server, get(f"http://two.test:{server.port}/") as response:
        assert response.text == "fine"


class Dials:
    """In place of real connections: what happens at an address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dialled: list[str] = []
        self.given_up: list[str] = []
        self.second = asyncio.Event()  # set when two addresses were dialled
        real = httpcore2.AnyIOBackend.connect_tcp

        async def dial(
            backend: httpcore2.AnyIOBackend, host: str, port: int, **options: Any
        ) -> httpcore2.AsyncNetworkStream:
            self.dialled.append(host)
            if len(self.dialled) == 2:
                self.second.set()
            try:
                if host.startswith("203."):
                    await asyncio.Event().wait()
                return await real(backend, host, port, **options)
            except asyncio.CancelledError:
                self.given_up.append(host)
                raise

        monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", dial)


async def test_a_silent_address_holds_up_the_next_for_a_moment_only(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 8305, section 5."""
    monkeypatch.setattr(guard, "HEAD_START", 0.01)
    dials = Dials(monkeypatch)
    names.set("two.test", "203.0.113.1", "127.0.0.1")
    async with FakeHttp(script=fine) as server, get(f"http://two.test:{server.port}/") as response:
        assert response.text == "fine"
    assert dials.dialled == ["203.0.113.1", "127.0.0.1"]
    assert dials.given_up == ["203.0.113.1"]


async def test_of_two_connections_that_stand_at_once_one_is_closed(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 8305, section 5."""
    both, dialled, closed = asyncio.Event(), [], []

    class Stream(httpcore2.AsyncNetworkStream):
        async def aclose(self) -> None:
            closed.append(self)

    async def dial(*args: Any, **options: Any) -> Stream:
        dialled.append(args)
        if len(dialled) == 2:
            both.set()
        await both.wait()
        return Stream()

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", dial)
    monkeypatch.setattr(guard, "HEAD_START", 0.001)
    names.set("two.test", "203.0.113.1", "203.0.113.2")
    stream = await guard.GuardedBackend().connect_tcp("two.test", 80)
    assert len(closed) == 1
    assert stream not in closed


async def test_where_all_addresses_fail_the_causes_are_kept(names: Names) -> None:
    """P27: refused is called refused."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    names.set("two.test", "127.0.0.1", "127.0.0.2")
    with pytest.raises(ServerUnavailable, match=f"two.test:{port} refused the connection"):
        async with connect(http_settings(f"http://two.test:{port}/mcp")):
            pass


async def test_a_name_with_very_many_addresses_is_given_up_early(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "HEAD_START", 0.001)
    dials = Dials(monkeypatch)
    names.set("many.test", *[f"203.0.113.{number}" for number in range(200)])
    with pytest.raises(httpx2.ConnectTimeout):
        async with get("http://many.test/", timeout=0.2):
            pass
    assert 1 < len(dials.dialled) <= guard.MAX_ADDRESSES
    assert sorted(dials.given_up) == sorted(dials.dialled)


async def test_a_silent_name_service_counts_against_the_time_for_connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U39, F01."""

    async def silent(host: str, port: int = 0) -> tuple[str, ...]:
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(addresses, "resolve", silent)
    with pytest.raises(httpx2.ConnectTimeout):
        async with get("http://slow.test/", timeout=0.05):
            pass


async def test_who_stops_waiting_leaves_no_attempt_behind(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = Dials(monkeypatch)
    monkeypatch.setattr(guard, "HEAD_START", 0.001)
    names.set("two.test", "203.0.113.1", "203.0.113.2")
    async with async_client(timeout=None) as client:
        asking = asyncio.create_task(client.get("http://two.test/"))
        await dials.second.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert sorted(dials.given_up) == ["203.0.113.1", "203.0.113.2"]


async def test_an_unknown_name_is_told_from_other_failures() -> None:
    with pytest.raises(httpx2.ConnectError) as caught:
        async with get("http://unknown.test/"):
            pass
    assert not isinstance(caught.value, TargetRefused)
    assert any(isinstance(cause, socket.gaierror) for cause in chain(caught.value))


# Proxies of the environment.


def absolute(server: FakeHttp) -> list[str]:
    return [request.path for request in server.requests]


async def test_a_proxy_of_the_environment_is_used_while_only_metadata_is_refused(
    monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    """Names that only the proxy knows pass; a name is asked for once, not with each request."""
    async with FakeHttp(script=fine) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with async_client(timeout=10) as client:
            for _ in range(3):
                assert (await client.get("http://far.test/x")).text == "fine"
    assert absolute(proxy) == ["http://far.test/x"] * 3
    assert names.asked == ["far.test"]


@pytest.mark.parametrize(
    "options", [{"allow_private_targets": False}, {"blocked_targets": ["203.0.113.0/24"]}]
)
async def test_no_proxy_is_used_while_the_rules_may_refuse_what_it_dials(
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    names: Names,
    set_network: SetNetwork,
) -> None:
    set_network(**options)
    names.set("far.test", "203.0.113.1")
    dials = Dials(monkeypatch)
    async with FakeHttp(script=fine) as proxy:
        for variable in ("HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        with pytest.raises((TargetRefused, httpx2.ConnectTimeout)):
            async with get("http://far.test/x", timeout=0.05):
                pass
    assert (proxy.connections, "127.0.0.1" in dials.dialled) == (0, False)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "http://0xA9FEA9FE/",
        "http://metadata.google.internal/",
        "http://inside.test/",
    ],
)
async def test_no_proxy_is_asked_for_a_metadata_address(
    url: str, monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    """I01: by address, by name, and by what a name stands for here."""
    names.set("inside.test", "169.254.169.254")
    async with FakeHttp(script=fine) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        error = await refused(url)
    assert METADATA_WORDS in error.message
    assert proxy.connections == 0


async def test_hosts_of_no_proxy_are_called_directly_and_guarded(
    monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    names.set_in_turn("near.test", ["127.0.0.1"], ["169.254.169.254"])
    async with FakeHttp(script=fine) as proxy, FakeHttp(script=closing) as server:
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "near.test")
        async with get(f"http://near.test:{server.port}/") as response:
            assert response.text == "fine"
        await refused(f"http://near.test:{server.port}/")
    assert (proxy.connections, server.connections) == (0, 1)


async def test_a_proxy_is_not_kept_waiting_for_a_name_service_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(host: str, port: int = 0) -> tuple[str, ...]:
        if host == "127.0.0.1":
            return (host,)
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(guard, "PROXIED_RESOLVE_SECONDS", 0.01)
    monkeypatch.setattr(addresses, "resolve", silent)
    async with FakeHttp(script=fine) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with get("http://far.test/") as response:
            assert response.text == "fine"
