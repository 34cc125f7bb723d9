"""Where this machine itself gets out through a proxy only (issue 5, section 3)."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from jobs.network import NetworkRules
from jobs.sandbox.egress import rules as egress_rules
from jobs.sandbox.egress import upstream as upstream_module
from jobs.sandbox.egress.base import Proxied, Refused
from jobs.sandbox.egress.dial import why
from jobs.sandbox.egress.requests import Target
from jobs.sandbox.egress.rules import (
    EgressRules,
    Endpoint,
    own_endpoints,
    rules_for,
    upstream_proxy,
)
from jobs.sandbox.egress.upstream import Upstream
from jobs.sandbox.network import network_of
from tests.fakes.egress import FakeEgress, Serve, echo, target
from tests.fakes.mcp_https import certificate
from tests.fakes.names import Names
from umpteenth.core import addresses, config
from umpteenth.core.config import Options

INTERNET = EgressRules(NetworkRules("internet"), upstream=True)
PRIVATE = EgressRules(NetworkRules("internet", allow_private=True), upstream=True)
BY_NAME = EgressRules(NetworkRules("internet"), upstream=True, by_name=True)
CONNECT = b"CONNECT site.test:443 HTTP/1.1\r\n\r\n"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    return names


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that knows its certificate."""
    file = certificate(tmp_path)
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(file)
    ours = ssl.create_default_context(cafile=str(file))
    ours.check_hostname = False
    return theirs, ours


class FakeUpstream:
    """A proxy that says what it is told to, and then echoes."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Welcome\r\nVia: it\r\n\r\n") -> None:
        self.answer = answer
        self.heads: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        await echo(reader, writer)


def behind(port: int, url: str = "http://127.0.0.1:{}", *found: str) -> FakeEgress:
    """The proxy of a sandbox whose gate leaves everything to the upstream."""
    egress = FakeEgress()
    egress.gate.known["site.test"] = Proxied(found)
    egress.proxy._egress.upstream = Upstream.at(url.format(port))
    return egress


async def asked(
    serve: Serve, request: bytes, url: str = "http://127.0.0.1:{}", *found: str
) -> tuple[bytes, FakeEgress]:
    """What comes back, and the proxy that it came through; `found` are the addresses checked."""
    async with target(serve) as port:
        egress = behind(port, url, *found)
        reader, writer = await egress.connect()
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        egress.proxy.close()
    return answer, egress


async def test_it_is_asked_for_an_address_that_was_checked() -> None:
    """By the name it could be led elsewhere: its owner answers the second look-up as he likes."""
    upstream = FakeUpstream()
    answer, _ = await asked(upstream, CONNECT + b"hello", "http://127.0.0.1:{}", "2001:db8::7")
    assert upstream.heads == [
        b"CONNECT [2001:db8::7]:443 HTTP/1.1\r\nHost: [2001:db8::7]:443\r\n\r\n"
    ]
    assert answer.endswith(b"\r\n\r\nhello")


async def test_plain_http_to_such_an_address_keeps_its_host() -> None:
    """In a URL with the address, the proxy would make a Host header of it."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with target(serve) as port:
        egress = behind(port, "http://127.0.0.1:{}", "192.0.2.4")
        answer = await egress.ask(b"GET http://site.test/a HTTP/1.1\r\n\r\n")
        egress.proxy.close()
    assert heads[0] == b"CONNECT 192.0.2.4:80 HTTP/1.1\r\nHost: 192.0.2.4:80\r\n\r\n"
    assert heads[1].startswith(b"GET /a HTTP/1.1\r\nHost: site.test\r\n")
    assert answer == b"HTTP/1.1 204 No Content\r\n\r\n"


async def test_an_address_that_it_does_not_reach_is_followed_by_the_next() -> None:
    asked_for: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked_for.append(head.split()[1])
        known = asked_for[-1] == b"192.0.2.4:443"
        writer.write(b"HTTP/1.1 %d X\r\n\r\n" % (200 if known else 503))
        if known:
            await echo(reader, writer)

    answer, egress = await asked(
        serve, CONNECT + b"hello", "http://127.0.0.1:{}", "2001:db8::7", "192.0.2.4"
    )
    assert asked_for == [b"[2001:db8::7]:443", b"192.0.2.4:443"]
    assert answer.endswith(b"\r\n\r\nhello")
    assert egress.kinds == ["opened"]


async def test_one_that_refuses_is_not_asked_without_end() -> None:
    upstream = FakeUpstream(b"HTTP/1.1 407 Who are you\r\n\r\n")
    many = [f"192.0.2.{number}" for number in range(60)]
    answer, _ = await asked(upstream, CONNECT, "http://127.0.0.1:{}", *many)
    assert b"answered 407" in answer
    assert len(upstream.heads) == upstream_module.MAX_TRIED


