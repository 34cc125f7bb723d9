"""The proxy of a guarded sandbox (issue 5, section 3)."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import pytest

from jobs.sandbox.egress.requests import BadRequest, Body, parse_head
from tests.fakes.egress import FakeEgress, echo, target


@pytest.fixture
async def egress() -> AsyncIterator[FakeEgress]:
    fake = FakeEgress()
    fake.gate.known["site.test"] = ("127.0.0.1",)
    yield fake
    fake.proxy.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, so nobody else gets it; nobody listens
        yield sock.getsockname()[1]


async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the request itself as far as it has come, and stays open."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.read(1000) if b"ontent-Length" in head or b"chunked" in head else b""
    seen = head + body
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(seen), seen))
    await writer.drain()
    rest = await reader.read(1000)
    writer.write(b"MORE:" + rest)


async def last(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the head of the request and closes."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + head)


async def test_a_tunnel_copies_both_ways_and_half_closes(egress: FakeEgress) -> None:
    data = os.urandom(3_000_000)
    async with target(echo) as port:
        reader, writer = await egress.connect()
        writer.write(b"CONNECT site.test:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
        reading = asyncio.create_task(reader.read())
        read = b""
        writer.write(data)
        writer.write_eof()
        read = await reading
        writer.close()
    assert read == data
    assert egress.events[0].host == "site.test"
    assert egress.kinds == ["opened"]


async def test_what_comes_with_the_request_goes_over(egress: FakeEgress) -> None:
    async with target(last) as port:
        found = await egress.ask(
            b"CONNECT site.test:%d HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n" % port
        )
    assert found.endswith(b"GET / HTTP/1.1\r\n\r\n")


async def test_names_are_asked_for_in_lower_case_without_a_dot(egress: FakeEgress) -> None:
    async with target(echo) as port:
        reader, writer = await egress.connect()
        writer.write(b"CONNECT SITE.Test.:%d HTTP/1.1\r\n\r\n" % port)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_refusal_is_a_sentence_and_an_event(egress: FakeEgress) -> None:
    found = await egress.ask(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert found.endswith(b"evil.test is not among the job's allowed domains.\n")
    assert [(e.kind, e.host, e.port, e.reason) for e in egress.events] == [
        ("refused", "evil.test", 443, "evil.test is not among the job's allowed domains.")
    ]


async def test_a_refused_upload_still_gets_its_answer(egress: FakeEgress) -> None:
    """A connection that is closed over unread data is reset, and the answer lost."""
    head = b"POST http://evil.test/ HTTP/1.1\r\nContent-Length: 500000\r\n\r\n"
    assert b" 403 " in await egress.ask(head + b"x" * 500_000)


async def test_what_cannot_be_reached_is_said(egress: FakeEgress, closed_port: int) -> None:
    found = await egress.ask(b"CONNECT site.test:%d HTTP/1.1\r\n\r\n" % closed_port)
    assert found.startswith(b"HTTP/1.1 502 ")
    assert b"it refused the connection" in found
    found = await egress.ask(b"GET http://name.unknown/ HTTP/1.1\r\n\r\n")
    assert found.endswith(
        b"name.unknown:80 could not be reached: its name is not known to the name service.\n"
    )
    assert egress.kinds == ["failed", "failed"]


async def test_a_silent_host_is_given_up_in_time() -> None:
    fake = FakeEgress(dial_seconds=0.05)

    async def silent(host: str, port: int) -> tuple[str, ...]:
        await asyncio.Event().wait()
        raise AssertionError

    fake.proxy._egress.gate = silent
    found = await fake.ask(b"CONNECT site.test:443 HTTP/1.1\r\n\r\n")
    fake.proxy.close()
    assert found.endswith(b"site.test:443 could not be reached: it did not answer in time.\n")


async def test_the_next_address_is_tried(egress: FakeEgress) -> None:
    egress.gate.known["two.test"] = ("127.0.0.3", "127.0.0.1")
    async with target(last) as port:
        found = await egress.ask(
            b"CONNECT two.test:%d HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n" % port
        )
    assert b" 200 " in found


async def test_a_plain_request_goes_to_its_host_in_origin_form(egress: FakeEgress) -> None:
    """RFC 9112, sections 3.2.2 and 9.3; RFC 9110, section 7.6.1."""
    async with target(last) as port:
        found = await egress.ask(
            b"GET http://user:word@Site.test:%d/a?b=http://c/#d HTTP/1.1\r\nHost: other.test\r\n"
            b"Proxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\n"
            b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\n\r\n" % port
        )
    sent = found.split(b"\r\n\r\n")[1].split(b"\r\n")
    assert sent == [
        b"GET /a?b=http://c/ HTTP/1.1",
        b"Host: site.test:%d" % port,
        b"X-Kept: 2",
        b"Connection: close",
    ]


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        (b"Content-Length: 5\r\n", b"hello"),
        (b"Transfer-Encoding: chunked\r\n", b"5;x=y\r\nhello\r\n0\r\nTrailer: a\r\n\r\n"),
        (b"", b""),
    ],
)
async def test_a_second_request_never_goes_to_the_first_ones_host(
    egress: FakeEgress, fields: bytes, body: bytes
) -> None:
    """Its host may be another one, which the rules may forbid."""
    async with target(once) as port:
        reader, writer = await egress.connect()
        writer.write(b"POST http://site.test:%d/ HTTP/1.1\r\n%s\r\n%s" % (port, fields, body))
        writer.write(b"GET http://evil.test/secret HTTP/1.1\r\n\r\n")
        first = await reader.readuntil(b"\r\n\r\n")
        size = int(first.split(b"Content-Length: ")[1].split(b"\r")[0])
        seen = await reader.readexactly(size)
        writer.close()
    assert seen.endswith(b"\r\n\r\n" + body)
    assert b"evil" not in seen
    assert egress.gate.asked == [("site.test", port)]


async def test_an_upgrade_becomes_a_tunnel(egress: FakeEgress) -> None:
    async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        await echo(reader, writer)

    async with target(websocket) as port:
        reader, writer = await egress.connect()
        writer.write(
            b"GET http://site.test:%d/ HTTP/1.1\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\n\r\n" % port
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"frame")
        assert await reader.readexactly(5) == b"frame"
        writer.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET https://site.test/ HTTP/1.1\r\n\r\n", 400),
        (b"GET ftp://site.test/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http:///x HTTP/1.1\r\n\r\n", 400),
        (b"GET http://site.test:0/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://site.test:99999/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[::1/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://si te/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://site.test/ HTTP/2\r\n\r\n", 400),
        (b"GET http://site.test/ HTTP/1.1\r\nbad line\r\n\r\n", 400),
        (b"GET http://site.test/ HTTP/1.1\r\nA: b\nEvil: c\r\n\r\n", 400),
        (b"GET http://site.test/\nX HTTP/1.1\r\n\r\n", 400),
        (b"P http://site.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"P http://site.test/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (
            b"P http://site.test/ HTTP/1.1\r\nContent-Length: 1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (b"P http://site.test/ HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"GET http://site.test/ HTTP/1.1\r\n" + b"A: b\r\n" * 201 + b"\r\n", 431),
        (b"CONNECT site.test HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT site.test: HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT site.test:0 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT ::1:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a\x00b:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a/b:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT \xff:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT " + b"a" * 300 + b":443 HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01 hello of TLS\r\n\r\n", 400),
    ],
)
def test_what_makes_no_sense_is_not_passed_on(request_: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_head(request_)
    assert caught.value.answer.startswith(b"HTTP/1.1 %d " % status)


def test_an_address_in_brackets_is_an_address() -> None:
    assert parse_head(b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n")[0].host == "::1"
    found, head, _ = parse_head(b"GET http://[::1]?q HTTP/1.1\r\n\r\n")
    assert (found.host, found.port) == ("::1", 80)
    assert head.startswith(b"GET /?q HTTP/1.1\r\nHost: [::1]\r\n")


def test_chunks_may_come_in_any_pieces() -> None:
    whole = b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
    body = Body(None)
    passed = b"".join(body.take(bytes([byte])) for byte in whole + b"GET")
    assert passed == whole


@pytest.mark.parametrize(
    "broken",
    [b"zz\r\n", b"3\r\nabcd\r\n", b"\r\n", b"3\nabc", b"3\x0b\r\n", b"0\r\n\nGET", b"1" * 70_000],
)
def test_broken_chunks_end_the_connection(broken: bytes) -> None:
    with pytest.raises(ConnectionAbortedError):
        Body(None).take(broken)


async def test_a_header_without_end_is_refused(egress: FakeEgress) -> None:
    found = await egress.ask(b"GET http://site.test/ HTTP/1.1\r\nA: " + b"x" * 200_000)
    assert found.startswith(b"HTTP/1.1 431 ")


async def test_a_slow_header_is_given_up() -> None:
    fake = FakeEgress(head_seconds=0.05)
    assert (await fake.ask(b"GET http://si")).startswith(b"HTTP/1.1 408 ")
    fake.proxy.close()


async def socks(egress: FakeEgress, wish: bytes, methods: bytes = b"\x01\x00") -> bytes:
    reader, writer = await egress.connect()
    writer.write(b"\x05" + methods)
    assert (await reader.readexactly(2))[0] == 5
    if b"\x02" in methods[1:]:
        writer.write(b"\x01\x04user\x04word")
        assert await reader.readexactly(2) == b"\x01\x00"
    writer.write(wish)
    reply = await reader.readexactly(10)
    if reply[1] == 0:
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
    writer.close()
    return reply


def named(host: bytes, port: int) -> bytes:
    return b"\x05\x01\x00\x03" + bytes([len(host)]) + host + struct.pack("!H", port)


@pytest.mark.parametrize("methods", [b"\x01\x00", b"\x02\x00\x02", b"\x01\x02"])
async def test_socks_by_name(egress: FakeEgress, methods: bytes) -> None:
    """RFC 1928, RFC 1929: a password is taken, whatever it is."""
    async with target(echo) as port:
        if methods == b"\x02\x00\x02":
            methods = b"\x02\x00\x01"
        assert (await socks(egress, named(b"site.test", port), methods))[1] == 0
    assert egress.kinds == ["opened"]


async def test_socks_by_address(egress: FakeEgress) -> None:
    egress.gate.known |= {"127.0.0.1": ("127.0.0.1",), "::1": ("127.0.0.1",)}
    async with target(echo) as port:
        four = b"\x05\x01\x00\x01\x7f\x00\x00\x01" + struct.pack("!H", port)
        six = b"\x05\x01\x00\x04" + b"\0" * 15 + b"\1" + struct.pack("!H", port)
        assert (await socks(egress, four))[1] == 0
        assert (await socks(egress, six))[1] == 0


async def test_socks_says_no(egress: FakeEgress, closed_port: int) -> None:
    assert (await socks(egress, named(b"evil.test", 443)))[1] == 2
    assert (await socks(egress, named(b"site.test", closed_port)))[1] == 4
    assert (await socks(egress, b"\x05\x02\x00\x01" + b"\0" * 6))[1] == 7  # BIND
    assert (await socks(egress, b"\x05\x03\x00\x01" + b"\0" * 6))[1] == 7  # UDP
    assert (await socks(egress, b"\x05\x01\x00\x09" + b"\0" * 6))[1] == 8
    assert (await socks(egress, named(b"a\0b", 443)))[1] == 2
    assert egress.kinds == ["refused", "failed"]
    assert await egress.ask(b"\x05\x01\x07") == b"\x05\xff"


async def test_connections_beyond_the_limit_are_turned_away() -> None:
    """With 503, after which clients try again: pip does not after 429 (docs/network.md)."""
    fake = FakeEgress(max_connections=2)
    held = [await fake.connect() for _ in range(2)]
    for _, writer in held:
        writer.write(b"GET")
        await writer.drain()
    found = await fake.ask(b"CONNECT site.test:443 HTTP/1.1\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 503 ")
    assert b"2 connections open" in found
    for reader, writer in held:
        writer.close()
        assert await reader.read() == b""
    while fake.proxy._tasks:
        await asyncio.wait(fake.proxy._tasks)
    assert b" 403 " in await fake.ask(b"CONNECT site.test:443 HTTP/1.1\r\n\r\n")
    fake.proxy.close()


async def test_closing_ends_every_connection_and_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with target(echo) as port:
        for _ in range(3):
            fake = FakeEgress()
            fake.gate.known["site.test"] = ("127.0.0.1",)
            reader, writer = await fake.connect()
            writer.write(b"CONNECT site.test:%d HTTP/1.1\r\n\r\n" % port)
            await reader.readuntil(b"\r\n\r\n")
            fake.proxy.close()
            fake.proxy.close()
            assert await reader.read() == b""
            writer.close()
            await asyncio.gather(*fake.proxy._tasks, return_exceptions=True)
            with pytest.raises(ConnectionRefusedError):
                await fake.connect()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before