async def test_where_it_resolves_names_a_tunnel_is_asked_of_it_by_the_name() -> None:
    upstream = FakeUpstream()
    found, egress = await asked(upstream, CONNECT + b"hello", "http://ann:p%40ss@127.0.0.1:{}")
    words = base64.b64encode(b"ann:p@ss")
    assert upstream.heads == [
        b"CONNECT site.test:443 HTTP/1.1\r\nHost: site.test:443\r\n"
        b"Proxy-Authorization: Basic " + words + b"\r\n\r\n"
    ]
    assert found == b"HTTP/1.1 200 Connection established\r\n\r\nhello"
    assert egress.kinds == ["opened"]


async def test_where_it_resolves_names_plain_http_is_asked_of_it_with_the_whole_url() -> None:
    """Many proxies allow CONNECT to port 443 alone."""
    upstream = FakeUpstream(b"HTTP/1.1 204 No Content\r\n\r\n")
    await asked(
        upstream,
        b"GET http://site.test/a?b HTTP/1.1\r\nProxy-Authorization: Basic theirs\r\n\r\n",
        "http://ann:word@127.0.0.1:{}",
    )
    [head] = upstream.heads
    assert head.startswith(b"GET http://site.test/a?b HTTP/1.1\r\nProxy-Authorization: Basic ")
    assert b"\r\nHost: site.test\r\n" in head
    assert b"theirs" not in head


async def test_nobody_gets_to_speak_with_it_himself() -> None:
    """A request that becomes a tunnel would let its client ask for any other host."""
    upstream = FakeUpstream()
    found, _ = await asked(
        upstream,
        b"GET http://site.test/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
        b"GET http://169.254.169.254/ HTTP/1.1\r\n\r\n",
    )
    [head] = upstream.heads
    assert head.startswith(b"CONNECT site.test:80 HTTP/1.1\r\n")
    assert found.startswith(b"GET / HTTP/1.1\r\nHost: site.test\r\n")  # what went into the tunnel


async def test_of_a_plain_request_nothing_behind_it_goes_there() -> None:
    both = (
        b"POST http://site.test/ HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
        b"GET http://169.254.169.254/ HTTP/1.1\r\n\r\n"
    )

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen = await reader.readexactly(4)
        with suppress(TimeoutError):
            seen += await asyncio.wait_for(reader.read(100), 0.2)
        writer.write(seen)

    async with target(count) as port:
        egress = behind(port)
        assert await egress.ask(both) == b"body"
        egress.proxy.close()


@pytest.mark.parametrize(
    "host", ["010.0.0.1", "0x08080808", "8.8.2056", "::ffff:8.8.8.8", "loc%61lhost", "a.localhost"]
)
async def test_what_it_may_read_otherwise_is_not_asked_of_it(host: str) -> None:
    with pytest.raises(Refused, match="read otherwise"):
        await BY_NAME(host, 443)
    assert await BY_NAME("8.8.8.8", 443) == Proxied()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Who\x1b are you\r\n\r\n", "answered 407"),
        (b"HTTP/1.1 403 No\r\n\r\n", "answered 403"),
        (b"SSH-2.0-x\r\n\r\n", "gave no answer"),
        (b"\r\n\r\n", "gave no answer"),
        (b"HTTP/1.1 200 " + b"x" * 600_000, "gave no answer"),
    ],
)
async def test_what_it_refuses_is_said(answer: bytes, words: str) -> None:
    found, egress = await asked(FakeUpstream(answer), CONNECT)
    said = f"site.test:443 could not be reached: the proxy of this installation {words}.\n"
    assert found.startswith(b"HTTP/1.1 502 ")
    assert found.endswith(said.encode())
    assert [event.reason for event in egress.events] == [said.strip()]


async def test_one_that_hangs_up_is_said() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    found, egress = await asked(hang_up, CONNECT)
    assert b" 502 " in found
    assert egress.kinds == ["failed"]


async def test_one_over_tls_is_held_to_its_certificate(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    upstream = FakeUpstream()
    server = await asyncio.start_server(upstream, "127.0.0.1", 0, ssl=tls[0])
    egress = behind(server.sockets[0].getsockname()[1], "https://127.0.0.1:{}")
    assert b" 502 " in await egress.ask(CONNECT)
    assert upstream.heads == []
    egress.proxy.close()
    server.close()


async def test_over_tls_the_end_of_a_client_is_the_end_of_its_connection(
    monkeypatch: pytest.MonkeyPatch, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """There is no half-open connection in TLS; one that stayed would never end."""
    theirs, ours = tls
    monkeypatch.setattr(upstream_module, "_context", lambda: ours)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=theirs)
    egress = behind(server.sockets[0].getsockname()[1], "https://127.0.0.1:{}")
    reader, writer = await egress.connect()
    writer.write(CONNECT)
    await reader.readuntil(b"hello")
    writer.close()
    await asyncio.wait_for(ended.wait(), 5)
    egress.proxy.close()
    server.close()


async def test_public_names_are_left_to_it_and_private_ones_are_not(names: Names) -> None:
    names.set("site.test", "93.184.216.34")
    names.set("inside.test", "10.0.0.9")
    assert await INTERNET("site.test", 443) == Proxied(("93.184.216.34",))
    assert await BY_NAME("site.test", 443) == Proxied()
    assert await BY_NAME("only-there.test", 443) == Proxied()
    assert await PRIVATE("inside.test", 443) == ("10.0.0.9",)
    for host in ("inside.test", "127.0.0.1", "169.254.169.254", "metadata.google.internal"):
        for rules in (INTERNET, BY_NAME):
            with pytest.raises(Refused):
                await rules(host, 443)


async def test_a_name_that_only_it_may_know_is_not_reached_and_the_option_is_named() -> None:
    with pytest.raises(OSError, match=r"network\.sandbox_proxy_resolves") as raised:
        await INTERNET("only-there.test", 443)
    assert why(raised.value).startswith("this machine does not know its name")


async def test_names_that_only_it_knows_cannot_be_held_against_the_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strict = addresses.Rules(blocked=addresses._networks("203.0.113.0/24"))
    monkeypatch.setattr(addresses, "current_rules", lambda: strict)
    with pytest.raises(Refused, match=r"network\.blocked_targets"):
        await BY_NAME("only-there.test", 443)


async def test_a_name_service_that_is_silent_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(host: str, port: int = 0) -> tuple[str, ...]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(egress_rules, "PROXIED_RESOLVE_SECONDS", 0.01)
    monkeypatch.setattr(addresses, "resolve", silent)
    assert await BY_NAME("site.test", 443) == Proxied()


def options(**network: object) -> Options:
    return Options.model_validate({"data_dir": "/data", "network": network})


def test_the_option_reaches_every_guarded_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(sandbox_proxy="https://ann:word@proxy.test")
    monkeypatch.setattr(egress_rules, "get_options", lambda: given)
    found = network_of(NetworkRules("internet"), lambda event: None).egress
    assert found is not None
    assert found.upstream == upstream_proxy() == Upstream.at("https://ann:word@proxy.test")
    assert found.gate == EgressRules(NetworkRules("internet"), own_endpoints(given), upstream=True)
    assert "word" not in repr(found.upstream)
    given = options(sandbox_proxy="https://proxy.test", sandbox_proxy_resolves=True)
    monkeypatch.setattr(egress_rules, "get_options", lambda: given)
    assert rules_for(NetworkRules("internet")).by_name


def test_the_proxy_itself_and_what_the_operator_names_are_own_ports() -> None:
    given = options(sandbox_proxy="http://proxy.test", own_targets=["web:8080", "[fd00::9]:9000"])
    assert own_endpoints(given) == {
        Endpoint("", 8080),
        Endpoint("proxy.test", 80),
        Endpoint("web", 8080),
        Endpoint("fd00::9", 9000),
    }


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("UMPTEENTH_NETWORK__SANDBOX_PROXY", "socks5://proxy.test:1080"),
        ("UMPTEENTH_NETWORK__SANDBOX_PROXY", "proxy.test:3128"),
        ("UMPTEENTH_NETWORK__SANDBOX_PROXY", "http://proxy.test:99999"),
        ("UMPTEENTH_NETWORK__SANDBOX_PROXY", "http://proxy.test:0"),
        ("UMPTEENTH_NETWORK__SANDBOX_PROXY_RESOLVES", "perhaps"),
        ("UMPTEENTH_NETWORK__OWN_TARGETS", "web"),
        ("UMPTEENTH_NETWORK__OWN_TARGETS", "web:8080,web:http"),
    ],
)
def test_an_option_that_means_nothing_stops_the_start(variable: str, value: str) -> None:
    option = variable.lower().partition("__")[2]
    with pytest.raises(config.ConfigError, match=rf"^network\.{option}: "):
        config.load_options({variable: value, "UMPTEENTH_DATA_DIR": "/data"})


@pytest.mark.parametrize(
    ("section", "url"),
    [
        ("database", "postgresql://ann:word@one:5432,two:5433/ump"),
        ("database", "postgresql:///ump?host=one&port=word"),
        ("database", "postgresql://ann:word@one:99999/ump"),
        ("redis", "redis://:word@one:0x1/0"),
    ],
)
def test_a_url_whose_ports_cannot_be_read_stops_the_start(section: str, url: str) -> None:
    """Not a run, later, with the URL in its error."""
    environment = {f"UMPTEENTH_{section.upper()}__URL": url, "UMPTEENTH_DATA_DIR": "/data"}
    with pytest.raises(config.ConfigError, match=rf"^{section}\.url: must have") as raised:
        config.load_options(environment)
    assert "word" not in str(raised.value)


def test_addresses_stand_in_brackets_where_they_have_to() -> None:
    assert Target("::1", 80, tunnel=False).authority == "[::1]"
    assert Target("site.test", 8080, tunnel=False).authority == "site.test:8080"
